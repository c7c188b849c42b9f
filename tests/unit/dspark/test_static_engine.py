"""An engine with static steps answers as one without, request by request, in any company."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dspark import DSparkDrafter, Engine, SamplingParams, Target, load_drafter, load_target, steps
from dspark.drafters import Anchor, Draft
from dspark.graphs import Graphs
from dspark.kv_cache import KvCache
from tests.unit.dspark.tape import Tape

Write = Callable[..., Path]
VOCAB = 64
CONTEXT = 128
PROMPTS = [[5, 9, 2, 33, 60], [7] * 23, [40, 3], list(range(10, 59))]
ANSWER = 30


def longest(tokens: int = ANSWER, **settings: Any) -> SamplingParams:
    """Never stops by itself before `tokens`, by forbidding the stop token."""
    return SamplingParams(max_new_tokens=tokens, logit_bias={1: float("-inf")}, **settings)


MIXTURE = [
    SamplingParams(max_new_tokens=ANSWER),
    SamplingParams(max_new_tokens=ANSWER, temperature=1.0, seed=5),
    SamplingParams(max_new_tokens=ANSWER, temperature=0.9, top_k=30, top_p=0.95, seed=6),
    longest(temperature=1.0, repetition_penalty=1.2, seed=7),
]


@pytest.fixture
def model(tiny_folder: Path) -> Target:
    return load_target(tiny_folder)


@pytest.fixture
def drafter(model: Target, write_drafter: Write) -> DSparkDrafter:
    return load_drafter(write_drafter(), model)


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """From now on static steps are recorded, and replayed."""
    tape = Tape()
    monkeypatch.setattr(steps.Graphs, "on", lambda device: Graphs(tape))
    return tape


def answers(engine: Engine, params: Sequence[SamplingParams]) -> list[list[Any]]:
    """The steps of all prompts, submitted together."""
    generations = [
        engine.submit(prompt, each) for prompt, each in zip(PROMPTS, params, strict=True)
    ]
    return [
        [(step.draft, step.scheduled, step.accepted, step.committed) for step in generation]
        for generation in generations
    ]


def both_ways(
    target: Target, drafter: Any, params: Sequence[SamplingParams], **settings: Any
) -> tuple[list[list[Any]], list[list[Any]]]:
    found = []
    for static in (True, False):
        with Engine(
            target, drafter, context_tokens=CONTEXT, static_steps=static, **settings
        ) as engine:
            found.append(answers(engine, params))
    return found[0], found[1]


@pytest.mark.parametrize("prefill_tokens", [8, 64])
@pytest.mark.parametrize("recorded", [False, True])
def test_every_step_of_a_mixed_batch_is_that_of_an_engine_without(
    recorded: bool,
    prefill_tokens: int,
    model: Target,
    drafter: DSparkDrafter,
    request: pytest.FixtureRequest,
) -> None:
    """Tokens, drafts, and what was accepted, for sampled requests by their seeds too."""
    tape = request.getfixturevalue("tape") if recorded else None
    found, expected = both_ways(model, drafter, MIXTURE, prefill_tokens=prefill_tokens)
    assert found == expected
    if tape is not None:
        assert tape.replayed > 2 * ANSWER


@pytest.mark.parametrize("slots", [1, 3])
def test_requests_that_wait_for_slots_are_answered_alike(
    slots: int, model: Target, drafter: DSparkDrafter, tape: Tape
) -> None:
    found, expected = both_ways(model, drafter, MIXTURE, slots=slots)
    assert found == expected


def test_plain_decoding_is_that_of_an_engine_without(model: Target, tape: Tape) -> None:
    found, expected = both_ways(model, None, MIXTURE)
    assert found == expected


def test_answers_fill_the_context_to_its_end(
    model: Target, drafter: DSparkDrafter, tape: Tape
) -> None:
    endless = [longest(10 * CONTEXT)] * len(PROMPTS)
    found, expected = both_ways(model, drafter, endless)
    assert found == expected
    for prompt, answer in zip(PROMPTS, found, strict=True):
        assert len(prompt) + sum(len(committed) for *_, committed in answer) == CONTEXT


def test_what_was_computed_for_one_request_serves_the_next(
    model: Target, drafter: DSparkDrafter, tape: Tape
) -> None:
    found = []
    for static in (True, False):
        with Engine(model, drafter, context_tokens=CONTEXT, static_steps=static) as engine:
            first = engine.generate(PROMPTS[3], longest()).token_ids
            longer = [*PROMPTS[3], *first, 8, 9]
            generation = engine.submit(longer, longest())
            found.append((first, [step.committed for step in generation], generation.cached_tokens))
    assert found[0] == found[1]
    assert found[0][2] > len(PROMPTS[3])


def test_features_left_by_the_last_request_do_not_come_into_the_next_ones_drafts(
    model: Target, drafter: DSparkDrafter
) -> None:
    """Those of a prompt wait for a draft; an answer of one token asks for none."""
    drafts = []
    for before in ([], [[50] * 23]):
        with Engine(
            model, drafter, "full", slots=1, context_tokens=CONTEXT, static_steps=True
        ) as engine:
            for prompt in before:
                engine.generate(prompt, longest(1))
            generation = engine.submit(PROMPTS[0], longest())
            drafts.append([(step.draft, step.confidence) for step in generation])
    assert drafts[0] == drafts[1]


def test_a_cancelled_request_disturbs_no_other(
    model: Target, drafter: DSparkDrafter, tape: Tape
) -> None:
    with Engine(model, drafter, context_tokens=CONTEXT) as engine:
        expected = [engine.generate(prompt, longest()).token_ids for prompt in PROMPTS]
    with Engine(model, drafter, context_tokens=CONTEXT, static_steps=True) as engine:
        generations = [engine.submit(prompt, longest()) for prompt in PROMPTS]
        next(iter(generations[1]))
        generations[1].cancel()
        again = engine.submit(PROMPTS[1], longest())
        for generation, answer in zip(
            [generations[0], again, *generations[2:]],
            [expected[0], expected[1], *expected[2:]],
            strict=True,
        ):
            assert tuple(t for step in generation for t in step.committed) == answer
    assert generations[1].finish_reason == "cancelled"


class Guess:
    """Another kind of drafter, which reads features and needs a cache of its own."""

    taps: Sequence[int] = (0,)
    block_size = 3

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def new_cache(self, slots: int, context_tokens: int) -> KvCache | None:
        return None

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Any) -> None:
        self.seen[slot] += len(features)

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        return [Draft((anchor.token,) * 3, confidence=(0.5,) * 3) for anchor in anchors]


def test_other_drafters_are_shown_their_features(model: Target, tape: Tape) -> None:
    params = [longest() for _ in PROMPTS]
    guesses = Guess(), Guess()
    found = []
    for guess, static in zip(guesses, (True, False), strict=True):
        with Engine(model, guess, context_tokens=CONTEXT, static_steps=static) as engine:
            found.append(answers(engine, params))
    assert found[0] == found[1]
    assert guesses[0].seen == guesses[1].seen
    assert sum(guesses[0].seen.values()) >= sum(map(len, PROMPTS))


def test_shapes_are_recorded_before_the_first_request(
    model: Target, drafter: DSparkDrafter, tape: Tape
) -> None:
    with Engine(model, drafter, context_tokens=CONTEXT, static_steps=True) as engine:
        engine.warm_up()
        prepared = tape.recorded
        answers(engine, MIXTURE)
    assert tape.recorded == prepared


def test_recording_that_fails_changes_no_answer(
    model: Target, drafter: DSparkDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(step: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(steps.Graphs, "on", lambda device: Graphs(refuse))
    found, expected = both_ways(model, drafter, MIXTURE)
    assert found == expected


def test_a_step_that_fails_fails_its_request_alone(
    model: Target, drafter: DSparkDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poisoned token makes every step it is in raise."""
    embed = model.decoder.embed

    def poisoned(token_ids: Any) -> Any:
        if (token_ids == 63).any() and threading.current_thread().name == "dspark-engine":
            raise RuntimeError("a step that fails")
        return embed(token_ids)

    monkeypatch.setattr(model.decoder, "embed", poisoned)
    allowed = SamplingParams(max_new_tokens=8, logit_bias={1: float("-inf"), 63: float("-inf")})
    with Engine(model, context_tokens=CONTEXT, static_steps=True) as engine:
        good = engine.submit([4, 5, 6], allowed)
        bad = engine.submit([63], allowed)
        with pytest.raises(Exception, match="a step that fails"):
            list(bad)
        assert sum(len(step.committed) for step in good) == 8


def test_an_event_loop_may_wait_for_it(model: Target, drafter: DSparkDrafter, tape: Tape) -> None:
    async def collect(engine: Engine) -> list[int]:
        return [t async for step in engine.stream(PROMPTS[0], longest()) for t in step.committed]

    with Engine(model, drafter, context_tokens=CONTEXT, static_steps=True) as engine:
        assert len(asyncio.run(collect(engine))) == ANSWER
