"""Drafters: what proposes the tokens that the target verifies."""

from __future__ import annotations

from dspark.drafters.branched import branched
from dspark.drafters.draft_model import DraftModel
from dspark.drafters.dspark import DSparkDrafter
from dspark.drafters.layer_skip import LayerSkipDrafter
from dspark.drafters.prompt_lookup import PromptLookupDrafter
from dspark.drafters.protocol import Anchor, Branching, Draft, Drafter
from dspark.drafters.registry import load_drafter
from dspark.drafters.shipped import shipped_drafter

__all__ = [
    "Anchor",
    "Branching",
    "DSparkDrafter",
    "Draft",
    "DraftModel",
    "Drafter",
    "LayerSkipDrafter",
    "PromptLookupDrafter",
    "branched",
    "load_drafter",
    "shipped_drafter",
]
