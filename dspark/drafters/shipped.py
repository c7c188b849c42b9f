"""The drafters that come with the package: trained for the embedded models."""

from __future__ import annotations

from pathlib import Path

from dspark.checkpoint import read_json
from dspark.target import Target

_FOLDER = Path(__file__).parent / "shipped_weights"


def shipped_drafter(target: Target) -> Path | None:
    """The folder of the drafter that was trained for this target; None if there is none.

    A model of the same shape and vocabulary counts as the same: answers never depend on the
    drafter, only their speed does.
    """
    shape = target.decoder.config
    wanted = (shape.layers, shape.hidden_size, shape.vocab_size, target.stop_token_ids)
    for folder in sorted(_FOLDER.glob("*")):
        if not (folder / "config.json").is_file():
            continue
        config = read_json(folder / "config.json")
        numbers = [config.get(key) for key in ("num_target_layers", "hidden_size", "vocab_size")]
        stops = config.get("target_stop_token_ids")
        if isinstance(stops, list) and (*numbers, frozenset(stops)) == wanted:
            return folder
    return None
