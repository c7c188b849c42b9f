"""Model text becomes text that can be spoken, while it streams.

The text is read one character at a time and never looked at by the delta, so an answer comes
out the same however it arrived.  A piece is held back only while it could still turn out to be
markup: `[` until its `]`, `<` until its `>`, a URL until its end.

Every character that comes out says how much of the source it accounts for.  Markup that closes
something (`**`, the target of a link) belongs to the character before it, everything else that
is dropped belongs to the character after it; so text cut between two words, as it was when
somebody interrupted, does not end in half a pair of asterisks.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Speakable:
    """Text to be spoken, with the source it stands for.

    `source_ends[i]` is the number of source characters, counted from the start of the answer,
    that are accounted for once `text[i]` has been spoken.  As long as `text`, never decreasing.
    """

    text: str
    source_ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.text) != len(self.source_ends):
            raise ValueError(f"{len(self.text)} characters with {len(self.source_ends)} positions")

    def __add__(self, other: Speakable) -> Speakable:
        return Speakable(self.text + other.text, self.source_ends + other.source_ends)

    def __getitem__(self, span: slice) -> Speakable:
        return Speakable(self.text[span], self.source_ends[span])


class _Within(Enum):
    """What the reader is inside of."""

    LINE_START = auto()
    LINE = auto()
    CODE_SPAN = auto()
    FENCE = auto()
    TABLE_ROW = auto()
    THOUGHT = auto()


_BULLETS = "-*+•◦▪‣·"
_RULE_MARKS = "-*_=+|: \t"
_MARKUP_MAY_BE_ESCAPED = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_TAKES_NO_SPACE_BEFORE = frozenset(".,;:!?…")
_INVISIBLE = frozenset("\u00ad\u200b\u200e\u200f\u2060\ufeff")

_LINK_TEXT_LIMIT = 200  # a `[` without its `]` is held back no longer than this
_LINK_TARGET_LIMIT = 2000
_LINK_TARGET = re.compile(r"\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\[\]\n]*\]")

_ATTRIBUTE = r"\s+[a-z_:@][\w:.-]*\s*=\s*(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'<>]+)"
_TAG = re.compile(
    rf"</?[a-z][a-z0-9-]*(?:{_ATTRIBUTE})*\s*/?>|<!--[^\n]*?-->|<\|[^|<>\n]*\|>", re.IGNORECASE
)
_URL_IN_BRACKETS = re.compile(r"<((?:https?|ftp)://[^\s<>]+)>", re.IGNORECASE)
_TAG_BEGUN = re.compile(
    rf"</?(?:[a-z][a-z0-9-]*(?:{_ATTRIBUTE})*"
    r"(?:\s+(?:[a-z_:@][\w:.-]*\s*(?:=\s*(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s\"'<>]*))?)?)?\s*/?)?"
    r"|<!-?|<!--[^\n]*|<\|[^|<>\n]*\|?|<(?:https?|ftp)(?::/?|://[^\s<>]*)",
    re.IGNORECASE,
)
_LINE_BREAKING_TAG = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|table|h[1-6]|hr)\b", re.IGNORECASE)
_THOUGHT = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_THOUGHT_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THOUGHT_END_LENGTH = len("</thinking>")

_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,30});", re.IGNORECASE)
_ENTITY_BEGUN = re.compile(r"&(?:#x?[0-9a-f]{0,7}|[a-z][a-z0-9]{0,30})?", re.IGNORECASE)

_URL_STARTS = ("http://", "https://", "ftp://", "www.")
_URL_STARTING_LETTERS = frozenset(start[0] for start in _URL_STARTS)
_URL_HOST = re.compile(
    r"(?:[a-z]+://)?(?:[^/@\s]*@)?(?:www\.)?([^/?#:\s]*\w[^/?#:\s]*)", re.IGNORECASE
)
_URL_END = re.compile(r"[\s<>\"`]")
_NOT_THE_URLS_OWN = ".,;:!?'’”*_~]}"

_ZERO_WIDTH_JOINER = "\u200d"
_EMOJI = (
    (0x20E3, 0x20E3),  # the box around a keycap; its digit stays
    (0x231A, 0x231B),
    (0x23E9, 0x23FA),
    (0x25FB, 0x25FE),
    (0x2600, 0x27BF),  # weather, chess, dingbats, ticks and crosses
    (0x2B1B, 0x2B1C),
    (0x2B50, 0x2B55),
    (0xFE00, 0xFE0F),  # chooses between a sign and its picture
    (0x1F000, 0x1FAFF),
    (0xE0020, 0xE007F),  # spells the region of a flag
)


def _is_emoji(character: str) -> bool:
    code = ord(character)
    return code >= _EMOJI[0][0] and any(low <= code <= high for low, high in _EMOJI)


class SpeakableStream:
    """One answer on its way to the voice.

    Markup loses its marks and keeps its words.  Fenced code, tables and thoughts are passed over
    in silence: aloud they help nobody, and a placeholder would be words that the model did not
    say.  A bare URL is reduced to its host.  White space becomes one space, or one line break if
    there was one in it.
    """

    def __init__(self) -> None:
        self._within = _Within.LINE_START
        self._pending = ""  # source characters not understood yet
        self._position = 0  # of `_pending` in the source
        self._previous = "\n"  # the source character before `_pending`
        self._emphases = 0  # open ones, in this line
        self._marks = ""  # that opened the code span or the fence
        self._held: tuple[str, int] | None = None  # the last character; its end may still grow
        self._space_end: int | None = None  # a space that is spoken if something follows it
        self._dropped = False  # something was dropped since `_held`
        self._fresh_line = True  # nothing has come out since the last line break
        self._text: list[str] = []
        self._ends: list[int] = []

    def feed(self, delta: str) -> Speakable:
        """The text that these characters of the answer made certain."""
        for character in delta:
            self._pending += character
            while self._pending and self._understand():
                pass
        return self._taken()

    def flush(self) -> Speakable:
        """The rest, at the end of the answer.

        The last character accounts for everything up to the end, unless it had to leave earlier
        because a line break or a code block came after it.
        """
        length = self._position + len(self._pending)
        last_line = Speakable("", ())
        if self._pending:
            last_line = self.feed("\n")  # nothing is held back across the end of a line
            if last_line.text.endswith("\n"):
                last_line = last_line[:-1]
        self._let_go()
        rest = last_line + self._taken()
        if not rest.text:
            return rest
        return Speakable(rest.text, (*rest.source_ends[:-1], length))

    def _taken(self) -> Speakable:
        taken = Speakable("".join(self._text), tuple(self._ends))
        self._text, self._ends = [], []
        return taken

    # -- what comes out -----------------------------------------------------------------

    def _say(self, text: str, end: int) -> None:
        """Let `text` out as one character of the source, which ends at `end`."""
        for character in text:
            self._say_character(character, end)

    def _say_character(self, character: str, end: int) -> None:
        if character.isspace():
            if self._held is not None and self._space_end is None:
                self._space_end = end
            return
        space_end = self._space_end
        self._let_go()
        if space_end is not None and not (
            self._dropped and character in _TAKES_NO_SPACE_BEFORE  # "nice 😀." is "nice."
        ):
            self._text.append(" ")
            self._ends.append(space_end)
        self._held = (character, end)
        self._dropped = False
        self._fresh_line = False

    def _break_line(self, end: int) -> None:
        """Nothing can close across a line break, so what was held goes out with it."""
        self._let_go()
        if not self._fresh_line:
            self._text.append("\n")
            self._ends.append(end)
        self._fresh_line = True

    def _let_go(self) -> None:
        if self._held is not None:
            character, end = self._held
            self._text.append(character)
            self._ends.append(end)
        self._held = None
        self._space_end = None

    # -- what goes in -------------------------------------------------------------------

    def _consume(self, count: int) -> int:
        """Step over pending characters; the source position after them."""
        self._previous = self._pending[count - 1]
        self._pending = self._pending[count:]
        self._position += count
        return self._position

    def _keep(self, count: int = 1) -> bool:
        for character in self._pending[:count]:
            self._say(character, self._consume(1))
        return True

    def _drop(self, count: int, *, closing: bool = False) -> bool:
        end = self._consume(count)
        self._dropped = True
        if closing and self._held is not None and self._space_end is None:
            self._held = (self._held[0], end)
        return True

    def _understand(self) -> bool:
        """Read the next piece of `_pending`; False if it may mean more than is there yet."""
        match self._within:
            case _Within.LINE_START:
                return self._read_line_start()
            case _Within.LINE:
                return self._read_line()
            case _Within.CODE_SPAN:
                return self._read_code_span()
            case _Within.FENCE:
                return self._read_fence()
            case _Within.TABLE_ROW:
                return self._end_line() if self._pending[0] == "\n" else self._drop(1)
            case _Within.THOUGHT:
                return self._read_thought()

    def _run(self, marks: str) -> int:
        """How many of the pending characters, from the first, are among `marks`."""
        return len(self._pending) - len(self._pending.lstrip(marks))

    def _end_line(self) -> bool:
        self._within = _Within.LINE_START
        self._emphases = 0
        self._break_line(self._consume(1))
        return True

    # -- blocks -------------------------------------------------------------------------

    def _read_line_start(self) -> bool:
        first, pending = self._pending[0], self._pending
        if first == "\n":
            return self._end_line()
        if first.isspace():
            return self._drop(1)
        if first == "|":
            self._within = _Within.TABLE_ROW
            return self._drop(1)
        if first in "`~":
            return self._read_fence_start()
        if first == "#":
            depth = self._run("#")
            if depth == len(pending):
                return False
            if depth <= 6 and pending[depth].isspace():
                return self._drop(depth)
        elif first == ">":
            if len(pending) < 2:
                return False
            if pending[1] in " >\n":
                return self._drop(1)
        elif first in _RULE_MARKS or first in _BULLETS:
            marks = self._run(_RULE_MARKS + _BULLETS)
            if marks == len(pending):
                return False
            if pending[marks] == "\n":  # a rule, an underline, an item without words
                return self._drop(marks)
            if first in _BULLETS and pending[1] in " \t":
                return self._drop(2)
        self._within = _Within.LINE
        return True

    def _read_fence_start(self) -> bool:
        mark = self._pending[0]
        marks = self._run(mark)
        if marks == len(self._pending) and marks < 3:
            return False
        if marks < 3:
            self._within = _Within.LINE
            return True
        self._break_line(self._position)  # what came before must not wait for the code to end
        line, ended, _ = self._pending.partition("\n")
        if mark in line[marks:]:
            self._within = _Within.LINE  # ```closed in its own line```
            return True
        if not ended:
            return False
        self._within, self._marks = _Within.FENCE, mark * marks
        return self._drop(len(line) + 1)

    def _read_fence(self) -> bool:
        line, ended, _ = self._pending.partition("\n")
        if not ended:
            return False
        if line.strip().startswith(self._marks) and not line.strip(self._marks[0] + " \t\r"):
            self._within = _Within.LINE_START
        return self._drop(len(line) + 1)

    def _read_thought(self) -> bool:
        if end := _THOUGHT_END.search(self._pending):
            self._within = _Within.LINE_START
            return self._drop(end.end())
        if len(self._pending) > _THOUGHT_END_LENGTH:
            self._drop(len(self._pending) - _THOUGHT_END_LENGTH)
        return False

    # -- within a line ------------------------------------------------------------------

    def _read_line(self) -> bool:
        first = self._pending[0]
        if first == "\n":
            return self._end_line()
        if first in "*_~":
            return self._read_emphasis()
        if first == "`":
            marks = self._run("`")
            if marks == len(self._pending):
                return False
            self._within, self._marks = _Within.CODE_SPAN, "`" * marks
            return self._drop(marks)
        if first == "[" or self._pending.startswith("!["):
            return self._read_link()
        if first == "!" and len(self._pending) == 1:
            return False
        if first == "<":
            return self._read_tag()
        if first == "&":
            return self._read_entity()
        if first == "\\":
            if len(self._pending) == 1:
                return False
            if self._pending[1] in _MARKUP_MAY_BE_ESCAPED:
                self._drop(1)
            return self._keep()
        if first.lower() in _URL_STARTING_LETTERS and not self._previous.isalnum():
            return self._read_url()
        if first in _INVISIBLE or _is_emoji(first):
            return self._drop(1)
        if first == _ZERO_WIDTH_JOINER and _is_emoji(self._previous):
            return self._drop(1)
        return self._keep()

    def _read_code_span(self) -> bool:
        if self._pending[0] == "\n":
            return self._end_line()
        marks = self._run("`")
        if not marks:
            return self._keep()
        if marks == len(self._pending):
            return False
        if marks == len(self._marks):
            self._within = _Within.LINE
        return self._drop(marks, closing=True)

    def _read_emphasis(self) -> bool:
        mark = self._pending[0]
        marks = self._run(mark)
        if marks == len(self._pending):
            return False
        before, after = self._previous, self._pending[marks]
        apart = before.isspace() and after.isspace()
        joined = (before.isalnum() or before == ")") and (after.isalnum() or after == "(")
        match mark:
            case "~":
                literal = marks == 1 or apart
            case "_":
                literal = apart or joined
            case _:
                product = marks == 1 and (before + after).isdigit()
                literal = apart or product or (marks == 1 and joined and not self._emphases)
        if literal:
            return self._keep(marks)
        closing = after.isspace() or (bool(self._emphases) and not before.isspace())
        self._emphases = max(0, self._emphases + (-1 if closing else 1))
        return self._drop(marks, closing=closing)

    def _read_link(self) -> bool:
        opening = self._pending.index("[")
        close = self._closing_bracket(opening)
        if close is None:
            within_reach = "\n" not in self._pending and len(self._pending) < _LINK_TEXT_LIMIT
            return False if within_reach else self._keep(opening + 1)
        if len(self._pending) == close + 1:
            return False
        target = _LINK_TARGET.match(self._pending, close + 1)
        if target is None:
            may_come = (
                self._pending[close + 1] in "(["
                and "\n" not in self._pending
                and len(self._pending) < close + _LINK_TARGET_LIMIT
            )
            return False if may_come else self._keep(opening + 1)
        words = SpeakableStream()
        words._within = _Within.LINE
        inside = self._pending[opening + 1 : close]
        spoken = words.feed(inside) + words.flush()
        start = self._position + opening + 1
        self._drop(opening + 1)
        for character, end in zip(spoken.text, spoken.source_ends, strict=True):
            self._say(character, start + end)
        return self._drop(target.end() - opening - 1, closing=True)

    def _closing_bracket(self, opening: int) -> int | None:
        depth = 0
        for index in range(opening, len(self._pending)):
            depth += {"[": 1, "]": -1}.get(self._pending[index], 0)
            if depth == 0:
                return index
        return None

    def _read_tag(self) -> bool:
        if tag := _TAG.match(self._pending):
            if _THOUGHT.fullmatch(tag.group()):
                self._break_line(self._position)
                self._within = _Within.THOUGHT
            elif _LINE_BREAKING_TAG.match(tag.group()):
                self._break_line(self._position + tag.end())
            return self._drop(tag.end(), closing=tag.group().startswith("</"))
        if _TAG_BEGUN.fullmatch(self._pending):
            return False
        if url := _URL_IN_BRACKETS.match(self._pending):
            return self._say_host(url.group(1), url.end())
        return self._keep()

    def _read_entity(self) -> bool:
        if entity := _ENTITY.match(self._pending):
            character = html.unescape(entity.group())
            if character == entity.group():  # no such entity
                return self._keep()
            self._say(character, self._consume(entity.end()))
            return True
        return False if _ENTITY_BEGUN.fullmatch(self._pending) else self._keep()

    def _read_url(self) -> bool:
        begun = self._pending.lower()
        if not begun.startswith(_URL_STARTS):
            return False if any(start.startswith(begun) for start in _URL_STARTS) else self._keep()
        end = _URL_END.search(self._pending)
        if end is None:
            return False
        url = self._pending[: end.start()].rstrip(_NOT_THE_URLS_OWN)
        if "(" not in url:
            url = url.partition(")")[0].rstrip(_NOT_THE_URLS_OWN)
        return self._say_host(url, len(url)) if url else self._keep()

    def _say_host(self, url: str, length: int) -> bool:
        host = _URL_HOST.match(url)
        if host is None:
            return self._keep(length)
        self._say(host.group(1)[:-1], self._position)  # the URL is said when all of it is
        self._say(host.group(1)[-1], self._consume(length))
        return True
