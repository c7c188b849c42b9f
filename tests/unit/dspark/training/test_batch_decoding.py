"""Rows that advance together say what each would say alone, and draw as `dspark.sampling` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dspark import Engine, PromptTooLong, SamplingParams, Target, load_target
from dspark.sampling import distribution, processed_logits
from dspark.training import batch_decoding
from dspark.training.batch_decoding import (
    _PART,
    Answer,
    BatchDecoder,
    Interview,
    Question,
    _argmax,
    _choose,
    _draw,
    _Row,
)
from tests.unit.dspark.test_verification import chi_square, critical_value

WIDE = 600  # words: two whole parts and one that is cut short
DRAWS = 1500  # with each of the settings
SETTINGS = {
    "greedy": SamplingParams(max_new_tokens=1),
    "temperature": SamplingParams(temperature=0.8, max_new_tokens=1),
    "top-k": SamplingParams(temperature=1.3, top_k=60, max_new_tokens=1),
    "top-p": SamplingParams(temperature=1.0, top_p=0.6, max_new_tokens=1),
    "min-p": SamplingParams(temperature=1.0, min_p=0.2, max_new_tokens=1),
    "all": SamplingParams(temperature=1.2, top_k=300, top_p=0.9, min_p=0.1, max_new_tokens=1),
}
PROMPTS = ((9, 9, 3), (5,), (3, 9, 20, 20, 20, 41, 2, 7), (9, 9, 3, 8), (2, 2))
"""With tokens said twice, of several lengths, one the beginning of another, and without token 0."""

Judged = list[tuple[Tensor, Tensor, list[int], list[int], SamplingParams]]
"""Of each row of each step: logits before and after the penalty, prompt, answer, settings."""


@pytest.fixture
def target(tiny_folder: Path) -> Target:
    return load_target(tiny_folder)


def ask(*questions: Question) -> Interview[list[Answer]]:
    """One question after the other."""
    answers: list[Answer] = []
    for question in questions:
        answers += [(yield question)]
    return answers


def fixed_head(logits: Tensor) -> Callable[[Tensor], Tensor]:
    """A head that says the same whatever it is given."""
    return lambda hidden: logits.expand(len(hidden), -1).clone()


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("common", [(), PROMPTS[0]], ids=["apart", "of a common beginning"])
def test_answers_are_those_of_each_alone_whoever_had_the_row_before(
    write_model: Callable[..., Path], common: Sequence[int]
) -> None:
    target = load_target(write_model({"eos_token_id": [*range(40, 46)]}))
    wishes = [
        SamplingParams(max_new_tokens=tokens, repetition_penalty=penalty)
        for tokens, penalty in ((9, 1.6), (30, 1.0), (14, 1.3))
    ]
    questions = [Question(prompt, params) for prompt in PROMPTS for params in wishes]
    with Engine(target) as engine:
        alone = [engine.generate(prompt, params) for prompt, params in questions]
    decoder = BatchDecoder(target, 4, 64, common)
    interviews = [ask(*questions[start : start + 2]) for start in range(0, len(questions), 2)]
    together = [answer for answers in decoder.hold(interviews) for answer in answers]
    assert [(tuple(answer.tokens), answer.stopped) for answer in together] == [
        (result.token_ids, result.finish_reason == "stop") for result in alone
    ]
    assert {answer.stopped for answer in together} == {True, False}


def test_an_answer_that_does_not_fit_is_refused(target: Target) -> None:
    question = Question(PROMPTS[0], SamplingParams(max_new_tokens=62))
    with pytest.raises(PromptTooLong, match="3 tokens and an answer of 62"):
        list(BatchDecoder(target, 1, 64).hold([ask(question)]))


# --- penalties -----------------------------------------------------------------------------------


def judged(target: Target, penalties: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> Judged:
    """What the repetition penalty made of the model's logits, in a few dialogues."""
    decoder = BatchDecoder(target, 3, 64)
    head, choose = decoder._head, batch_decoding._choose
    before: list[Tensor] = []
    found: Judged = []

    def seen_head(hidden: Tensor) -> Tensor:
        before.append(head(hidden))
        return before[-1].clone()

    def seen_choose(logits: Tensor, rows: list[batch_decoding._Row[object]]) -> list[int]:
        for raw, penalised, row in zip(before[-1], logits, rows, strict=True):
            prompt, params = row.question
            found.append((raw, penalised.clone(), [*prompt], [*row.answer], params))
        return choose(logits, rows)

    monkeypatch.setattr(decoder, "_head", seen_head)
    monkeypatch.setattr(batch_decoding, "_choose", seen_choose)
    asked = [
        ask(*(Question(prompt, SamplingParams(repetition_penalty=penalty, max_new_tokens=12))
              for prompt in (first, second)))
        for first, second in zip(PROMPTS, reversed(PROMPTS), strict=True)
        for penalty in penalties
    ]  # fmt: skip
    list(decoder.hold(asked))
    return found


@pytest.mark.parametrize("penalties", [(1.4,), (0.7, 1.0, 1.4)], ids=["alike", "each its own"])
def test_what_was_said_is_penalised_once_as_in_sampling(
    penalties: Sequence[float], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(target, penalties, monkeypatch)
    for raw, penalised, prompt, answer, params in found:
        expected = processed_logits(raw, params, prompt, answer)
        assert (penalised - expected).abs().max() < 1e-6
    assert any(len({*answer}) < len(answer) for _, _, _, answer, _ in found)


# --- choosing ------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=40))
def test_the_likeliest_token_is_the_first_of_the_best(row: list[float]) -> None:
    assert _argmax(torch.tensor([row, row[::-1]])).tolist() == [
        row.index(max(row)),
        row[::-1].index(max(row)),
    ]


@pytest.mark.parametrize(
    "certain",
    [SamplingParams(temperature=1e-4), SamplingParams(temperature=1, top_k=1)],
    ids=["cold", "top-k"],
)
def test_each_row_is_chosen_by_its_own_logits(certain: SamplingParams) -> None:
    logits = torch.randn((6, WIDE), generator=torch.Generator().manual_seed(5))
    wishes = [SamplingParams(), certain, certain, SamplingParams(), SamplingParams(), certain]
    rows = [
        _Row(number, number, ask(), Question((2,), params), Random(number))
        for number, params in enumerate(wishes)
    ]
    assert _choose(logits, rows) == logits.argmax(-1).tolist()


def drawn(target: Target, logits: Tensor, wishes: Sequence[SamplingParams]) -> list[Counter[int]]:
    """How often each token is drawn with each of the settings, which take turns."""
    decoder = BatchDecoder(target, 400, 8)
    decoder._head = fixed_head(logits)
    questions = (
        Question((2,), replace(wishes[number % len(wishes)], seed=number))
        for number in range(DRAWS * len(wishes))
    )
    counts: list[Counter[int]] = [Counter() for _ in wishes]
    for number, (answer,) in enumerate(decoder.hold(map(ask, questions))):
        counts[number % len(wishes)].update(answer.tokens)
    return counts


@pytest.mark.parametrize(
    "together", [["temperature"], ["min-p"], [*SETTINGS]], ids=["temperature", "min-p", "all"]
)
def test_tokens_are_drawn_as_often_as_sampling_would(together: list[str], target: Target) -> None:
    logits = 1.2 * torch.randn(WIDE, generator=torch.Generator().manual_seed(3))
    logits[list(target.stop_token_ids)] = -torch.inf  # so that every answer has its token
    wishes = [SETTINGS[name] for name in together]
    for params, counts in zip(wishes, drawn(target, logits, wishes), strict=True):
        weights = distribution(logits, params, (), ()).tolist()
        probabilities = {(token,): p for token, p in enumerate(weights) if p > 0}
        found = Counter({(token,): count for token, count in counts.items()})
        assert found.total() == DRAWS
        assert set(found) <= set(probabilities)
        if not params.greedy:
            statistic, degrees = chi_square(found, probabilities)
            assert degrees > 10
            assert statistic < critical_value(degrees)


weights_of_rows = st.integers(1, 3).flatmap(
    lambda rows: st.integers(1, WIDE).flatmap(
        lambda size: st.tuples(
            st.just((rows, size)), st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.5, 1.0])
        )
    )
)


@given(weights_of_rows, st.sampled_from([0.001, 1.0, 300.0]))
def test_every_token_is_drawn_by_the_numbers_that_are_its_own(
    drawn_shape: tuple[tuple[int, int], int, float], scale: float
) -> None:
    shape, seed, share = drawn_shape
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(1, 6, shape, generator=generator).float()
    weights *= torch.rand(shape, generator=generator) < share  # most may be impossible
    weights[:, seed % shape[1]] = 1.0
    ends = weights.double().cumsum(-1)
    middles = (ends - weights / 2) / ends[:, -1:]
    for row, points in zip(weights, middles, strict=True):
        possible = row.nonzero()[:, 0]
        rows = scale * row.expand(len(possible), -1)
        assert torch.equal(_draw(rows, points[possible].float()), possible)
        edges = torch.tensor([0.0, 1.0 - 2**-24, 1.0])  # a float64 below one may round to it
        expected = possible[[0, -1, -1]]
        assert torch.equal(_draw(scale * row.expand(3, -1), edges), expected)


@given(st.integers(0, 2**32 - 1), st.floats(0, 1, exclude_max=True))
def test_nothing_impossible_is_ever_drawn(seed: int, uniform: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 12 * torch.randn((4, WIDE), generator=generator)
    logits[torch.rand(logits.shape, generator=generator) < 0.9] = -torch.inf
    logits[:, seed % WIDE] = 0.0
    weights = logits.softmax(-1)
    tokens = _draw(weights, torch.full((4,), uniform))
    assert (weights.gather(1, tokens[:, None]) > 0).all()


@given(st.integers(0, 2**32 - 1))
def test_nor_is_it_at_the_border_of_two_parts(seed: int) -> None:
    weights = torch.rand((1, WIDE), generator=torch.Generator().manual_seed(seed))
    weights[:, [0, _PART - 1, _PART, 2 * _PART, WIDE - 1]] = 0
    sums = torch.stack([part.sum(-1) for part in weights.split(_PART, -1)], -1)
    borders = (sums.cumsum(-1) / sums.sum(-1, keepdim=True))[0, :2]
    near = [borders, borders.nextafter(torch.zeros(2)), borders.nextafter(torch.ones(2))]
    uniforms = torch.cat(near)
    tokens = _draw(weights.expand(len(uniforms), -1), uniforms)
    assert (weights[0, tokens] > 0).all()
