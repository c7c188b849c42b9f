"""Prompts, what they are answered with, and what plain recomputation says the answer is."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dspark import Generation, SamplingParams, Target
from dspark.target import Span

PROMPTS = [[5, 9, 2, 33, 60], [7] * 23, [40, 3], list(range(10, 59))]


def greedily(target: Target, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """The answer, everything computed anew for each token."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(new_tokens):
            cache = target.new_cache(1, len(tokens))
            logits = target.forward([Span(0, 0, tokens)], cache).logits[0]
            tokens.append(int(logits[-1].argmax()))
    answer = tokens[len(prompt) :]
    stops = [answer.index(stop) for stop in target.stop_token_ids if stop in answer]
    return answer[: min(stops, default=len(answer))]


def answer(generation: Generation) -> list[int]:
    """All of its tokens."""
    return [token for step in generation for token in step.committed]


def longest(tokens: int = 100) -> SamplingParams:
    """Never stops by itself before `tokens`."""
    return SamplingParams(max_new_tokens=tokens, logit_bias={1: float("-inf")})
