"""Judging all sequences at once gives, number for number, what judging one after the other does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark import SamplingParams, device_sampling
from dspark.device_verification import BatchVerification
from dspark.drafters import Draft
from dspark.graphs import Graphs
from dspark.sampling import Sampler
from dspark.static_shapes import StaticShapes
from dspark.verification import Verdict, verify
from tests.unit.dspark.tape import Tape

VOCAB = 12
BLOCK = 4
ROWS = 3
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(temperature=1.4, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.3),
]
# The 99.9 % quantile of chi-square by degrees of freedom, after Wilson and Hilferty.
QUANTILE = 3.09


def critical_value(degrees: int) -> float:
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + QUANTILE * spread**0.5) ** 3


def batch_verification(graphs: Graphs | None = None) -> BatchVerification:
    shapes = StaticShapes.of(sequences=ROWS, tokens=BLOCK + 1, positions=1)
    return BatchVerification(shapes, VOCAB, torch.device("cpu"), graphs or Graphs())


class Case:
    """One sequence with a draft that the drafter drew from logits near the target's."""

    def __init__(self, params: SamplingParams, scheduled: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = 1.5 * torch.randn((scheduled + 1, VOCAB), generator=generator)
        noise = 0.7 * torch.randn((BLOCK, VOCAB), generator=generator)
        near = torch.cat((self.logits, noise))[:BLOCK] + noise
        self.sampler = Sampler(params, (1, 2), [3], random.Random(seed))
        self.tokens: list[int] = []
        drawn = []
        for row in near:
            choice = self.sampler.choose(row, self.tokens)
            self.tokens.append(choice.token)
            drawn.append(choice.distribution)
        distributions = tuple(each for each in drawn if each is not None)
        self.draft = Draft(tuple(self.tokens), distributions, (0.5,) * BLOCK)

    def alone(self) -> tuple[Verdict, object]:
        """What `verify` says, and the state it leaves the random numbers in."""
        state = self.sampler.rng.getstate()
        verdict = verify(self.logits, self.draft, self.sampler)
        after = self.sampler.rng.getstate()
        self.sampler.rng.setstate(state)
        return verdict, after


def judge(verification: BatchVerification, cases: Sequence[Case]) -> list[Verdict | None]:
    return verification(
        [case.logits for case in cases],
        [case.draft for case in cases],
        [case.sampler for case in cases],
    )


cases = st.builds(Case, st.sampled_from(SETTINGS), st.integers(0, BLOCK), st.integers(0, 10**6))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(cases, min_size=1, max_size=ROWS), min_size=1, max_size=3))
def test_verdicts_and_random_numbers_are_those_of_one_after_the_other(
    steps: list[list[Case]],
) -> None:
    for verification in (batch_verification(), batch_verification(Graphs(Tape()))):
        for step in steps:
            states = [case.sampler.rng.getstate() for case in step]
            expected = [case.alone() for case in step]
            assert judge(verification, step) == [verdict for verdict, _ in expected]
            for case, (_, after), before in zip(step, expected, states, strict=True):
                assert case.sampler.rng.getstate() == after
                case.sampler.rng.setstate(before)


def test_every_length_of_acceptance_is_met() -> None:
    """The comparison above compares something: drafts fall at every place."""
    verification = batch_verification()
    accepted = Counter(
        verdict.accepted
        for seed in range(80)
        for verdict in judge(verification, [Case(SETTINGS[1], BLOCK, seed)])
        if verdict is not None
    )
    assert set(accepted) == set(range(BLOCK + 1))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, repetition_penalty=1.2),
        SamplingParams(logit_bias={4: 2.0}),
    ],
)
def test_requests_that_need_their_history_are_left_to_be_judged_alone(
    params: SamplingParams,
) -> None:
    others = Case(params, 2, 1)
    case = Case(SETTINGS[1], 2, 5)
    expected, _ = case.alone()
    state = others.sampler.rng.getstate()
    assert judge(batch_verification(), [others, case]) == [None, expected]
    assert others.sampler.rng.getstate() == state


@pytest.mark.parametrize("scheduled", [0, 3])
def test_a_nucleus_that_is_too_large_is_left_to_be_judged_alone(
    scheduled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_sampling, "CANDIDATES", 2)
    case = Case(SamplingParams(temperature=2.0, top_p=0.95), scheduled, 5)
    state = case.sampler.rng.getstate()
    assert judge(batch_verification(), [case]) == [None]
    assert case.sampler.rng.getstate() == state


def test_logits_that_are_no_numbers_are_left_to_be_judged_alone() -> None:
    broken, sound = Case(SETTINGS[1], 1, 1), Case(SETTINGS[1], 1, 2)
    broken.logits.fill_(float("nan"))
    expected, _ = sound.alone()
    assert judge(batch_verification(), [broken, sound]) == [None, expected]


def test_preparing_records_every_shape_and_kind() -> None:
    tape = Tape()
    verification = batch_verification(Graphs(tape))
    verification.prepare()
    prepared = tape.recorded
    for count in range(BLOCK + 1):
        judge(verification, [Case(each, count, count) for each in SETTINGS[:ROWS]])
    assert tape.recorded == prepared


def test_the_first_token_is_distributed_as_the_targets() -> None:
    """Chi-square over many drafts, whatever the drafter thinks."""
    params = SamplingParams(temperature=1.0, top_p=0.9)
    rng = random.Random(11)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((2, VOCAB), generator=generator)
    drafters = torch.randn(VOCAB, generator=generator)
    verification = batch_verification()
    counts: Counter[int] = Counter()
    draws = 3000
    for _ in range(draws // ROWS):
        samplers = [Sampler(params, (), [], random.Random(rng.random())) for _ in range(ROWS)]
        choices = [sampler.choose(drafters) for sampler in samplers]
        drafts = [
            Draft((choice.token,), (choice.distribution,), (0.5,))
            for choice in choices
            if choice.distribution is not None
        ]
        for verdict, draft in zip(
            verification([logits] * ROWS, drafts, samplers), drafts, strict=True
        ):
            assert verdict is not None
            counts[draft.tokens[0] if verdict.accepted else verdict.token] += 1
    exact = Sampler(params, (), [], rng).distribution(logits[0])
    assert all(exact[token] > 0 for token in counts)
    possible = [token for token in range(VOCAB) if exact[token] > 0]
    expected = {token: draws * float(exact[token]) for token in possible}
    statistic = sum((counts[token] - expected[token]) ** 2 / expected[token] for token in possible)
    assert statistic < critical_value(len(possible) - 1)
