"""Text that knows which part of its source it stands for, and is tidy as it is written.

Every character says how much of the source it accounts for.  What is left out and closes
something (`**`, the target of a link) belongs to the character before it, everything else that
is left out to the character after it; so text cut between two words, as it is when somebody
interrupts, does not end in half a pair of asterisks.
"""

from __future__ import annotations

from dataclasses import dataclass

_TAKES_NO_SPACE_BEFORE = frozenset(".,;:!?…")


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


class SourceMap:
    """What has come out, with its white space put in order.

    The last character is held until the next one is there, because what closes after it belongs
    to it; and a space until something follows that it separates.
    """

    def __init__(self) -> None:
        self._held: tuple[str, int] | None = None
        self._space_end: int | None = None
        self._dropped = False  # something was left out since `_held`
        self._fresh_line = True
        self._text: list[str] = []
        self._ends: list[int] = []

    def say(self, text: str, end: int) -> None:
        """Let out `text`, said for source that ends at `end`."""
        for character in text:
            self._say_character(character, end)

    def _say_character(self, character: str, end: int) -> None:
        if character.isspace():
            if self._held is not None and self._space_end is None:
                self._space_end = end
            return
        space_end = self._space_end
        self.let_go()
        if space_end is not None and not (
            self._dropped and character in _TAKES_NO_SPACE_BEFORE  # "nice 😀." is "nice."
        ):
            self._put(" ", space_end)
        self._held = (character, end)
        self._dropped = False
        self._fresh_line = False

    def leave_out(self, end: int, *, closing: bool) -> None:
        """Pass over source that ends at `end`; what closes belongs to what was said before."""
        self._dropped = True
        if closing and self._held is not None and self._space_end is None:
            self._held = (self._held[0], end)

    def break_line(self, end: int) -> None:
        """Begin a line. Nothing closes across a line break, so nothing is held across it."""
        self.let_go()
        if not self._fresh_line:
            self._put("\n", end)
        self._fresh_line = True

    def let_go(self) -> None:
        """Hold nothing any more."""
        if self._held is not None:
            self._put(*self._held)
        self._held = None
        self._space_end = None

    def taken(self) -> Speakable:
        """What came out since the last time."""
        taken = Speakable("".join(self._text), tuple(self._ends))
        self._text, self._ends = [], []
        return taken

    def _put(self, character: str, end: int) -> None:
        self._text.append(character)
        self._ends.append(end)
