"""Text to tokens and back, chat messages to a prompt, and tokens to text as they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import tokenizers
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dspark.checkpoint import read_json
from dspark.errors import TokenizerError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what an incomplete character decodes to


class Tokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        stop_token_ids: the tokens with which the model ends its turn, as far as the tokenizer's
            configuration says.
    """

    def __init__(
        self, core: tokenizers.Tokenizer, config: Mapping[str, object], template: str | None
    ) -> None:
        self._core = core
        self._template_source = template
        self._special = {
            name: _content(config.get(name))
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        end = self._special["eos_token"]
        stop = None if end is None else core.token_to_id(end)
        self.stop_token_ids = frozenset(() if stop is None else (stop,))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json`, `tokenizer_config.json` and the chat template.

        Raises:
            TokenizerError: there is no `tokenizer.json`, or it is damaged.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"{folder} has no tokenizer.json: fetch it with the model, or work in token ids"
            )
        try:
            core = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{path} cannot be read ({error}): fetch it again") from error
        config_path = folder / "tokenizer_config.json"
        config = read_json(config_path) if config_path.is_file() else {}
        return cls(core, config, _chat_template(folder, config))

    @property
    def vocab_size(self) -> int:
        """How many tokens it knows, special ones included."""
        return self._core.get_vocab_size()

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token's id."""
        return dict(self._core.get_vocab())

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Text to token ids, with whatever the tokenizer puts around a text by default."""
        return list(self._core.encode(text, add_special_tokens=special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Token ids to text, without special tokens."""
        return str(self._core.decode(list(token_ids), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        """A new incremental decoder for one answer."""
        return Detokenizer(self)

    def chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        """The prompt for a dialogue, by the model's own chat template.

        Args:
            messages: each with `role` (system, user, assistant) and `content`.
            add_generation_prompt: whether the prompt ends where the assistant begins to speak.

        Raises:
            TokenizerError: there is no template, or it refuses these messages.
        """
        prompt = self._rendered(messages, add_generation_prompt)
        return self.encode(prompt, special_tokens=False)

    def _rendered(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **{name: token for name, token in self._special.items() if token is not None},
            )
        except TemplateError as error:
            raise TokenizerError(
                f"the model's chat template refuses these messages ({error}): change their roles "
                "or order"
            ) from error

    def unfinished_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], int]:
        """A dialogue whose last message may go on, and the token that would end that message.

        What ends a message is found by the chat template: the token that follows its words.

        Raises:
            TokenizerError: there is no template, it refuses these messages, or it puts nothing
                after the words of the last one.
        """
        said = messages[-1]["content"].strip()
        messages = [*messages[:-1], {**messages[-1], "content": said}]
        prompt = self._rendered(messages, add_generation_prompt=False)
        end = prompt.rfind(said) + len(said)
        closing = self.encode(prompt[end:], special_tokens=False)
        if end < len(said) or not closing:
            raise TokenizerError(
                "the model's chat template does not say where a message ends: judge turns by "
                "silence alone with this model"
            )
        return self.encode(prompt[:end], special_tokens=False), closing[0]

    def beginning_with(self, marks: str) -> frozenset[int]:
        """The tokens whose text begins with one of these characters, white space apart."""
        texts = self._core.decode_batch([[token] for token in range(self.vocab_size)])
        return frozenset(
            token for token, text in enumerate(texts) if text.lstrip()[:1] in tuple(marks)
        )

    @cached_property
    def _template(self) -> Template:
        if self._template_source is None:
            raise TokenizerError(
                "the checkpoint has no chat template: choose an instruction-tuned model, or "
                "encode the prompt yourself"
            )
        # Templates come with downloads, so they run sandboxed.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(self._template_source)
        except TemplateError as error:
            raise TokenizerError(
                f"the model's chat template cannot be compiled ({error}): fetch the model again, "
                "or encode the prompt yourself"
            ) from error


class Detokenizer:
    """Turns the tokens of one answer into text as they arrive, whole characters only.

    A token may end inside a character, and how a token is spelt may depend on the one before.
    So a short window is decoded twice, with and without the new tokens, and what the second
    has beyond the first is the new text, unless it ends in an unfinished character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0  # how many tokens of the window are already given out as text

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        self._window += token_ids
        before, text = self._texts()
        if len(text) <= len(before) or text.endswith(_REPLACEMENT):
            return ""
        self._window = self._window[self._given :]
        self._given = len(self._window)
        return text[len(before) :]

    def flush(self) -> str:
        """What is left at the end: a character that was never finished, as a replacement mark."""
        before, text = self._texts()
        self._window.clear()
        self._given = 0
        return text[len(before) :]

    def _texts(self) -> tuple[str, str]:
        decode = self._tokenizer.decode
        return decode(self._window[: self._given]), decode(self._window)


def _content(token: object) -> str | None:
    """A special token's text, which configurations write as a string or as an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _chat_template(folder: Path, config: Mapping[str, object]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, Sequence) and not isinstance(template, str):
        # Several named templates: the one for plain chat is called "default".
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
