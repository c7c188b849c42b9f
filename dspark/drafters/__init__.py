"""Drafters: what proposes the tokens that the target verifies."""

from __future__ import annotations

from dspark.drafters.dspark import DSparkDrafter, load_drafter
from dspark.drafters.protocol import Anchor, Draft, Drafter

__all__ = ["Anchor", "DSparkDrafter", "Draft", "Drafter", "load_drafter"]
