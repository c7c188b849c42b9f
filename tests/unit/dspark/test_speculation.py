"""With a drafter the engine gives what it gives without one, in fewer steps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark import (
    Engine,
    InvalidRequest,
    Priority,
    SamplingParams,
    Target,
    load_drafter,
    load_target,
)
from dspark.drafters import Anchor, Draft, Drafter
from dspark.kv_cache import KvCache
from dspark.scheduler import SCHEDULES
from tests.unit.dspark.conftest import HEADS

VOCAB = 64
BLOCK = 4
PROMPTS = [[5, 9, 2, 33, 60], [7] * 23, [40, 3], list(range(10, 59))]
ANSWER = 40
Write = Callable[..., Path]


def longest(tokens: int = ANSWER, **settings: Any) -> SamplingParams:
    """Never stops by itself before `tokens`."""
    return SamplingParams(max_new_tokens=tokens, logit_bias={1: float("-inf")}, **settings)


class Oracle:
    """A drafter that knows what the target will say, and is wrong as often as it is told.

    Attributes:
        drafts: how many it has made.
    """

    taps: Sequence[int] = ()
    block_size = BLOCK

    def __init__(self, answers: Sequence[Sequence[int]], wrong: float) -> None:
        self._known = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, answers, strict=True)]
        self._wrong = wrong
        self._random = random.Random(4)
        self.drafts = 0
        self.fails = False

    def new_cache(self, slots: int, context_tokens: int) -> KvCache | None:
        return None

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Any) -> None:
        raise AssertionError("it asked for no features")

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        if self.fails:
            raise RuntimeError("a drafter that fails")
        self.drafts += 1
        return [self._guess(anchor) for anchor in anchors]

    def _guess(self, anchor: Anchor) -> Draft:
        tokens_so_far = [*anchor.sampler.prompt, *anchor.sampler.answer]
        length = len(tokens_so_far)
        known = next((each for each in self._known if each[:length] == tokens_so_far), [])
        after = known[length:][:BLOCK]
        tokens = [
            token if self._random.random() >= self._wrong else (token + 1) % VOCAB
            for token in after
        ]
        tokens += [3] * (BLOCK - len(tokens))
        return Draft(tuple(tokens), confidence=(1 - self._wrong,) * BLOCK)


@pytest.fixture(params=["float32", "int8"])
def exact_target(request: pytest.FixtureRequest, tiny_folder: Path) -> Target:
    return load_target(tiny_folder, dtype=request.param)


def plain_answers(target: Target, params: SamplingParams) -> list[tuple[int, ...]]:
    with Engine(target, context_tokens=128) as engine:
        return [engine.generate(prompt, params).token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_greedy_answers_are_those_of_plain_decoding(exact_target: Target, wrong: float) -> None:
    expected = plain_answers(exact_target, longest())
    oracle = Oracle(expected, wrong)
    with Engine(exact_target, oracle, context_tokens=128, prefill_tokens=8) as engine:
        generations = [engine.submit(prompt, longest()) for prompt in PROMPTS]
        steps = [list(generation) for generation in generations]
    answers = [tuple(t for step in each for t in step.committed) for each in steps]
    assert answers == expected
    for each in steps:
        assert all(len(step.committed) == step.accepted + 1 for step in each)
    if wrong == 0:
        whole_blocks = -(-ANSWER // (BLOCK + 1))
        # A step that computes a prompt's end drafts only if one token was all that was left.
        assert all(len(each) in (whole_blocks, 1 + whole_blocks) for each in steps)
    if wrong == 1:
        assert all(len(each) == ANSWER for each in steps)


@pytest.mark.parametrize("head", HEADS)
def test_a_dspark_drafter_changes_no_greedy_answer(
    head: str, exact_target: Target, write_drafter: Write
) -> None:
    penalised = longest(repetition_penalty=1.3, presence_penalty=0.5)
    drafter = load_drafter(write_drafter({"markov_head_type": head}), exact_target)
    for params in (longest(), penalised):
        expected = plain_answers(exact_target, params)
        with Engine(exact_target, drafter, context_tokens=128, prefill_tokens=8) as engine:
            together = [engine.submit(prompt, params) for prompt in PROMPTS]
            found = [tuple(t for s in generation for t in s.committed) for generation in together]
            again = engine.generate(PROMPTS[3], params).token_ids
        assert found == expected
        assert again == expected[3]


class Uniform(Oracle):
    """Draws every token with the same probability from all: a drafter that knows nothing."""

    def _guess(self, anchor: Anchor) -> Draft:
        tokens: list[int] = []
        distributions = []
        for _ in range(BLOCK):
            choice = anchor.sampler.choose(torch.zeros(VOCAB), tokens)
            assert choice.distribution is not None
            tokens.append(choice.token)
            distributions.append(choice.distribution)
        return Draft(tuple(tokens), tuple(distributions), (0.5,) * BLOCK)


def test_sampled_answers_are_distributed_as_plain_ones(tiny_folder: Path) -> None:
    """Two tokens after the first, on the few tokens that a bias leaves possible."""
    target = load_target(tiny_folder)
    kept = (4, 5, 6)
    params = {"temperature": 3.0, "max_new_tokens": 3}
    bias = {token: float("-inf") for token in range(VOCAB) if token not in kept}
    counts = {}
    for name, drafter in (("plain", None), ("drafted", Uniform([()] * len(PROMPTS), 0))):
        with Engine(target, drafter, context_tokens=128) as engine:
            counts[name] = Counter(
                engine.generate(
                    PROMPTS[0], SamplingParams(**params, logit_bias=bias, seed=seed)
                ).token_ids
                for seed in range(1200)
            )
    statistic = degrees = 0.0
    for answer in counts["plain"] | counts["drafted"]:
        plain, drafted = (counts[name][answer] for name in ("plain", "drafted"))
        if plain + drafted >= 10:
            statistic += (plain - drafted) ** 2 / (plain + drafted)
            degrees += 1
    assert degrees >= 8, "the settings leave too few answers to compare"
    critical = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert statistic < critical  # chi-square of two samples, p = 0.001


@pytest.fixture
def oracle(target: Target) -> Oracle:
    return Oracle(plain_answers(target, longest()), wrong=0.0)


@pytest.fixture
def engine(target: Target, oracle: Oracle) -> Iterator[Engine]:
    with Engine(target, oracle, context_tokens=128) as engine:
        yield engine


def test_a_step_tells_what_was_drafted_verified_and_accepted(engine: Engine) -> None:
    first, second, *_ = engine.generate(PROMPTS[0], longest()).steps
    assert (first.anchor, first.draft, first.scheduled, first.accepted) == (60, (), 0, 0)
    assert second.anchor == first.committed[-1]
    assert second.committed[:BLOCK] == second.draft
    assert (second.scheduled, second.accepted) == (BLOCK, BLOCK)
    assert second.confidence == (1.0,) * BLOCK


@pytest.mark.parametrize("tokens", range(1, 9))
def test_an_answer_is_never_longer_than_its_limit(engine: Engine, tokens: int) -> None:
    whole = engine.generate(PROMPTS[0], longest()).token_ids
    result = engine.generate(PROMPTS[0], longest(tokens))
    assert (result.token_ids, result.finish_reason) == (whole[:tokens], "length")


def test_no_draft_reaches_beyond_the_context(target: Target, oracle: Oracle) -> None:
    for context in range(len(PROMPTS[0]) + 1, len(PROMPTS[0]) + 9):
        with Engine(target, oracle, context_tokens=context) as engine:
            assert len(engine.generate(PROMPTS[0], longest()).token_ids) == context - 5


def test_a_stop_token_inside_a_draft_ends_the_answer_there(engine: Engine) -> None:
    whole = engine.generate(PROMPTS[0], longest()).token_ids
    stop = next(token for token in whole[2:] if token not in whole[:2])
    place = whole.index(stop)
    params = longest(stop_token_ids=frozenset({stop}))
    result = engine.generate(PROMPTS[0], params)
    assert (result.token_ids, result.finish_reason) == (whole[:place], "stop")


def test_a_preempted_request_drafts_on_where_it_was(
    exact_target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter(), exact_target)
    expected = plain_answers(exact_target, longest())
    with Engine(exact_target, drafter, slots=1, context_tokens=128) as engine:
        guess = engine.submit(PROMPTS[0], longest(), priority=Priority.SPECULATIVE)
        steps = iter(guess)
        started = [*next(steps).committed]
        confirmed = engine.submit(PROMPTS[1], longest())
        assert tuple(t for step in confirmed for t in step.committed) == expected[1]
        assert (*started, *(t for step in steps for t in step.committed)) == expected[0]


def test_a_failing_drafter_costs_nobody_an_answer(engine: Engine, oracle: Oracle) -> None:
    expected = engine.generate(PROMPTS[0], longest()).token_ids
    oracle.fails = True
    result = engine.generate(PROMPTS[0], longest())
    assert result.token_ids == expected
    assert not any(step.draft for step in result.steps)
    oracle.fails = False
    assert any(step.draft for step in engine.generate(PROMPTS[0], longest()).steps)


def test_off_drafts_nothing(target: Target, oracle: Oracle) -> None:
    with Engine(target, oracle, "off", context_tokens=128) as engine:
        engine.generate(PROMPTS[0], longest())
    assert oracle.drafts == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_answers_of_plain_decoding(
    schedule: str,
    target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))  # where costs are kept
    expected = plain_answers(target, longest())
    half_right = Oracle(expected, wrong=0.5)
    with Engine(target, half_right, schedule, context_tokens=128) as engine:
        together = [engine.submit(prompt, longest()) for prompt in PROMPTS]
        assert [tuple(t for step in g for t in step.committed) for g in together] == expected


def test_a_threshold_is_the_engines_to_set(target: Target) -> None:
    expected = plain_answers(target, longest())
    doubtful = Oracle(expected, wrong=0.3)  # and says so: confidences of 0.7
    for threshold, verified in ((0.71, 0), (0.5, 1), (0.4, 2), (0.0, BLOCK)):
        with Engine(
            target, doubtful, "threshold", confidence_threshold=threshold, context_tokens=128
        ) as engine:
            second = engine.generate(PROMPTS[0], longest()).steps[1]
        assert (len(second.draft), second.scheduled) == (BLOCK, verified)


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{"schedule": "fastest"}, {"schedule": "threshold", "confidence_threshold": 1.5}],
)
def test_a_schedule_that_is_none_is_refused_even_if_nothing_is_drafted(
    drafted: bool, settings: dict[str, Any], target: Target, oracle: Oracle
) -> None:
    with pytest.raises(InvalidRequest, match="must be"):
        Engine(target, oracle if drafted else None, context_tokens=128, **settings)


def test_the_oracle_is_a_drafter(oracle: Oracle) -> None:
    drafter: Drafter = oracle
    assert drafter.block_size == BLOCK
