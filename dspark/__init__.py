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
from dspark.sampling import SamplingParams
from dspark.scheduler import PrefixScheduler, Scheduler, StepCosts, WholeBlocks
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
    "FinishReason",
    "Generation",
    "GenerationFailed",
    "InvalidRequest",
    "InvalidSampling",
    "MissingTensor",
    "PrefixScheduler",
    "Priority",
    "PromptTooLong",
    "Result",
    "SamplingParams",
    "Scheduler",
    "Step",
    "StepCosts",
    "Target",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedArchitecture",
    "WholeBlocks",
    "WrongShape",
    "load_drafter",
    "load_target",
]
