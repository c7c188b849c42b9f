"""What every contender is asked: the same token ids, with the system prompt known or new to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark.errors import InvalidRequest
from dspark.tokenizer import Tokenizer

INSTRUCTIONS = (
    "You are a helpful voice assistant. Your answers are spoken aloud, so keep them short, warm "
    "and plain, without lists, headings or emoji. If you do not know something, say so."
)


@dataclass(frozen=True)
class BenchPrompt:
    """One question, as token ids.

    Attributes:
        known: behind the system prompt that all questions share, which a contender that keeps
            prompts has in its cache from the question before.
        new: behind one that no other question has, from its first words on.
    """

    known: tuple[int, ...]
    new: tuple[int, ...]


def read_prompts(path: Path | None = None) -> tuple[str, ...]:
    """Questions from a file, or those that come with the package.

    Args:
        path: a `.jsonl` file of objects with a `prompt`, or a text file with one a line, where
            empty lines and lines that begin with `#` do not count.

    Raises:
        InvalidRequest: the file cannot be read, or holds no questions.
    """
    path = path or Path(__file__).with_name("prompts.txt")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the prompts in {path} cannot be read: {error}") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix == ".jsonl":
        prompts = tuple(_of_json(path, number, line) for number, line in numbered)
    else:
        prompts = tuple(line for _, line in numbered if not line.startswith("#"))
    if not prompts:
        raise InvalidRequest(f"{path} holds no prompts: write one a line")
    return prompts


def tokenised(questions: Sequence[str], tokenizer: Tokenizer) -> tuple[BenchPrompt, ...]:
    """The questions as prompts for a model."""

    def chat(instructions: str, question: str) -> tuple[int, ...]:
        messages = [
            {"role": "system", "content": instructions},
            {"role": "user", "content": question},
        ]
        return tuple(tokenizer.chat(messages))

    return tuple(
        BenchPrompt(
            known=chat(INSTRUCTIONS, question),
            new=chat(f"Dialogue {number}. {INSTRUCTIONS}", question),
        )
        for number, question in enumerate(questions, 1)
    )


def _of_json(path: Path, number: int, line: str) -> str:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{path}, line {number} is not JSON: {error}") from error
    prompt = content.get("prompt") if isinstance(content, Mapping) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidRequest(f'{path}, line {number} is not an object with a text called "prompt"')
    return prompt
