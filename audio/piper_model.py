"""A Piper voice's files: what they say of the voice, and its graph cut in two.

Piper voices are VITS models exported as one ONNX graph, which goes from phonemes to sound.
The decoder at its end is a stack of convolutions over a latent of one frame per 256 samples: the
sound at each place depends on a few frames around it, so it can be made in windows.  The cut is
found by structure, whatever the exporter called its tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from audio.errors import DeviceUnavailableError, VoiceModelError, brief

if TYPE_CHECKING:
    import onnx

ENCODER_INPUTS = ("input", "input_lengths", "scales")
"""Phoneme ids `[1, ids]`, their number `[1]`, and `[noise, length, duration noise]`."""

MEND = "check it with `assistant models verify`, then install it again or name another voice"
"""What a user can do about a voice's file that is not as it should be."""

_FRAMING = {"_", "^", "$"}
"""What every text is given besides its phonemes: blanks, a beginning and an end."""
_NOISE_FRAMES = 1024
_NOISE_CHANNELS = 256  # more than the latent of any voice
_NOISE_SEED = 0


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Let whatever fails here be the one error about this voice that says what to do.

    Raises `VoiceModelError`; a missing device is no fault of the voice.
    """
    try:
        yield
    except (VoiceModelError, DeviceUnavailableError):
        raise
    except Exception as error:  # protobuf's, ONNX's and ONNX Runtime's own share no base class
        raise VoiceModelError(
            f"the voice {path} is damaged or of another kind ({brief(error)}); {MEND}"
        ) from error


@dataclass(frozen=True, slots=True)
class PiperDescription:
    """What a voice's `.onnx.json` says of it."""

    sample_rate_hz: int
    language: str
    phoneme_ids: dict[str, tuple[int, ...]]
    noise_scale: float
    length_scale: float
    duration_noise_scale: float

    @staticmethod
    def read(model: Path) -> PiperDescription:
        """Read what lies beside `model`; raises `VoiceModelError`."""
        path = Path(f"{model}.json")
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            if tree.get("phoneme_type", "espeak") != "espeak":
                raise VoiceModelError(
                    f"{path.name} describes a voice with its own phonemes "
                    f"({tree['phoneme_type']}); choose one that uses eSpeak's"
                )
            inference = tree.get("inference", {})
            sample_rate_hz = int(tree["audio"]["sample_rate"])
            phoneme_ids = {
                phoneme: tuple(int(number) for number in ids)
                for phoneme, ids in tree["phoneme_id_map"].items()
            }
            if sample_rate_hz <= 0 or not phoneme_ids.keys() >= _FRAMING:
                raise ValueError("no sample rate, or not all of the phonemes _, ^ and $")
            return PiperDescription(
                sample_rate_hz=sample_rate_hz,
                language=str(tree["espeak"]["voice"]),
                phoneme_ids=phoneme_ids,
                noise_scale=float(inference.get("noise_scale", 0.667)),
                length_scale=float(inference.get("length_scale", 1.0)),
                duration_noise_scale=float(inference.get("noise_w", 0.8)),
            )
        except OSError as error:
            raise VoiceModelError(
                f"the voice's description {path} cannot be read: {error.strerror}; "
                "it comes with the voice, install the two together"
            ) from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise VoiceModelError(
                f"the voice's description {path} cannot be used "
                f"({type(error).__name__}: {brief(error)}); {MEND}"
            ) from error


@dataclass(frozen=True, slots=True)
class PiperGraphs:
    """The two halves, ready for an inference session.

    `encoder`: `ENCODER_INPUTS` → latent `[1, channels, frames]`, frames of each id `[1, 1, ids]`.
    `decoder`: the latent → samples `[1, 1, 1, frames * hop]`.
    """

    encoder: bytes
    decoder: bytes


def cut_voice(path: Path) -> PiperGraphs:
    """Cut a voice at the input of its decoder.

    The random numbers inside the model become a fixed table: the same text always sounds the
    same, and a chunk that is made again can go on where the first one stopped.

    Raises `VoiceModelError` if the file is missing or is not a Piper voice with one speaker.
    """
    with loading(path):
        model = _read(path)
        return _cut(path, model)


def _read(path: Path) -> onnx.ModelProto:
    import onnx  # takes as long to import as everything else together

    try:
        return onnx.load(str(path))
    except OSError as error:
        raise VoiceModelError(
            f"the voice {path} cannot be read: {error.strerror}; install it or configure another"
        ) from error


def _cut(path: Path, model: onnx.ModelProto) -> PiperGraphs:
    import onnx.utils
    from onnx import TensorProto, helper

    if not model.graph.node:
        raise ValueError("it holds no graph")
    inputs = {tensor.name for tensor in model.graph.input}
    if inputs != set(ENCODER_INPUTS):
        raise VoiceModelError(
            f"the voice {path} takes {sorted(inputs)} instead of {sorted(ENCODER_INPUTS)}; "
            "choose a Piper voice with a single speaker"
        )
    nodes = model.graph.node
    decoder_convs = [n for n in nodes if n.op_type == "Conv" and n.name.startswith("/dec/")]
    durations = [n.output[0] for n in nodes if n.op_type == "Ceil"]
    if not decoder_convs or len(durations) != 1:
        raise VoiceModelError(
            f"the graph of {path} has no decoder to cut off, or no durations; "
            "choose a voice exported by Piper itself"
        )
    latent, weights = decoder_convs[0].input[:2]
    channels = next(t.dims[1] for t in model.graph.initializer if t.name == weights)
    model.graph.value_info.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in ((latent, [1, channels, None]), (durations[0], [1, 1, None]))
    )
    extractor = onnx.utils.Extractor(model)
    encoder = extractor.extract_model(list(ENCODER_INPUTS), [latent, durations[0]])
    decoder = extractor.extract_model([latent], [model.graph.output[0].name])
    _fix_noise(encoder)
    return PiperGraphs(encoder.SerializeToString(), decoder.SerializeToString())


def _fix_noise(model: onnx.ModelProto) -> None:
    """Let every random tensor `[1, channels, time]` be read from a table that repeats in time."""
    from onnx import helper, numpy_helper

    table = np.random.default_rng(_NOISE_SEED).standard_normal(
        (1, _NOISE_CHANNELS, _NOISE_FRAMES), dtype=np.float32
    )
    constants: dict[str, NDArray[np.generic]] = {
        "noise": table,
        "noise_frames": np.array(_NOISE_FRAMES, dtype=np.int64),
        "noise_0": np.array(0, dtype=np.int64),
        "noise_1": np.array(1, dtype=np.int64),
        "noise_2": np.array(2, dtype=np.int64),
        "noise_[0]": np.array([0], dtype=np.int64),
        "noise_[1]": np.array([1], dtype=np.int64),
        "noise_[2]": np.array([2], dtype=np.int64),
    }
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    nodes = []
    for node in model.graph.node:
        if node.op_type != "RandomNormalLike":
            nodes.append(node)
            continue
        own = node.output[0]
        shape, time, steps, wrapped, channels, long = (
            f"{own}/{part}" for part in ("shape", "time", "steps", "wrapped", "channels", "long")
        )
        nodes += [
            helper.make_node("Shape", [node.input[0]], [shape]),
            helper.make_node("Gather", [shape, "noise_2"], [time]),
            helper.make_node("Range", ["noise_0", time, "noise_1"], [steps]),
            helper.make_node("Mod", [steps, "noise_frames"], [wrapped]),
            helper.make_node("Gather", ["noise", wrapped], [long], axis=2),
            helper.make_node("Slice", [shape, "noise_[1]", "noise_[2]"], [channels]),
            helper.make_node("Slice", [long, "noise_[0]", channels, "noise_[1]"], [own]),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
