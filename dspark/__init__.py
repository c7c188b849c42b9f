"""Lossless speculative decoding: tokens in, verified tokens out.

What is named here is imported when it is first asked for: torch alone takes seconds, and a command
line that only prints its help needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dspark.drafters import Drafter, DSparkDrafter, load_drafter
    from dspark.engine import Engine
    from dspark.errors import (
        CheckpointError,
        CheckpointNotFound,
        DrafterMismatch,
        DSparkError,
        EngineClosed,
        EngineFull,
        GenerationFailed,
        InvalidRequest,
        InvalidSampling,
        MissingTensor,
        PromptTooLong,
        TokenizerError,
        UnsupportedArchitecture,
        WrongShape,
    )
    from dspark.generation import FinishReason, Generation, Priority, Result, Step
    from dspark.linear import fastest_dtype
    from dspark.metrics import EngineMetrics
    from dspark.random_weights import random_drafter, random_target
    from dspark.sampling import SamplingParams
    from dspark.scheduler import Scheduler
    from dspark.step_cost import StepCostTable, profiled_cost
    from dspark.target import Target, load_target
    from dspark.tokenizer import Detokenizer, Tokenizer
    from dspark.tree import TreeShape

__all__ = [
    "CheckpointError",
    "CheckpointNotFound",
    "DSparkDrafter",
    "DSparkError",
    "Detokenizer",
    "Drafter",
    "DrafterMismatch",
    "Engine",
    "EngineClosed",
    "EngineFull",
    "EngineMetrics",
    "FinishReason",
    "Generation",
    "GenerationFailed",
    "InvalidRequest",
    "InvalidSampling",
    "MissingTensor",
    "Priority",
    "PromptTooLong",
    "Result",
    "SamplingParams",
    "Scheduler",
    "Step",
    "StepCostTable",
    "Target",
    "Tokenizer",
    "TokenizerError",
    "TreeShape",
    "UnsupportedArchitecture",
    "WrongShape",
    "fastest_dtype",
    "load_drafter",
    "load_target",
    "profiled_cost",
    "random_drafter",
    "random_target",
]

_HOMES = {
    "drafters": "Drafter DSparkDrafter load_drafter",
    "engine": "Engine",
    "generation": "FinishReason Generation Priority Result Step",
    "linear": "fastest_dtype",
    "metrics": "EngineMetrics",
    "random_weights": "random_drafter random_target",
    "sampling": "SamplingParams",
    "scheduler": "Scheduler",
    "step_cost": "StepCostTable profiled_cost",
    "target": "Target load_target",
    "tokenizer": "Detokenizer Tokenizer",
    "tree": "TreeShape",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'dspark' has no attribute {name!r}")
    value: object = getattr(import_module(f"dspark.{_HOME_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
