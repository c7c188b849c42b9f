"""The floor under a plain step: every weight is read from memory once for each token."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch
from safetensors import safe_open

from dspark.bench.measurement import Machine
from dspark.checkpoint import Checkpoint
from dspark.decoder import DecoderConfig
from dspark.int4 import GROUP
from dspark.linear import PRECISIONS
from dspark.step_cost import processor_name

_INTEGER_BITS = {"int8": 8, "int4": 4 + 32 / GROUP}  # with a group's scale and offset
_COPIED_BYTES = 1 << 28  # far more than any cache holds
_COPIES = 5


def this_machine(device: str, threads: int) -> Machine:
    """What is measured on; takes a second."""
    on_gpu = device.startswith("cuda")
    return Machine(
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        device=str(torch.cuda.get_device_name(device)) if on_gpu else device,
        torch=torch.__version__,
        bandwidth_gb_s=copy_bandwidth(device, threads) / 1e9,
    )


def copy_bandwidth(device: str, threads: int) -> float:
    """Bytes a second that are read and written when memory is copied; the best of a few copies."""
    torch.set_num_threads(threads)
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)

    def seconds() -> float:
        begun = time.perf_counter()
        destination.copy_(source)
        int(destination[-1])  # a GPU is waited for
        return time.perf_counter() - begun

    seconds()  # the first touches the memory
    return 2 * _COPIED_BYTES / min(seconds() for _ in range(_COPIES))


def bytes_per_token(checkpoint: Checkpoint, dtype: str) -> int:
    """How large the weights are that a step multiplies with, in one of `PRECISIONS`.

    These are all but an embedding that is not also the head, or a head that is not used.
    """
    precision = PRECISIONS[dtype]
    head, unused = "lm_head.weight", "model.embed_tokens.weight"
    if checkpoint.config.get("tie_word_embeddings", False):
        head, unused = unused, head
    bits = {"float": 8 * precision.activations.itemsize, **_INTEGER_BITS}
    return round(
        sum(
            math.prod(shape) * bits[precision.head if name == head else precision.layers] / 8
            for name, shape in _shapes(checkpoint.folder).items()
            if name != unused
        )
    )


def bytes_of_shape(config: DecoderConfig, dtype: str) -> int:
    """The same for a model of which there is only the configuration; norms and biases, which are
    next to nothing, left out."""
    precision = PRECISIONS[dtype]
    bits = {"float": 8 * precision.activations.itemsize, **_INTEGER_BITS}
    hidden = config.hidden_size
    layer = hidden * (2 * config.attention_width + 2 * config.kv_width)
    layer += 3 * hidden * config.intermediate_size
    head = hidden * config.vocab_size
    return round(
        config.layers * layer * bits[precision.layers] / 8 + head * bits[precision.head] / 8
    )


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
    return shapes
