"""Streaming synthesis, on a toy voice that is built here like a Piper voice is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from audio.errors import DeviceUnavailableError, SpeechSynthesisFailed, VoiceModelError
from audio.piper_model import cut_voice
from audio.voice import Piper, Samples, load_piper, window_bounds

CHANNELS = 8
SYMBOLS = 256
HOP = 256
FRAMES_OF_AN_ID = 3
RATE_HZ = 16_000
PHONEMES = "_^$ ,.;:!?'abdefhijklmnoprstuvwzæðŋɐɑɔəɚɛɜɡɪɹʃʊʌθᵻˈˌːɾ"

Change = Callable[[onnx.ModelProto], None]


def toy_model() -> onnx.ModelProto:
    """Each id lasts `FRAMES_OF_AN_ID`; a latent frame is its embedding plus noise.

    The decoder sees two frames to each side, much less than a real one.
    """
    rng = np.random.default_rng(1)

    def constant(name: str, value: NDArray[np.generic]) -> onnx.TensorProto:
        return numpy_helper.from_array(value, name)

    constants = [
        constant("embedding", rng.standard_normal((SYMBOLS, CHANNELS), dtype=np.float32)),
        constant("frames", np.array(FRAMES_OF_AN_ID, np.float32)),
        constant("zero", np.array(0, np.float32)),
        constant("0", np.array(0, np.int64)),
        constant("1", np.array(1, np.int64)),
        constant("[0]", np.array([0], np.int64)),
        constant("[1]", np.array([1], np.int64)),
        constant("context", rng.standard_normal((CHANNELS, CHANNELS, 5), dtype=np.float32) / 6),
        constant("up", rng.standard_normal((CHANNELS, 1, HOP), dtype=np.float32) / 6),
    ]
    node = helper.make_node
    nodes = [
        node("Gather", ["embedding", "input"], ["rows"]),
        node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        node("Gather", ["scales", "1"], ["length"]),
        node("Gather", ["scales", "0"], ["noise_scale"]),
        node("Mul", ["length", "frames"], ["frames_each"]),
        node("Cast", ["input"], ["numbers"], to=TensorProto.FLOAT),
        node("Mul", ["numbers", "zero"], ["nothing"]),
        node("Add", ["nothing", "frames_each"], ["each"]),
        node("Unsqueeze", ["each", "[1]"], ["durations"]),
        node("Ceil", ["durations"], ["whole_durations"]),
        node("ReduceMax", ["whole_durations"], ["longest"], keepdims=0),
        node("Cast", ["longest"], ["repeat"], to=TensorProto.INT64),
        node("Squeeze", ["input_lengths", "[0]"], ["ids"]),
        node("Mul", ["ids", "repeat"], ["total"]),
        node("Range", ["0", "total", "1"], ["steps"]),
        node("Div", ["steps", "repeat"], ["of_id"]),
        node("Gather", ["columns", "of_id"], ["stretched"], axis=2),
        node("RandomNormalLike", ["stretched"], ["random"]),
        node("Mul", ["random", "noise_scale"], ["noise_here"]),
        node("Add", ["stretched", "noise_here"], ["z"]),
        node("Conv", ["z", "context"], ["wide"], name="/dec/pre/Conv", pads=[2, 2]),
        node("ConvTranspose", ["wide", "up"], ["wave"], name="/dec/up", strides=[HOP]),
        node("Tanh", ["wave"], ["bounded"], name="/dec/Tanh"),
        node("Unsqueeze", ["bounded", "[1]"], ["output"]),
    ]
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.INT64, [1, None]),
        helper.make_tensor_value_info("input_lengths", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3]),
    ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1, 1, None])
    graph = helper.make_graph(nodes, "toy", inputs, [output], constants)
    opset = helper.make_opsetid("", 15)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def toy_description() -> dict[str, object]:
    return {
        "audio": {"sample_rate": RATE_HZ},
        "espeak": {"voice": "en-us"},
        "phoneme_type": "espeak",
        "inference": {"noise_scale": 0.5, "length_scale": 1.0, "noise_w": 0.8},
        "phoneme_id_map": {phoneme: [index] for index, phoneme in enumerate(PHONEMES)},
    }


def install(folder: Path, model: onnx.ModelProto, description: dict[str, object]) -> Path:
    path = folder / "toy.onnx"
    path.write_bytes(model.SerializeToString())
    Path(f"{path}.json").write_text(json.dumps(description), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("voice"), toy_model(), toy_description())


@pytest.fixture(scope="module")
def voice(toy: Path) -> Piper:
    return load_piper(toy, gain=0.5)


TEXT = "Hello there, this is a long enough text to need more than one window of sound."


def sound(piper: Piper, text: str) -> Samples:
    return np.concatenate([np.zeros(0, np.float32), *piper.speak(text).windows()])


# -- laying out -----------------------------------------------------------------------------


def test_every_written_word_has_its_time(voice: Piper) -> None:
    utterance = voice.speak(TEXT)
    assert [TEXT[w.start_char : w.end_char] for w in utterance.words] == TEXT.split()


@given(st.text(max_size=40))
def test_words_are_in_order_and_end_within_the_audio(voice: Piper, text: str) -> None:
    try:
        utterance = voice.speak(text)
    except SpeechSynthesisFailed:
        return  # a character that eSpeak does not take
    times = [time for word in utterance.words for time in (word.start_sample, word.end_sample)]
    places = [place for word in utterance.words for place in (word.start_char, word.end_char)]
    assert times == sorted(times)
    assert places == sorted(places)
    assert all(0 <= time <= utterance.sample_count for time in times)
    assert all(0 <= place <= len(text) for place in places)


def test_a_word_lasts_as_long_as_its_phonemes(voice: Piper) -> None:
    # "ɪɾ ˈɪz", with a blank behind each
    it, is_ = voice.speak("it is").words
    ids = FRAMES_OF_AN_ID * HOP
    assert it.end_sample - it.start_sample == 4 * ids
    assert is_.start_sample == it.end_sample
    assert is_.end_sample - is_.start_sample == 7 * ids


def test_a_pause_belongs_to_no_word(voice: Piper) -> None:
    # "ɪɾ, ˈɪz": the comma and the space, each with a blank behind it, and the one before them
    it, is_ = voice.speak("it, is").words
    assert is_.start_sample - it.end_sample == 5 * FRAMES_OF_AN_ID * HOP


def test_a_number_is_one_word(voice: Piper) -> None:
    text = "We have 25 days, i.e. $3.50."
    words = [text[w.start_char : w.end_char] for w in voice.speak(text).words]
    assert words == ["We", "have", "25", "days,", "i.e.", "$3.50."]


def test_twice_the_speed_is_half_the_time(voice: Piper) -> None:
    at_half = voice.speak("so it is", speed=0.5).sample_count
    assert voice.speak("so it is", speed=1.0).sample_count == pytest.approx(at_half / 2, rel=0.05)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_is_above_zero(voice: Piper, speed: float) -> None:
    with pytest.raises(ValueError, match="speed"):
        voice.speak("hello", speed)


@pytest.mark.parametrize("text", ["", " ", "…", "—!?", "🎉"])
def test_what_has_no_words_is_silent(voice: Piper, text: str) -> None:
    utterance = voice.speak(text)
    assert (utterance.words, utterance.sample_count) == ((), 0)
    assert list(utterance.windows()) == []


def test_text_the_phonemizer_cannot_take_is_a_typed_error(voice: Piper) -> None:
    with pytest.raises(SpeechSynthesisFailed):
        voice.speak("null\0character")


# -- decoding -------------------------------------------------------------------------------


def test_the_windows_are_as_long_as_promised(voice: Piper) -> None:
    utterance = voice.speak(TEXT)
    assert sum(window.size for window in utterance.windows()) == utterance.sample_count


def test_windows_sound_like_one_piece(voice: Piper) -> None:
    latent = np.random.default_rng(2).standard_normal((1, CHANNELS, 200), dtype=np.float32)
    whole = voice.decode_window(latent, 0, 200)
    windows = [voice.decode_window(latent, start, end) for start, end in window_bounds(0, 200)]
    assert len(windows) > 3
    np.testing.assert_allclose(np.concatenate(windows), whole, atol=1e-5)


def test_an_utterance_in_one_piece_is_its_windows(voice: Piper) -> None:
    utterance = voice.speak(TEXT)
    np.testing.assert_allclose(utterance.whole(), sound(voice, TEXT), atol=1e-5)
    assert utterance.whole().size == utterance.sample_count
    assert voice.speak("…").whole().size == 0


def test_the_same_text_sounds_the_same(voice: Piper, toy: Path) -> None:
    first = sound(voice, TEXT)
    np.testing.assert_array_equal(first, sound(voice, TEXT))
    np.testing.assert_array_equal(first, sound(load_piper(toy, gain=0.5), TEXT))


def test_the_gain_is_the_same_for_every_text(toy: Path, voice: Piper) -> None:
    quiet = load_piper(toy, gain=0.25)
    for text in ("yes", TEXT):
        np.testing.assert_allclose(2 * sound(quiet, text), sound(voice, text), atol=1e-6)


def test_samples_stay_within_full_scale(toy: Path) -> None:
    loud = sound(load_piper(toy, gain=100.0), TEXT)
    assert np.abs(loud).max() == 1.0


def test_a_chunk_begins_and_ends_without_a_click(voice: Piper) -> None:
    samples = sound(voice, TEXT)
    assert samples[0] == samples[-1] == 0.0


def test_what_is_not_taken_is_not_decoded(voice: Piper, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, int]] = []

    def decode_window(latent: NDArray[np.float32], start: int, end: int) -> Samples:
        decoded.append((start, end))
        return Piper.decode_window(voice, latent, start, end)

    monkeypatch.setattr(voice, "decode_window", decode_window)
    windows = voice.speak(TEXT).windows()
    assert decoded == []
    next(windows)
    next(windows)
    assert len(decoded) == 2


def test_a_failing_model_is_a_typed_error(voice: Piper, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def run(self, *_: object) -> None:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(voice, "_decoder", Broken())
    windows = voice.speak("hello").windows()
    with pytest.raises(SpeechSynthesisFailed, match="out of memory"):
        next(windows)


@given(st.integers(0, 50), st.integers(0, 500))
def test_windows_cover_every_frame_once(first: int, frames: int) -> None:
    bounds = list(window_bounds(first, frames))
    covered = [frame for start, end in bounds for frame in range(start, end)]
    assert covered == list(range(first, frames))
    assert all(end - start <= 60 for start, end in bounds)
    assert not bounds or bounds[0][1] - first <= 20


def test_warming_up_runs_every_size_of_window(
    voice: Piper, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def decode_window(latent: NDArray[np.float32], start: int, end: int) -> Samples:
        sizes.append(end - start)
        return Piper.decode_window(voice, latent, start, end)

    monkeypatch.setattr(voice, "decode_window", decode_window)
    voice.warm_up()
    assert {20, 40, 60} <= set(sizes)


# -- loading --------------------------------------------------------------------------------


def test_the_cut_halves_make_the_whole(toy: Path) -> None:
    graphs = cut_voice(toy)
    providers = ["CPUExecutionProvider"]
    feeds = {
        "input": np.array([[5, 9, 7]]),
        "input_lengths": np.array([3]),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),  # without noise, so both are comparable
    }
    whole = onnxruntime.InferenceSession(str(toy), providers=providers).run(None, feeds)[0]
    encoder = onnxruntime.InferenceSession(graphs.encoder, providers=providers)
    decoder = onnxruntime.InferenceSession(graphs.decoder, providers=providers)
    latent, durations = encoder.run(None, feeds)
    np.testing.assert_array_equal(durations.ravel(), [FRAMES_OF_AN_ID] * 3)
    np.testing.assert_allclose(
        decoder.run(None, {decoder.get_inputs()[0].name: latent})[0], whole, atol=1e-6
    )


def test_the_noise_is_normal_and_goes_on_for_any_length(toy: Path) -> None:
    encoder = onnxruntime.InferenceSession(
        cut_voice(toy).encoder, providers=["CPUExecutionProvider"]
    )
    ids = np.full((1, 1000), 7)  # longer than the table of noise

    def latent(noise_scale: float) -> NDArray[np.float32]:
        scales = np.array([noise_scale, 1.0, 0.0], np.float32)
        feeds = {"input": ids, "input_lengths": np.array([1000]), "scales": scales}
        result: NDArray[np.float32] = encoder.run(None, feeds)[0]
        return result

    noise = latent(1.0) - latent(0.0)
    assert noise.shape == (1, CHANNELS, 1000 * FRAMES_OF_AN_ID)
    assert abs(noise.mean()) < 0.05
    assert noise.std() == pytest.approx(1.0, abs=0.05)


def test_a_missing_voice_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(VoiceModelError, match="install"):
        load_piper(tmp_path / "none.onnx")


def test_a_missing_model_beside_its_description_says_what_to_do(toy: Path) -> None:
    copy = toy.with_name("alone.onnx")
    Path(f"{copy}.json").write_text(json.dumps(toy_description()), encoding="utf-8")
    with pytest.raises(VoiceModelError, match=r"alone\.onnx.*install"):
        load_piper(copy)


DAMAGED_BYTES = 4
WHAT_TO_DO = "`assistant models verify`.*another voice"


def damaged_copy(toy: Path, content: bytes) -> Path:
    copy = toy.with_name("damaged.onnx")
    copy.write_bytes(content)
    Path(f"{copy}.json").write_text(json.dumps(toy_description()), encoding="utf-8")
    return copy


@pytest.mark.parametrize("kept", [0, 1, 1000, -1])
def test_a_voice_that_breaks_off_says_what_to_do(toy: Path, kept: int) -> None:
    with pytest.raises(VoiceModelError, match=rf"damaged\.onnx.*{WHAT_TO_DO}"):
        load_piper(damaged_copy(toy, toy.read_bytes()[:kept]))


@given(place=st.floats(0, 1), damage=st.binary(min_size=DAMAGED_BYTES, max_size=DAMAGED_BYTES))
@example(place=0.0, damage=b"\xff" * DAMAGED_BYTES)  # no protobuf
@example(place=0.03, damage=b"\xff" * DAMAGED_BYTES)  # a name that is no text
def test_a_few_damaged_bytes_are_that_error_or_go_unnoticed(
    toy: Path, place: float, damage: bytes
) -> None:
    whole = toy.read_bytes()
    graph_bytes = len(whole) - sum(
        len(t.raw_data) for t in onnx.load_from_string(whole).graph.initializer
    )
    at = int(place * graph_bytes)  # the weights come last, and any bytes are weights
    try:
        load_piper(damaged_copy(toy, whole[:at] + damage + whole[at + DAMAGED_BYTES :]))
    except VoiceModelError as error:
        assert "damaged.onnx" in str(error)
        assert "\n" not in str(error)


def with_another_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Gahter"


def with_a_lost_weight(model: onnx.ModelProto) -> None:
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "context"))


def with_a_short_embedding(model: onnx.ModelProto) -> None:
    """One that has no row for most phonemes, which shows when it is asked for one."""
    table = next(t for t in model.graph.initializer if t.name == "embedding")
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:2], "embedding"))


@pytest.mark.parametrize(
    "change", [with_another_operator, with_a_lost_weight, with_a_short_embedding]
)
def test_a_graph_that_does_not_run_says_what_to_do(tmp_path: Path, change: Change) -> None:
    model = toy_model()
    change(model)
    with pytest.raises(VoiceModelError, match=rf"toy\.onnx.*{WHAT_TO_DO}"):
        load_piper(install(tmp_path, model, toy_description()))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "[" * 100_000, "\xff"],
    ids=["empty", "broken", "list", "deep", "0xff"],
)
def test_a_description_that_is_no_json_object_is_named(toy: Path, content: str) -> None:
    copy = damaged_copy(toy, toy.read_bytes())
    Path(f"{copy}.json").write_text(content, encoding="latin-1")
    with pytest.raises(VoiceModelError, match=rf"damaged\.onnx\.json.*{WHAT_TO_DO}"):
        load_piper(copy)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: d.pop("audio"), id="incomplete"),
        pytest.param(lambda d: d.update(phoneme_type="text"), id="other phonemes"),
        pytest.param(lambda d: d.update(phoneme_id_map=[]), id="damaged"),
        pytest.param(lambda d: d.update(phoneme_id_map={"a": [1]}), id="no framing"),
        pytest.param(lambda d: d.update(phoneme_id_map={"_^$": "x"}), id="no numbers"),
        pytest.param(lambda d: d.update(audio={"sample_rate": 0}), id="no rate"),
    ],
)
def test_a_description_that_cannot_be_used_is_named(
    tmp_path: Path, change: Callable[[dict[str, object]], None]
) -> None:
    description = toy_description()
    change(description)
    with pytest.raises(VoiceModelError, match=r"toy\.onnx\.json"):
        load_piper(install(tmp_path, toy_model(), description))


def test_a_language_that_espeak_does_not_know_is_found_at_once(tmp_path: Path) -> None:
    description = toy_description() | {"espeak": {"voice": "no-such-language"}}
    with pytest.raises(VoiceModelError, match="another voice"):
        load_piper(install(tmp_path, toy_model(), description))


def with_speakers(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("sid", TensorProto.INT64, [1]))


def without_decoder(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = node.name.replace("/dec/", "/vocoder/")


def without_durations(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.op_type = node.op_type.replace("Ceil", "Round")


@pytest.mark.parametrize("change", [with_speakers, without_decoder, without_durations])
def test_a_graph_that_cannot_be_cut_is_refused(tmp_path: Path, change: Change) -> None:
    model = toy_model()
    change(model)
    with pytest.raises(VoiceModelError, match="choose"):
        load_piper(install(tmp_path, model, toy_description()))


def test_a_missing_gpu_is_a_typed_error(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceUnavailableError, match="cpu"):
        load_piper(toy, device="cuda")
