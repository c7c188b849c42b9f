"""What the next prompt begins with is computed while the user speaks, and never in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from assistant.items import Message, Role
from assistant.language import EngineLanguageModel
from dspark import Priority, SamplingParams

TALK = (
    Message(Role.SYSTEM, "Be brief."),
    Message(Role.USER, "Hello."),
    Message(Role.ASSISTANT, "Good morning."),
)
WORDS = st.text(alphabet="ab", min_size=1, max_size=4)


class WordPieces:
    """A word is a token, with the space before it; a mark is one by itself."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        pieces: list[str] = []
        for char in text:
            alone = not char.isalnum() or not pieces or not pieces[-1][-1].isalnum()
            if pieces and pieces[-1] == " " and char.isalnum():
                pieces[-1] += char
            elif alone:
                pieces.append(char)
            else:
                pieces[-1] += char
        self.pieces += [piece for piece in dict.fromkeys(pieces) if piece not in self.pieces]
        return [self.pieces.index(piece) for piece in pieces]

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}<end>" for m in messages) + "<bot>")


class Recorder:
    """Takes requests and answers none."""

    def __init__(self) -> None:
        self.requests: list[tuple[list[int], SamplingParams, Priority]] = []
        self.cancelled = 0

    def submit(self, prompt: Sequence[int], params: SamplingParams, priority: Priority) -> Recorder:
        self.requests.append((list(prompt), params, priority))
        return self

    async def __aiter__(self):  # type: ignore[no-untyped-def]  # as the engine's
        await asyncio.sleep(0)
        return
        yield

    def cancel(self) -> None:
        self.cancelled += 1


def prefilled(*messages: Message) -> tuple[list[int], WordPieces, Recorder]:
    engine, tokenizer = Recorder(), WordPieces()
    params = SamplingParams(max_new_tokens=20)
    model = EngineLanguageModel(engine, tokenizer, params, context_tokens=4_000)  # type: ignore[arg-type]
    asyncio.run(model.prefill(messages))
    return engine.requests[0][0], tokenizer, engine


def prompt(tokenizer: WordPieces, *messages: Message) -> list[int]:
    return tokenizer.chat([{"role": str(m.role), "content": m.text} for m in messages])


def test_it_waits_for_everybody_and_wants_nothing_back() -> None:
    _, _, engine = prefilled(*TALK)
    ((_, params, priority),) = engine.requests
    assert priority is Priority.SPECULATIVE
    assert params.max_new_tokens == 1
    assert engine.cancelled == 1


def test_before_the_first_word_all_of_the_past_is_taken_in() -> None:
    tokens, tokenizer, _ = prefilled(*TALK)
    after = prompt(tokenizer, *TALK, Message(Role.USER, "Turn"))
    assert after[: len(tokens)] == tokens
    assert len(tokens) > len(prompt(tokenizer, *TALK[:2]))


@given(st.lists(WORDS, min_size=1, max_size=5), st.sampled_from([".", "?", ",", " ab", " b."]))
def test_what_is_prefilled_is_what_the_prompt_begins_with(said: list[str], more: str) -> None:
    text = " ".join(said)
    tokens, tokenizer, _ = prefilled(*TALK, Message(Role.USER, text))
    whole = prompt(tokenizer, *TALK, Message(Role.USER, text + more))
    assert whole[: len(tokens)] == tokens
    assert len(tokens) >= len(whole) - len(prompt(tokenizer)) - len(said) - 6


def test_words_added_to_a_message_that_nobody_answered_belong_to_it() -> None:
    one, tokenizer, _ = prefilled(*TALK[:2])
    assert prompt(tokenizer, TALK[0], Message(Role.USER, "Hello. Turn"))[: len(one)] == one
