"""Speech to text: Whisper on a window that fits the utterance instead of always 30 seconds.

Whisper was trained on 30 s windows, and its usual front end pads every request to that, so a
two-word command costs as much as a speech. The encoder accepts fewer frames at a proportional
cost. The price is that the decoder sometimes runs on past the end of the sound and repeats
itself. Its own timestamps tell where the sound ended, a token budget bounds the waste, and when a
loop remains the same sound is decoded again on a longer window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ctranslate2
import faster_whisper
import numpy as np
from faster_whisper.tokenizer import Tokenizer

from audio.errors import ModelFolderError, ModelLanguageError
from audio.pcm import Samples
from audio.plausibility import (
    HIGHEST_COMPRESSION_RATIO,
    compression_ratio,
    rejection_of,
    repeats_itself,
)
from audio.words import normalise

SAMPLE_RATE_HZ = 16_000

# Windows in seconds; docs/recognition.md has the measurements.
LONGEST_WINDOW_S = 30
_SHORTEST_WINDOW_S = 10
_SECOND_WINDOW_S = 20
_MARGIN_S = 2

_FRAMES_PER_SECOND = 100
_SECONDS_PER_TIMESTAMP = 0.02

# Fast speech needs about 5 tokens a second, timestamps included; a decode that uses up the budget
# is repeated on a longer window with Whisper's own limit.
_TOKENS_PER_SECOND = 7
_SPARE_TOKENS = 8
_MOST_TOKENS = 224

# Utterances beyond one window are cut at the quietest moment of this stretch.
_CUT_FROM_S = 18
_CUT_TO_S = 28
_CUT_FRAME_S = 0.2

# Below this level in every 30 ms there is nothing to hear: a muted microphone.
_SILENCE_DBFS = -65.0
_LEVEL_FRAME = 480


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said, or why nothing was."""

    text: str
    """The words as written by the recogniser; empty if rejected."""
    audio_seconds: float
    """Length of the sound."""
    rejection: str | None
    """None, or why there is no text: "silence", "no_speech", "hallucination", "repetition"."""
    no_speech_probability: float
    """The network's probability that nobody spoke, 0 to 1."""
    average_log_probability: float
    """Mean natural logarithm of the token probabilities; 0 is certainty."""
    compression_ratio: float
    """Bytes of text per compressed byte; high values mean repetition."""
    decodes: int
    """How often the network was run; more than the number of pieces means a guard tripped."""


class Transcriber(Protocol):
    """Turns the sound of one utterance into text; blocks, so call it on a worker thread."""

    def transcribe(self, samples: Samples) -> Transcript:
        """Transcribe mono samples at 16 kHz, any length."""
        ...

    def warm_up(self) -> None:
        """Run once with every shape that real work will have."""
        ...


@dataclass(frozen=True, slots=True)
class _Decode:
    segments: tuple[str, ...]
    no_speech_probability: float
    log_probability: float
    budget_spent: bool

    @property
    def text(self) -> str:
        return " ".join(self.segments)

    @property
    def suspicious(self) -> bool:
        return (
            self.budget_spent
            or compression_ratio(self.text) > HIGHEST_COMPRESSION_RATIO
            or repeats_itself(normalise(self.text))
        )


class Whisper:
    """A Whisper model in CTranslate2 format; `load_whisper` makes one."""

    def __init__(self, model: faster_whisper.WhisperModel, language: str) -> None:
        self._network = model.model
        self._features = model.feature_extractor
        self._tokenizer = Tokenizer(
            model.hf_tokenizer, self._network.is_multilingual, "transcribe", language
        )
        # Timestamps are asked for although nobody reads them later: they tell text about the
        # sound from text about the padding behind it.
        self._prompt = list(self._tokenizer.sot_sequence)

    def transcribe(self, samples: Samples) -> Transcript:
        """Transcribe mono samples at 16 kHz, any length."""
        pieces = [self._transcribe_piece(piece) for piece in _pieces(samples)]
        heard = [piece for piece in pieces if piece.rejection is None]
        if len(pieces) == 1:
            return pieces[0]
        telling = heard or pieces
        seconds = sum(piece.audio_seconds for piece in telling)
        return Transcript(
            text=" ".join(piece.text for piece in heard),
            audio_seconds=len(samples) / SAMPLE_RATE_HZ,
            rejection=None if heard else pieces[0].rejection,
            no_speech_probability=min(piece.no_speech_probability for piece in telling),
            average_log_probability=sum(
                piece.average_log_probability * piece.audio_seconds for piece in telling
            )
            / seconds,
            compression_ratio=max(piece.compression_ratio for piece in telling),
            decodes=sum(piece.decodes for piece in pieces),
        )

    def warm_up(self) -> None:
        """Run every window length once."""
        noise = np.random.default_rng(0).normal(0, 0.01, SAMPLE_RATE_HZ).astype(np.float32)
        for window_s in (_SHORTEST_WINDOW_S, _SECOND_WINDOW_S, LONGEST_WINDOW_S):
            self._decode(noise, window_s)

    def _transcribe_piece(self, samples: Samples) -> Transcript:
        seconds = len(samples) / SAMPLE_RATE_HZ
        if _loudest_dbfs(samples) < _SILENCE_DBFS:
            return Transcript("", seconds, "silence", 1.0, 0.0, 0.0, decodes=0)
        decodes: list[_Decode] = []
        for window_s in _windows(seconds):
            decodes.append(self._decode(samples, window_s))
            if not decodes[-1].suspicious or _agree(decodes):
                break
        best = decodes[-1]
        segments: Sequence[str] = best.segments
        if best.suspicious and not _agree(decodes):
            segments = _before_the_loop(segments)
        text = " ".join(segments)
        rejection = rejection_of(normalise(text), best.no_speech_probability, best.log_probability)
        if not segments and best.segments:
            rejection = "repetition"
        return Transcript(
            text="" if rejection else text,
            audio_seconds=seconds,
            rejection=rejection,
            no_speech_probability=best.no_speech_probability,
            average_log_probability=best.log_probability,
            compression_ratio=compression_ratio(best.text),
            decodes=len(decodes),
        )

    def _decode(self, samples: Samples, window_s: int) -> _Decode:
        seconds = len(samples) / SAMPLE_RATE_HZ
        budget = _MOST_TOKENS
        if window_s < LONGEST_WINDOW_S:
            budget = min(budget, _SPARE_TOKENS + math.ceil(_TOKENS_PER_SECOND * seconds))
        # `generate` stops at half of its max_length, which counts the prompt.
        max_length = min(2 * (budget + len(self._prompt)), 2 * _MOST_TOKENS)
        result = self._network.generate(
            self._encode(samples, window_s),
            [self._prompt],
            beam_size=1,
            max_length=max_length,
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        tokens = result.sequences_ids[0]
        return _Decode(
            segments=tuple(self._segments(tokens, seconds)),
            no_speech_probability=result.no_speech_prob,
            # The score is a mean over the tokens; the end token counts as well.
            log_probability=result.scores[0] * len(tokens) / (len(tokens) + 1),
            budget_spent=len(tokens) >= max_length // 2 - len(self._prompt),
        )

    def _encode(self, samples: Samples, window_s: int) -> ctranslate2.StorageView:
        frames = self._features(samples)[:, : window_s * _FRAMES_PER_SECOND]
        window = np.zeros((1, len(frames), window_s * _FRAMES_PER_SECOND), np.float32)
        window[0, :, : frames.shape[1]] = frames
        return self._network.encode(ctranslate2.StorageView.from_array(window))

    def _segments(self, tokens: Sequence[int], seconds: float) -> Iterator[str]:
        """The texts between timestamps, up to the first that would begin after the sound."""
        first_timestamp: int = self._tokenizer.timestamp_begin
        begin_s, words = 0.0, list[int]()
        for token in [*tokens, first_timestamp]:
            if token < first_timestamp:
                words.append(token)
                continue
            text = self._tokenizer.decode(words).strip()
            if text and begin_s < max(seconds - 0.1, 0.1):
                yield text
            words = []
            begin_s = (token - first_timestamp) * _SECONDS_PER_TIMESTAMP


def load_whisper(
    source: Path | str,
    device: str = "cpu",
    compute_type: str = "int8",
    threads: int = 1,
    language: str = "en",
) -> Whisper:
    """Load a Whisper model from a CTranslate2 folder or from the Hugging Face hub by its id.

    Raises `ModelFolderError` if the folder is missing or incomplete or the download fails, and
    `ModelLanguageError` if the model does not know `language` (a two-letter code).
    """
    folder = Path(source).expanduser()
    is_hub_id = isinstance(source, str) and source.count("/") <= 1 and source[:1] not in "./~"
    if not is_hub_id or folder.is_dir():
        for name in ("model.bin", "config.json", "tokenizer.json"):
            if not (folder / name).is_file():
                raise ModelFolderError(
                    f"no Whisper model at {folder}: {name} is missing; "
                    "give a folder in CTranslate2 format or install the model first"
                )
    try:
        model = faster_whisper.WhisperModel(
            str(folder) if folder.is_dir() else str(source),
            device=device,
            compute_type=compute_type,
            cpu_threads=threads,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelFolderError(
            f"cannot load the Whisper model {source} on {device} as {compute_type}: {error}"
        ) from error
    if language not in model.supported_languages:
        knows = "only English" if not model.model.is_multilingual else "other languages"
        raise ModelLanguageError(
            f'the Whisper model {source} knows {knows}, not "{language}"; '
            "choose a multilingual model or a language it knows"
        )
    return Whisper(model, language)


def _windows(seconds: float) -> Iterator[int]:
    """Window lengths to try in turn, each longer than the one before."""
    fitting = max(_SHORTEST_WINDOW_S, math.ceil(seconds + _MARGIN_S))
    for window_s in (fitting, max(_SECOND_WINDOW_S, fitting + 5), LONGEST_WINDOW_S):
        if window_s < LONGEST_WINDOW_S:
            yield window_s
    yield LONGEST_WINDOW_S


def _agree(decodes: Sequence[_Decode]) -> bool:
    """Whether two windows gave the same words: then a repetition is the speaker's own."""
    return len(decodes) > 1 and (
        normalise(decodes[-1].text) == normalise(decodes[-2].text) and not decodes[-1].budget_spent
    )


def _before_the_loop(segments: Sequence[str]) -> Sequence[str]:
    """The most leading segments that contain no loop."""
    kept = list(segments)
    while kept and (
        repeats_itself(normalise(" ".join(kept)))
        or compression_ratio(" ".join(kept)) > HIGHEST_COMPRESSION_RATIO
    ):
        kept.pop()
    return kept


def _loudest_dbfs(samples: Samples) -> float:
    """Level of the loudest 30 ms, in dB relative to full scale."""
    whole = len(samples) // _LEVEL_FRAME * _LEVEL_FRAME
    if not whole:
        return -math.inf
    power = np.square(samples[:whole].reshape(-1, _LEVEL_FRAME)).mean(axis=1).max()
    return 10 * math.log10(max(float(power), 1e-12))


def _pieces(samples: Samples) -> Iterator[Samples]:
    """The sound in pieces of at most 28 s, cut where it is quietest.

    Where a piece ends depends only on the sound before its 28th second, so a growing utterance is
    always cut at the same places.
    """
    frame = int(_CUT_FRAME_S * SAMPLE_RATE_HZ)
    while len(samples) > _CUT_TO_S * SAMPLE_RATE_HZ:
        first = _CUT_FROM_S * SAMPLE_RATE_HZ
        stretch = samples[first : _CUT_TO_S * SAMPLE_RATE_HZ].reshape(-1, frame)
        quietest = int(np.square(stretch).mean(axis=1).argmin())
        cut = first + quietest * frame + frame // 2
        yield samples[:cut]
        samples = samples[cut:]
    yield samples
