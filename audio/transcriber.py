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

from audio.errors import ModelFolderError, ModelLanguageError, brief
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

# Hypotheses side by side, as many as Whisper's authors take. In a window that fits they cost a
# quarter more than one, and a tenth of the word errors goes.
_BEAM = 5

# The text may end this long before the sound does, or longer if only quiet follows; otherwise
# the decoder has skipped something and is sent back there.
_UNCOVERED_S = 2.5
_QUIET_DB = 20.0
_LEAST_HEADWAY_S = 1.0

# Below this level in every 30 ms there is nothing to hear: a muted microphone.
_SILENCE_DBFS = -65.0
_LEVEL_FRAME = 480


@dataclass(frozen=True, slots=True)
class TimedText:
    """A piece of a transcript that ends `end_s` after the sound's beginning, at a boundary."""

    text: str
    end_s: float


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
    segments: tuple[TimedText, ...] = ()
    """The text in pieces, up to the first whose end the network did not tell."""


class Transcriber(Protocol):
    """Turns the sound of one utterance into text; blocks, so call it on a worker thread."""

    def transcribe(self, samples: Samples) -> Transcript:
        """Transcribe mono samples at 16 kHz, any length."""
        ...

    def warm_up(self) -> None:
        """Run once with every shape that real work will have."""
        ...


@dataclass(frozen=True, slots=True)
class _Segment:
    """Text between two timestamps, in seconds from the start of the window."""

    text: str
    begin_s: float
    end_s: float | None  # None if the decoder stopped without saying


@dataclass(frozen=True, slots=True)
class _Decode:
    segments: tuple[_Segment, ...]
    no_speech_probability: float
    log_probability: float
    budget_spent: bool

    @property
    def text(self) -> str:
        return _text(self.segments)

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
        pieces: list[Transcript] = []
        starts_s: list[float] = []
        position = 0
        while position < len(samples) or not pieces:
            window = samples[position : position + LONGEST_WINDOW_S * SAMPLE_RATE_HZ]
            piece, covered = self._transcribe_window(window)
            pieces.append(piece)
            starts_s.append(position / SAMPLE_RATE_HZ)
            is_last = position + len(window) == len(samples)
            if is_last and not _goes_on(window, covered):
                break
            position += covered
        if len(pieces) == 1:
            return pieces[0]
        return _joined(pieces, starts_s, len(samples) / SAMPLE_RATE_HZ)

    def warm_up(self) -> None:
        """Run every window length once."""
        noise = np.random.default_rng(0).normal(0, 0.01, SAMPLE_RATE_HZ).astype(np.float32)
        for window_s in (_SHORTEST_WINDOW_S, _SECOND_WINDOW_S, LONGEST_WINDOW_S):
            self._decode(noise, window_s)

    def _transcribe_window(self, samples: Samples) -> tuple[Transcript, int]:
        """The transcript of at most 30 s, and how many of the samples it covers."""
        seconds = len(samples) / SAMPLE_RATE_HZ
        if _loudest_dbfs(samples) < _SILENCE_DBFS:
            return Transcript("", seconds, "silence", 1.0, 0.0, 0.0, decodes=0), len(samples)
        decodes: list[_Decode] = []
        for window_s in _windows(seconds):
            decodes.append(self._decode(samples, window_s))
            if not decodes[-1].suspicious or _agree(decodes):
                break
        best = decodes[-1]
        segments: Sequence[_Segment] = best.segments
        if best.suspicious and not _agree(decodes):
            segments = _before_the_loop(segments)
        text = _text(segments)
        rejection = rejection_of(normalise(text), best.no_speech_probability, best.log_probability)
        if best.segments and not segments:
            rejection = "repetition"
        transcript = Transcript(
            text="" if rejection else text,
            audio_seconds=seconds,
            rejection=rejection,
            no_speech_probability=best.no_speech_probability,
            average_log_probability=best.log_probability,
            compression_ratio=compression_ratio(best.text),
            decodes=len(decodes),
            segments=() if rejection else tuple(_timed(segments)),
        )
        return transcript, len(samples) if rejection else _covered(segments, len(samples))

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
            beam_size=_BEAM,
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
        # The network was trained with silence behind the sound, not with features of zero, which
        # are those of a hiss. The quietest of this sound's come nearest to it.
        quiet = frames.min(initial=0.0)
        window = np.full((1, len(frames), window_s * _FRAMES_PER_SECOND), quiet, np.float32)
        window[0, :, : frames.shape[1]] = frames
        return self._network.encode(ctranslate2.StorageView.from_array(window))

    def _segments(self, tokens: Sequence[int], seconds: float) -> Iterator[_Segment]:
        """The texts between timestamps, up to the first that would begin after the sound."""
        first_timestamp: int = self._tokenizer.timestamp_begin
        begin_s, words = 0.0, list[int]()
        for token in [*tokens, None]:
            if token is not None and token < first_timestamp:
                words.append(token)
                continue
            end_s = None if token is None else (token - first_timestamp) * _SECONDS_PER_TIMESTAMP
            text = self._tokenizer.decode(words).strip()
            if text and begin_s < max(seconds - 0.1, 0.1):
                yield _Segment(text, begin_s, end_s)
            begin_s, words = end_s or 0.0, []


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
    except Exception as error:  # the tokenizer's, the hub's and CTranslate2's share no base class
        raise ModelFolderError(
            f"cannot load the Whisper model {source} on {device} as {compute_type} "
            f"({brief(error)}); correct the device or the compute type, or check the model with "
            "`assistant models verify` and install it again"
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


def _text(segments: Sequence[_Segment]) -> str:
    return " ".join(segment.text for segment in segments)


def _timed(segments: Sequence[_Segment]) -> Iterator[TimedText]:
    for segment in segments:
        if segment.end_s is None:
            return
        yield TimedText(segment.text, segment.end_s)


def _agree(decodes: Sequence[_Decode]) -> bool:
    """Whether two windows gave the same words: then a repetition is the speaker's own."""
    return (
        len(decodes) > 1
        and not decodes[-1].budget_spent
        and normalise(decodes[-1].text) == normalise(decodes[-2].text)
    )


def _before_the_loop(segments: Sequence[_Segment]) -> Sequence[_Segment]:
    """The most leading segments that contain no loop."""
    kept = list(segments)
    while kept and (
        repeats_itself(normalise(_text(kept)))
        or compression_ratio(_text(kept)) > HIGHEST_COMPRESSION_RATIO
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


def _covered(segments: Sequence[_Segment], sample_count: int) -> int:
    """How many of the samples the segments account for, by their last timestamp.

    All of them if there is no timestamp, or none that makes headway.
    """
    end_s = segments[-1].end_s if segments else None
    if end_s is None or end_s < _LEAST_HEADWAY_S:
        return sample_count
    return min(int(end_s * SAMPLE_RATE_HZ), sample_count)


def _goes_on(samples: Samples, covered: int) -> bool:
    """Whether enough sound follows the covered samples to contain words that were skipped."""
    rest = samples[covered:]
    return (
        len(rest) > _UNCOVERED_S * SAMPLE_RATE_HZ
        and _loudest_dbfs(rest) > _loudest_dbfs(samples) - _QUIET_DB
    )


def _joined(
    pieces: Sequence[Transcript], starts_s: Sequence[float], audio_seconds: float
) -> Transcript:
    """One transcript of consecutive windows; a rejected window is left out if another has text."""
    heard = [piece for piece in pieces if piece.rejection is None]
    telling = heard or pieces
    seconds = sum(piece.audio_seconds for piece in telling)
    return Transcript(
        text=" ".join(piece.text for piece in heard),
        audio_seconds=audio_seconds,
        rejection=None if heard else pieces[0].rejection,
        no_speech_probability=min(piece.no_speech_probability for piece in telling),
        average_log_probability=sum(
            piece.average_log_probability * piece.audio_seconds / seconds for piece in telling
        ),
        compression_ratio=max(piece.compression_ratio for piece in telling),
        decodes=sum(piece.decodes for piece in pieces),
        segments=tuple(_joined_segments(pieces, starts_s)),
    )


def _joined_segments(
    pieces: Sequence[Transcript], starts_s: Sequence[float]
) -> Iterator[TimedText]:
    for piece, start_s in zip(pieces, starts_s, strict=True):
        for segment in piece.segments:
            yield TimedText(segment.text, start_s + segment.end_s)
        if " ".join(segment.text for segment in piece.segments) != piece.text:
            return  # what follows has no known beginning
