"""Text becomes speech whose words are timed before they sound and whose sound comes in pieces.

`Voice` is the protocol.  `Piper` implements it: phonemes from `piper-tts`, the voice's graph cut
in two (`audio.piper_model`), the encoder run once and the decoder in windows, so the first sound
is there after a fraction of the work and a listener who interrupts stops the rest of it.

`piper-tts` is licensed under the GPL 3.0.  This is the only file that imports it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from audio.errors import DeviceUnavailableError, SpeechSynthesisFailed
from audio.piper_model import PiperDescription, cut_voice, loading
from audio.spelling import spelled_out
from audio.word_times import assign_phonemes

Samples = NDArray[np.float32]
Cutting = Callable[[int, int], Iterable[tuple[int, int]]]
"""From the first frame of a latent, and the end of its last, to the frames of each window."""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word: characters `[start_char, end_char)` of the text, heard in
    `[start_sample, end_sample)` of the audio."""

    start_char: int
    end_char: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text on its way to being heard: laid out in time, not yet sound.

    `words` are in order and do not overlap; `sample_count` is the length of the whole audio.
    Both are 0 or empty for a text without a sound.
    """

    words: tuple[SpokenWord, ...]
    sample_count: int
    decode: Callable[[Cutting], Iterator[Samples]] = field(repr=False)

    def windows(self) -> Iterator[Samples]:
        """The audio in pieces, float32 in [-1, 1], made as they are taken.

        Not taking the next one is all it needs to stop the work.
        Raises `SpeechSynthesisFailed` if the model fails on the way.
        """
        return self.decode(window_bounds)

    def whole(self) -> Samples:
        """The same audio in one piece and with less computing; no part of it is there sooner.

        Raises `SpeechSynthesisFailed`.
        """
        pieces = list(self.decode(lambda first, frames: [(first, frames)]))
        return pieces[0] if pieces else np.zeros(0, np.float32)


_SILENCE = Utterance((), 0, lambda _: iter(()))


class Voice(Protocol):
    """Something that speaks."""

    @property
    def sample_rate_hz(self) -> int:
        """Of all its audio."""
        ...

    def speak(self, text: str, speed: float = 1.0) -> Utterance:
        """Lay out one chunk of text. Blocking; raises `SpeechSynthesisFailed`."""
        ...

    def warm_up(self) -> None:
        """Do once what the first utterance would otherwise wait for. Blocking."""
        ...


_FIRST_WINDOW_FRAMES = 20
_LONGEST_WINDOW_FRAMES = 60
_CONTEXT_FRAMES = 12
"""Of the latent, on each side of a window; with it the sound is that of decoding in one go."""
_LEAD_FRAMES = 2
"""Kept before the first phoneme; what is longer is a pause that nobody needs."""
_FADE_MS = 3.0

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0eff"
_WRITTEN_WORD = re.compile(rf"[{_UNSPACED}]|[^\s—{_UNSPACED}]+")
_TRIAL = "a"
_WARM_UP = "This sentence is as long as most of those that will be said, so nothing waits later."


class _Phonemizer:
    """eSpeak for one language. It is one machine for the whole process, so it is used in turns."""

    _turn = threading.Lock()

    def __init__(self, language: str) -> None:
        from piper.phonemize_espeak import EspeakPhonemizer

        self._language = language
        with self._turn:
            self._espeak = EspeakPhonemizer()
        self.word = lru_cache(maxsize=4096)(self._word)

    def sentence(self, text: str) -> list[str]:
        """Phonemes, stress, spaces and punctuation, one code point each."""
        try:
            with self._turn:
                sentences = self._espeak.phonemize(self._language, text)
        except Exception as error:  # whatever the extension raises at text it cannot take
            raise SpeechSynthesisFailed(f"eSpeak cannot read this text: {error}") from error
        return list(" ".join("".join(sentence) for sentence in sentences))

    def _word(self, text: str) -> str:
        return "".join(self.sentence(text))


class Piper:
    """A Piper voice that streams; made by `load_piper`. May be used from several threads."""

    def __init__(
        self,
        description: PiperDescription,
        encoder: onnxruntime.InferenceSession,
        decoder: onnxruntime.InferenceSession,
        gain: float,
    ) -> None:
        self._description = description
        self._encoder = encoder
        self._decoder = decoder
        self._gain = gain
        self._phonemizer = _Phonemizer(description.language)
        self._latent_name = decoder.get_inputs()[0].name
        channels = decoder.get_inputs()[0].shape[1]
        probe = np.zeros((1, channels, _CONTEXT_FRAMES), np.float32)
        self._hop = self._sound_of(probe).size // _CONTEXT_FRAMES

    @property
    def sample_rate_hz(self) -> int:
        """Of all its audio."""
        return self._description.sample_rate_hz

    def speak(self, text: str, speed: float = 1.0) -> Utterance:
        """Lay out one chunk of text: its words in time, and the latent its sound is made from.

        `speed`: 2 is twice as fast.  Emoji and bare punctuation make an utterance without words
        or samples.  Raises `SpeechSynthesisFailed` if the model cannot say this text.
        """
        if not speed > 0:
            raise ValueError(f"the speed must be above 0, not {speed}")
        places = [match.span() for match in _WRITTEN_WORD.finditer(text)]
        said = self._spelled([text[start:end] for start, end in places])
        phonemes = self._phonemes(_joined(text, places, said)) if _has_words(said) else []
        if not phonemes:
            return _SILENCE
        latent, begins, ends = self._encode(phonemes, speed)
        first = max(0, int(begins[0]) - _LEAD_FRAMES)
        spans = assign_phonemes([self._phonemizer.word(word) for word in said], phonemes)
        words = tuple(
            SpokenWord(*place, *(self._hop * (frame - first) for frame in heard))
            for place, heard in zip(places, _word_frames(spans, begins, ends), strict=True)
            if heard is not None
        )
        sample_count = self._hop * (latent.shape[2] - first)
        return Utterance(words, sample_count, lambda cut: self._decode(latent, first, cut))

    def warm_up(self) -> None:
        """Speak once in every shape of window. Blocking."""
        for _ in self.speak(_WARM_UP).windows():
            pass

    def _spelled(self, words: Sequence[str]) -> Sequence[str]:
        return spelled_out(words) if self._description.language.startswith("en") else words

    def _phonemes(self, text: str) -> list[str]:
        """What the voice knows of the text's phonemes; nothing if none of them is a sound."""
        known = self._description.phoneme_ids
        phonemes = [p for p in self._phonemizer.sentence(text) if p in known]
        return phonemes if _has_words(phonemes) else []

    def _encode(
        self, phonemes: list[str], speed: float
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """The latent `[1, channels, frames]`, and the frames at which each phoneme begins and
        ends.  Between them lies a blank, in which one sound turns into the next."""
        ids, begins, ends = self._ids(phonemes)
        scales = (
            self._description.noise_scale,
            self._description.length_scale / speed,
            self._description.duration_noise_scale,
        )
        feeds: dict[str, NDArray[np.generic]] = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array(scales, np.float32),
        }
        latent, durations = _run(self._encoder, feeds)
        frames = np.concatenate([[0], np.cumsum(durations.ravel())]).astype(np.int64)
        return latent, frames[begins], frames[ends]

    def _ids(self, phonemes: list[str]) -> tuple[list[int], list[int], list[int]]:
        """The model's input, with a blank after each phoneme; and where in it each phoneme begins
        and ends."""
        known = self._description.phoneme_ids
        blank = known["_"]
        ids = [*known["^"], *blank]
        begins, ends = [], []
        for phoneme in phonemes:
            begins.append(len(ids))
            ids += known[phoneme]
            ends.append(len(ids))
            ids += blank
        return [*ids, *known["$"]], begins, ends

    def _decode(self, latent: NDArray[np.float32], first: int, cut: Cutting) -> Iterator[Samples]:
        """The sound of the latent from frame `first`, at the voice's gain, without clicks."""
        fade = np.linspace(0.0, 1.0, int(self.sample_rate_hz * _FADE_MS / 1000), dtype=np.float32)
        for start, end in cut(first, latent.shape[2]):
            samples = self.decode_window(latent, start, end)
            if start == first:
                samples[: fade.size] *= fade
            if end == latent.shape[2]:
                samples[-fade.size :] *= fade[::-1]
            yield np.clip(samples * self._gain, -1.0, 1.0)

    def decode_window(self, latent: NDArray[np.float32], start: int, end: int) -> Samples:
        """The sound of frames `[start, end)` as they sound within the whole latent."""
        left = max(0, start - _CONTEXT_FRAMES)
        sound = self._sound_of(latent[:, :, left : end + _CONTEXT_FRAMES])
        return sound[(start - left) * self._hop : (end - left) * self._hop].copy()

    def _sound_of(self, latent: NDArray[np.float32]) -> Samples:
        (sound,) = _run(self._decoder, {self._latent_name: np.ascontiguousarray(latent)})
        return sound.reshape(-1)


def _run(
    session: onnxruntime.InferenceSession, feeds: Mapping[str, NDArray[np.generic]]
) -> list[NDArray[np.float32]]:
    try:
        outputs: list[NDArray[np.float32]] = session.run(None, dict(feeds))
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise SpeechSynthesisFailed(f"the voice's model failed: {error}") from error
    return outputs


def _has_words(words: Iterable[str]) -> bool:
    return any(character.isalpha() or character.isdigit() for word in words for character in word)


def _joined(text: str, places: Sequence[tuple[int, int]], words: Sequence[str]) -> str:
    """The text with the words at `places` replaced."""
    pieces, end = [], 0
    for (start, stop), word in zip(places, words, strict=True):
        pieces += [text[end:start], word]
        end = stop
    return "".join([*pieces, text[end:]])


def _word_frames(
    spans: Sequence[tuple[int, int] | None], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[tuple[int, int] | None]:
    """The frames in which each word is heard, from those in which its phonemes are.

    In one breath a word ends where the next begins; before a pause, with its last phoneme.
    """
    followed = {span[0] for span in spans if span is not None}
    for span in spans:
        if span is None:
            yield None
        else:
            start, end = span
            yield int(begins[start]), int(begins[end] if end in followed else ends[end - 1])


def window_bounds(first: int, frames: int) -> Iterator[tuple[int, int]]:
    """The frames of each window: a short one for an early start, then longer ones, which repeat
    less of the context, but none so long that a cancel would have to wait for it."""
    start, size = first, _FIRST_WINDOW_FRAMES
    while start < frames:
        end = min(start + size, frames)
        yield start, end
        start, size = end, min(2 * size, _LONGEST_WINDOW_FRAMES)


def load_piper(
    model: Path,
    device: Literal["cpu", "cuda"] = "cpu",
    threads: int = 1,
    gain: float = 1.3,
) -> Piper:
    """Load `model.onnx`, described by `model.onnx.json` beside it.

    `gain` multiplies every sample, the same for all texts; a Piper voice by itself peaks at about
    half of full scale.  Raises `VoiceModelError` if the voice is missing, damaged, cannot be cut
    or cannot speak, and `DeviceUnavailableError` if `device` is "cuda" and there is none.
    """
    description = PiperDescription.read(model)
    graphs = cut_voice(model)
    with loading(model):
        piper = Piper(
            description,
            _session(graphs.encoder, device, threads),
            _session(graphs.decoder, device, threads),
            gain,
        )
        piper.speak(_TRIAL)  # some damage, and an unknown language, show in use only
    return piper


def _session(
    graph: bytes, device: Literal["cpu", "cuda"], threads: int
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    providers: list[str | tuple[str, dict[str, str]]] = ["CPUExecutionProvider"]
    if device == "cuda":
        _expect_cuda(onnxruntime.get_available_providers())
        # Otherwise the fastest convolution would be searched for at every new length of text.
        providers.insert(0, ("CUDAExecutionProvider", {"cudnn_conv_algo_search": "HEURISTIC"}))
    # The fallback from a failed CPU session is the same session again, announced on stdout.
    session = onnxruntime.InferenceSession(
        graph, options, providers=providers, enable_fallback=int(device == "cuda")
    )
    if device == "cuda":  # available, and yet it may have failed to start
        _expect_cuda(session.get_providers())
    return session


def _expect_cuda(providers: Sequence[str]) -> None:
    if "CUDAExecutionProvider" not in providers:
        raise DeviceUnavailableError(
            'ONNX Runtime finds no CUDA device for the voice: set its device to "cpu", '
            "or install onnxruntime-gpu in place of onnxruntime"
        )
