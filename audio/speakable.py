"""Model text becomes text that can be spoken, while it streams.

The text is read one character at a time and never looked at by the delta, so an answer comes
out the same however it arrived.  A piece is held back only while it could still turn out to be
markup: `[` until its `]`, `<` until its `>`, a URL until its end.
"""

from __future__ import annotations

import html
from enum import Enum, auto

from audio import markup
from audio.source_map import SourceMap, Speakable

__all__ = ["Speakable", "SpeakableStream"]


class _Within(Enum):
    """What the reader is inside of."""

    LINE_START = auto()
    LINE = auto()
    CODE_SPAN = auto()
    FENCE = auto()
    TABLE_ROW = auto()
    THOUGHT = auto()


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
        self._output = SourceMap()

    def feed(self, delta: str) -> Speakable:
        """The text that these characters of the answer made certain."""
        for character in delta:
            self._pending += character
            while self._pending and self._understand():
                pass
        return self._output.taken()

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
        self._output.let_go()
        rest = last_line + self._output.taken()
        if not rest.text:
            return rest
        return Speakable(rest.text, (*rest.source_ends[:-1], length))

    def _consume(self, count: int) -> int:
        """Step over pending characters; the source position after them."""
        self._previous = self._pending[count - 1]
        self._pending = self._pending[count:]
        self._position += count
        return self._position

    def _keep(self, count: int = 1) -> bool:
        for character in self._pending[:count]:
            self._output.say(character, self._consume(1))
        return True

    def _drop(self, count: int, *, closing: bool = False) -> bool:
        self._output.leave_out(self._consume(count), closing=closing)
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
        self._output.break_line(self._consume(1))
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
        elif first in markup.RULE_MARKS or first in markup.BULLETS:
            marks = self._run(markup.RULE_MARKS + markup.BULLETS)
            if marks == len(pending):
                return False
            if pending[marks] == "\n":  # a rule, an underline, an item without words
                return self._drop(marks)
            if first in markup.BULLETS and pending[1] in " \t":
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
        if end := markup.THOUGHT_END.search(self._pending):
            self._within = _Within.LINE_START
            return self._drop(end.end())
        if len(self._pending) > markup.THOUGHT_END_LENGTH:
            self._drop(len(self._pending) - markup.THOUGHT_END_LENGTH)
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
            if self._pending[1] in markup.MAY_BE_ESCAPED:
                self._drop(1)
            return self._keep()
        if first.lower() in markup.URL_STARTING_LETTERS and not self._previous.isalnum():
            return self._read_url()
        if first in markup.INVISIBLE or markup.is_emoji(first):
            return self._drop(1)
        if first == markup.ZERO_WIDTH_JOINER and markup.is_emoji(self._previous):
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
            within_reach = "\n" not in self._pending and len(self._pending) < markup.LINK_TEXT_LIMIT
            return False if within_reach else self._keep(opening + 1)
        if len(self._pending) == close + 1:
            return False
        target = markup.LINK_TARGET.match(self._pending, close + 1)
        if target is None:
            may_come = (
                self._pending[close + 1] in "(["
                and "\n" not in self._pending
                and len(self._pending) < close + markup.LINK_TARGET_LIMIT
            )
            return False if may_come else self._keep(opening + 1)
        words = SpeakableStream()
        words._within = _Within.LINE
        inside = self._pending[opening + 1 : close]
        spoken = words.feed(inside) + words.flush()
        start = self._position + opening + 1
        self._drop(opening + 1)
        for character, end in zip(spoken.text, spoken.source_ends, strict=True):
            self._output.say(character, start + end)
        return self._drop(target.end() - opening - 1, closing=True)

    def _closing_bracket(self, opening: int) -> int | None:
        depth = 0
        for index in range(opening, len(self._pending)):
            depth += {"[": 1, "]": -1}.get(self._pending[index], 0)
            if depth == 0:
                return index
        return None

    def _read_tag(self) -> bool:
        if tag := markup.TAG.match(self._pending):
            if markup.THOUGHT.fullmatch(tag.group()):
                self._output.break_line(self._position)
                self._within = _Within.THOUGHT
            elif markup.LINE_BREAKING_TAG.match(tag.group()):
                self._output.break_line(self._position + tag.end())
            return self._drop(tag.end(), closing=tag.group().startswith("</"))
        if markup.TAG_BEGUN.fullmatch(self._pending):
            return False
        if url := markup.URL_IN_BRACKETS.match(self._pending):
            return self._say_host(url.group(1), url.end())
        return self._keep()

    def _read_entity(self) -> bool:
        if entity := markup.ENTITY.match(self._pending):
            character = html.unescape(entity.group())
            if character == entity.group():  # no such entity
                return self._keep()
            self._output.say(character, self._consume(entity.end()))
            return True
        return False if markup.ENTITY_BEGUN.fullmatch(self._pending) else self._keep()

    def _read_url(self) -> bool:
        begun = self._pending.lower()
        if not begun.startswith(markup.URL_STARTS):
            may_become_one = any(start.startswith(begun) for start in markup.URL_STARTS)
            return False if may_become_one else self._keep()
        end = markup.URL_END.search(self._pending)
        if end is None:
            return False
        url = self._pending[: end.start()].rstrip(markup.NOT_THE_URLS_OWN)
        if "(" not in url:
            url = url.partition(")")[0].rstrip(markup.NOT_THE_URLS_OWN)
        return self._say_host(url, len(url)) if url else self._keep()

    def _say_host(self, url: str, length: int) -> bool:
        host = markup.URL_HOST.match(url)
        if host is None:
            return self._keep(length)
        self._output.say(host.group(1)[:-1], self._position)  # the URL is said when all of it is
        self._output.say(host.group(1)[-1], self._consume(length))
        return True
