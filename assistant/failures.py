"""What went wrong in a stage, in words for the client; the log has the rest."""

from __future__ import annotations

import logging

from assistant.errors import AssistantError
from assistant.items import Failure
from audio.errors import AudioError
from dspark import DSparkError

logger = logging.getLogger(__name__)


def failure_of(stage: str, error: Exception) -> Failure:
    """Log what failed; what was not foreseen is not the client's business."""
    if isinstance(error, AssistantError | AudioError | DSparkError):
        logger.warning("%s failed: %s", stage, error)
        return Failure(f"{stage}_failed", str(error))
    logger.error("%s failed unexpectedly", stage, exc_info=error)
    return Failure(f"{stage}_failed", "The server could not do this; its log says why.")
