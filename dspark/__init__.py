"""Lossless speculative decoding: tokens in, verified tokens out."""

from __future__ import annotations

from dspark.engine import Engine
from dspark.errors import (
    CheckpointError,
    CheckpointNotFound,
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
from dspark.target import Target, load_target
from dspark.tokenizer import Detokenizer, Tokenizer

__all__ = [
    "CheckpointError",
    "CheckpointNotFound",
    "DSparkError",
    "Detokenizer",
    "Engine",
    "EngineClosed",
    "EngineFull",
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
    "Step",
    "Target",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedArchitecture",
    "WrongShape",
    "load_target",
]
