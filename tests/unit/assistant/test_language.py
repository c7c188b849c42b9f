"""The engine behind the dialogue: limits respected, old exchanges forgotten, text whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from assistant.items import AnswerStep, DraftToken, Message, Role
from assistant.language import (
    AHEAD_TOKENS,
    Commitment,
    Ending,
    EngineLanguageModel,
    Piece,
    PromptTooLong,
)
from dspark import Priority, SamplingParams, Step
from dspark.tree import ANCHOR, TreeShape


class Letters:
    """One token a character, role names included."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(c) for m in messages for c in f"{m['role'][0]}{m['content']}"]

    def detokenizer(self) -> LettersOut:
        return LettersOut()

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


class LettersOut:
    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def flush(self) -> str:
        return "."


@dataclass
class FakeGeneration:
    reply: str
    finish_reason: str = "stop"
    cached_tokens: int = 2
    cancelled: bool = False
    priority: Priority = Priority.SPECULATIVE
    held: bool = False

    async def __aiter__(self):  # type: ignore[no-untyped-def]  # as the engine's
        for letter in self.reply:
            yield Step(anchor=0, committed=(ord(letter),))

    def cancel(self) -> None:
        self.cancelled = True

    def promote(self, priority: Priority) -> None:
        self.priority = priority

    def hold(self) -> None:
        self.held = True


@dataclass
class FakeEngine:
    generation: FakeGeneration
    prompts: list[str] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, priority: Priority
    ) -> FakeGeneration:
        self.prompts.append("".join(map(chr, prompt)))
        self.limits.append(params.max_new_tokens)
        return self.generation


def model(engine: FakeEngine, context_tokens: int = 1_000) -> EngineLanguageModel:
    params = SamplingParams(max_new_tokens=20)
    return EngineLanguageModel(engine, Letters(), params, context_tokens=context_tokens)  # type: ignore[arg-type]


def ask(
    language: EngineLanguageModel, messages: Sequence[Message], limit: int | None = None
) -> list[Piece | Ending]:
    async def collect() -> list[Piece | Ending]:
        return [piece async for piece in language.answer(messages, limit, Commitment())]

    return asyncio.run(collect())


TALK = (
    Message(Role.SYSTEM, "sys"),
    Message(Role.USER, "first"),
    Message(Role.ASSISTANT, "one"),
    Message(Role.USER, "second"),
)


def test_the_pieces_and_the_ending_of_an_answer() -> None:
    *pieces, ending = ask(model(FakeEngine(FakeGeneration("hi"))), TALK)
    assert [p.text for p in pieces if isinstance(p, Piece)] == ["h", "i", "."]
    assert isinstance(ending, Ending)
    assert ending.reason == "stop"
    assert ending.usage.output_tokens == 2
    assert ending.usage.cached_tokens == 2


def test_a_piece_tells_what_was_drafted_and_what_became_of_it() -> None:
    class Drafting(FakeGeneration):
        async def __aiter__(self):  # type: ignore[no-untyped-def]  # as the engine's
            draft, committed = map(ord, "xyz"), map(ord, "xh")
            yield Step(0, tuple(draft), scheduled=2, accepted=1, committed=tuple(committed))

    piece, *_ = ask(model(FakeEngine(Drafting("xh"))), TALK)
    assert isinstance(piece, Piece)
    drafted = (
        DraftToken("x", "accepted"),
        DraftToken("y", "rejected"),
        DraftToken("z", "unverified"),
    )
    assert piece.step == AnswerStep(committed=("x", "h"), draft=drafted)
    assert piece.step is not None and piece.step.accepted == 1


def test_in_a_tree_the_path_that_was_taken_is_what_was_accepted() -> None:
    class Branching(FakeGeneration):
        async def __aiter__(self):  # type: ignore[no-untyped-def]  # as the engine's
            draft, committed = tuple(map(ord, "abcba")), tuple(map(ord, "bah"))
            tree = TreeShape((ANCHOR, ANCHOR, ANCHOR, 0, 1))
            yield Step(0, draft, scheduled=5, accepted=2, committed=committed, tree=tree)

    piece, *_ = ask(model(FakeEngine(Branching("bah"))), TALK)
    assert isinstance(piece, Piece) and piece.step is not None
    fates = ["rejected", "accepted", "rejected", "rejected", "accepted"]
    assert [token.fate for token in piece.step.draft] == fates
    assert piece.step.committed == ("b", "a", "h")


def test_a_client_may_lower_the_limit_but_not_raise_it() -> None:
    engine = FakeEngine(FakeGeneration("hi"))
    for limit in (None, 5, 5_000):
        ask(model(engine), TALK, limit)
    assert engine.limits == [20, 5, 20]


def test_the_oldest_exchange_is_forgotten_first_and_as_a_whole() -> None:
    engine = FakeEngine(FakeGeneration("hi"))
    ask(model(engine, context_tokens=20 + len("ssysusecond")), TALK)
    assert engine.prompts == ["ssysusecond"]


def test_a_message_that_cannot_fit_is_refused() -> None:
    with pytest.raises(PromptTooLong, match=r"llm\.context_tokens"):
        ask(model(FakeEngine(FakeGeneration("hi")), context_tokens=25), TALK)


def test_leaving_early_cancels_the_generation() -> None:
    generation = FakeGeneration("a long answer")

    async def leave() -> None:
        answer = model(FakeEngine(generation)).answer(TALK, None, Commitment())
        await anext(answer)
        await answer.aclose()

    asyncio.run(leave())
    assert generation.cancelled


def test_a_guess_gives_way_until_it_is_confirmed() -> None:
    generation = FakeGeneration("hi")
    commitment = Commitment(confirmed=False)

    async def begin_and_confirm() -> None:
        answer = model(FakeEngine(generation)).answer(TALK, None, commitment)
        await anext(answer)
        assert generation.priority is Priority.SPECULATIVE
        commitment.confirm()
        assert generation.priority is Priority.CONFIRMED
        await answer.aclose()

    asyncio.run(begin_and_confirm())


@pytest.mark.parametrize("confirmed", [False, True])
def test_only_a_guess_is_held_when_there_is_enough_of_it(confirmed: bool) -> None:
    generation = FakeGeneration("h" * 2 * AHEAD_TOKENS)
    commitment = Commitment(confirmed=confirmed)

    async def begin() -> None:
        answer = model(FakeEngine(generation)).answer(TALK, None, commitment)
        await anext(answer)
        commitment.suffice()
        for _ in range(AHEAD_TOKENS - 1):
            await anext(answer)
        assert not generation.held
        await anext(answer)
        assert generation.held is not confirmed
        await answer.aclose()

    asyncio.run(begin())
