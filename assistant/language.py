"""The dialogue's side of the language model: messages in, verified text out."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Literal, Protocol

from assistant.completeness import SENTENCE_ENDS, SMOLLM2, Completeness, as_sentence
from assistant.errors import AssistantError
from assistant.items import AnswerStep, DraftToken, Message, Role, Usage
from dspark import Engine, Priority, SamplingParams, Step, Tokenizer
from dspark.tree import ANCHOR

AHEAD_TOKENS = 12
"""Of an answer begun on a guess so many tokens are written beyond what suffices for its first
sound: about a clause, so that the sound need not break off behind it on a busy machine."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of the tokens that one engine step verified (empty inside a character)."""

    text: str
    tokens: int
    step: AnswerStep | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the text ended, and what it took."""

    reason: Literal["stop", "length"]
    usage: Usage


@dataclass(slots=True)
class Commitment:
    """Whether an answer is wanted for certain; one begun on a guess may become so."""

    confirmed: bool = True
    _waiting: list[Callable[[], None]] = field(default_factory=list)
    _making: list[Callable[[], None]] = field(default_factory=list)

    def confirm(self) -> None:
        """The guess was right."""
        self.confirmed = True
        for callback in self._waiting:
            callback()
        self.forget()

    def suffice(self) -> None:
        """What there is of the answer is enough until it is confirmed."""
        for callback in self._making:
            callback()
        self._making.clear()

    def forget(self) -> None:
        """Call nobody back any more."""
        self._waiting.clear()
        self._making.clear()

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        """Call back once it is confirmed; at once if it is."""
        if self.confirmed:
            callback()
        else:
            self._waiting.append(callback)

    def when_sufficient(self, callback: Callable[[], None]) -> None:
        """Call back once no more of it is wanted until it is confirmed."""
        if not self.confirmed:
            self._making.append(callback)


class LanguageModel(Protocol):
    """Whatever can continue a conversation, piece by piece."""

    def answer(
        self, messages: Sequence[Message], max_output_tokens: int | None, commitment: Commitment
    ) -> AsyncGenerator[Piece | Ending, None]:
        """Yield the answer's pieces, then its `Ending`; closing the iterator stops the work."""
        ...

    async def prefill(self, messages: Sequence[Message]) -> None:
        """Take in what the next prompt begins with: these messages, the last of which may grow.

        Cancelling stops the work and keeps what has been done.
        """
        ...

    async def turn_end(self, messages: Sequence[Message]) -> float | None:
        """Return the probability that the user, whose words so far come last, has finished.

        None if the model cannot say.
        """
        ...


class PromptTooLong(AssistantError):
    """The last message alone does not fit the model: shorten it or raise `llm.context_tokens`."""


class EngineLanguageModel:
    """The language model that runs in this process, in a `dspark` engine."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        context_tokens: int,
        completeness: Completeness = SMOLLM2,
    ) -> None:
        self._completeness = completeness
        self._engine = engine
        self._tokenizer = tokenizer
        self._params = params
        self._context_tokens = context_tokens

    async def answer(
        self, messages: Sequence[Message], max_output_tokens: int | None, commitment: Commitment
    ) -> AsyncGenerator[Piece | Ending, None]:
        """Yield the answer's pieces, then its `Ending`; closing the iterator stops the work.

        Raises `PromptTooLong`, and `dspark.DSparkError` when the engine fails or is full.
        """
        params = self._params
        if max_output_tokens is not None:
            limit = min(max_output_tokens, params.max_new_tokens)
            params = replace(params, max_new_tokens=limit)
        prompt = self._fit(messages, self._context_tokens - params.max_new_tokens)
        text = self._tokenizer.detokenizer()
        priority = Priority.CONFIRMED if commitment.confirmed else Priority.SPECULATIVE
        generation = self._engine.submit(prompt, params, priority=priority)
        commitment.when_confirmed(lambda: generation.promote(Priority.CONFIRMED))
        output_tokens, last_token = 0, math.inf

        def note_enough() -> None:
            nonlocal last_token
            last_token = output_tokens + AHEAD_TOKENS

        commitment.when_sufficient(note_enough)
        try:
            async for step in generation:
                output_tokens += len(step.committed)
                if output_tokens >= last_token:
                    generation.hold()
                delta = text.feed(step.committed)
                yield Piece(delta, len(step.committed), self._told(step))
        finally:
            generation.cancel()
        if rest := text.flush():
            yield Piece(rest, 0)
        reason: Literal["stop", "length"] = (
            "length" if generation.finish_reason == "length" else "stop"
        )
        yield Ending(reason, Usage(len(prompt), generation.cached_tokens, output_tokens))

    async def prefill(self, messages: Sequence[Message]) -> None:
        """Compute the keys and values of what the next prompt begins with, at the lowest priority.

        The user may say more, so only tokens are computed that stay whatever follows.
        """
        talk = list(messages)
        said = ""
        if talk and talk[-1].role is Role.USER:
            said = talk.pop().text
        room = self._context_tokens - self._params.max_new_tokens
        one, other = (
            self._fit([*talk, Message(Role.USER, f"{said}{more}".strip())], room)
            for more in (" and", ".")
        )
        prefix = one[: _common_length(one, other)]
        if not prefix:
            return
        # The one token that it generates costs no row of its own, and nobody reads it.
        params = replace(self._params, max_new_tokens=1)
        generation = self._engine.submit(prefix, params, priority=Priority.SPECULATIVE)
        try:
            async for _ in generation:
                pass
        finally:
            generation.cancel()

    async def turn_end(self, messages: Sequence[Message]) -> float | None:
        """Judge the user's turn by what the model expects next in it; see `assistant.completeness`.

        It asks about the last word and the mark behind it, so nothing is computed but the prompt,
        of which the answer will use what it begins with.
        """
        said = as_sentence(messages[-1].text)
        if not said:
            return None
        room = self._context_tokens - self._params.max_new_tokens
        chat = self._fitting([*messages[:-1], Message(Role.USER, said)], room)
        prompt, end = self._tokenizer.unfinished_chat(chat)
        if prompt[-1] not in self._marks:
            return None  # the tokenizer has made one token of the mark and what is before it
        # Not speculative: behind another session's answer it would come too late to be of use.
        word, mark = await self._engine.score(prompt, ({end}, self._marks | {end}), last=2)
        return self._completeness.probability(messages[-1].text, sentence=word[1], turn=mark[0])

    def _told(self, step: Step) -> AnswerStep:
        accepted = _accepted(step)

        def fate(place: int) -> Literal["accepted", "rejected", "unverified"]:
            if place in accepted:
                return "accepted"
            return "rejected" if place < step.scheduled else "unverified"

        return AnswerStep(
            committed=tuple(map(self._spelt, step.committed)),
            draft=tuple(
                DraftToken(self._spelt(token_id), fate(place))
                for place, token_id in enumerate(step.draft)
            ),
        )

    def _spelt(self, token_id: int) -> str:
        """A token by itself; one that ends inside a character is a replacement mark."""
        return self._tokenizer.decode([token_id])

    @cached_property
    def _marks(self) -> frozenset[int]:
        """The tokens that begin with what ends a sentence."""
        return self._tokenizer.beginning_with(SENTENCE_ENDS)

    def _fit(self, messages: Sequence[Message], room_tokens: int) -> list[int]:
        """Encode the conversation, forgetting its oldest exchanges if it is too long."""
        return self._tokenizer.chat(self._fitting(messages, room_tokens))

    def _fitting(self, messages: Sequence[Message], room_tokens: int) -> list[dict[str, str]]:
        """Return as much of the conversation as fits, in the form of chat templates."""
        system = [message for message in messages if message.role is Role.SYSTEM]
        talk = [message for message in messages if message.role is not Role.SYSTEM]
        while True:
            chat = [{"role": str(m.role), "content": m.text} for m in (*system, *talk)]
            prompt = self._tokenizer.chat(chat)
            if len(prompt) <= room_tokens:
                return chat
            # An exchange goes as a whole, so that user and assistant still alternate.
            talk = talk[2:]
            if not talk:
                raise PromptTooLong(
                    f"The message takes {len(prompt)} tokens, but only {room_tokens} fit; "
                    "shorten it or raise llm.context_tokens."
                )


def _accepted(step: Step) -> Collection[int]:
    """The places in the draft of the tokens that were accepted."""
    if step.tree is None:
        return range(step.accepted)
    places: list[int] = []
    candidates = step.tree.children(ANCHOR)
    for token_id in step.committed[: step.accepted]:
        # Candidates for one place differ, so what was committed says which of them it was.
        taken = [place for place in candidates if step.draft[place] == token_id]
        places += taken
        candidates = step.tree.children(taken[0]) if taken else ()
    return places


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
