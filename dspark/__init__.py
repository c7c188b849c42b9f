"""Lossless speculative decoding: tokens in, verified tokens out."""

from __future__ import annotations

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
    "UnsupportedArchitecture",
    "WrongShape",
    "fastest_dtype",
    "load_drafter",
    "load_target",
    "profiled_cost",
    "random_drafter",
    "random_target",
]
