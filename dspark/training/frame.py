"""A target without its layers: what a drafter shares with it, and what its features are read by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from dspark.checkpoint import Checkpoint, Weights
from dspark.decoder import Decoder, DecoderConfig
from dspark.linear import PRECISIONS
from dspark.target import Target


def load_frame(folder: Path, device: torch.device | str, dtype: str = "float32") -> Target:
    """Load embedding, final norm and head alone, as tensors that gradients can pass through.

    Where features are stored nothing asks the layers any more. `load_target` makes tensors for
    inference, of which autograd keeps none.
    """
    checkpoint = Checkpoint(folder)
    config = DecoderConfig.from_config(checkpoint.config)
    weights = Weights(checkpoint, PRECISIONS[dtype], torch.device(device))
    decoder = Decoder(replace(config, layers=0), weights)
    decoder.config = config  # drafters are checked against the whole target's shape
    return Target(folder, decoder, torch.get_num_threads())
