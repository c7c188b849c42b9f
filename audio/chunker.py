"""Speakable text leaves in chunks: the first as early as a clause allows, then by the sentence.

A voice sounds best with whole sentences and answers soonest with few words.  So the first chunk
ends at the first safe clause boundary, and the rest at ends of sentences.  A full stop is not
one in "Dr. Smith", "3.5", "1,000" or "at 5 p.m. tomorrow"; a boundary in doubt is passed over,
because two sentences in one chunk do no harm and half a name does.
"""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum

from audio.abbreviations import begins_sentence, is_title, may_end_sentence, needs_number
from audio.speakable import Speakable


class Break(IntEnum):
    """How well a text can be cut at a place; larger is better."""

    SPACE = 1
    JOINT = 2
    """Before a word that joins two parts of a sentence."""
    CLAUSE = 3
    SENTENCE = 4


_JOINS = re.compile(
    r"\s(?=(?:and|but|or|nor|so|because|which|who|that|when|while|where|if|although|though|since|"
    r"until|unless|after|before|whereas|as)\s)"
)

_OPENERS = "\"'“‘„«‹([{（「『【《〈¿¡"
_CLOSERS = "\"'”’»›)]}）」』】》〉"
_STOPS = ".!?…"
_OTHER_STOPS = "。！？．｡।॥؟۔։።፧။។"
"""Full stops of scripts in which they mean nothing else, and need no space after them."""
_HYPHENS = ("-", "--")
_CLAUSE_MARKS = ",;:—–،؛"
_OTHER_CLAUSE_MARKS = "，、；：﹐﹑､"
_STANDS_BETWEEN = "—"
"""Clause marks after which the next word may follow at once."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}](?:[^\s{_UNSPACED}—]*[^\W_{_UNSPACED}])?")
_ORDINAL = re.compile(r"(?:\d{1,3}|[A-Za-z])[.)]")


def count_words(text: str) -> int:
    """Words of a text; in scripts without spaces each character counts as one."""
    return sum(1 for _ in _WORD.finditer(text))


def break_between(before: str, after: str, *, whole: bool = False) -> Break | None:
    """How well a text can be cut between `before` and `after`, neither with a space at the cut.

    `None` asks for more of `after`: it is decided by the first word there, and `whole` says that
    nothing will be added to it.
    """
    body = before.rstrip(_CLOSERS)
    token = body.rpartition(" ")[2].lstrip(_OPENERS)
    last = body[-1:]
    if not last:
        return Break.SPACE
    if last in _OTHER_STOPS:
        return Break.SENTENCE
    if last in _OTHER_CLAUSE_MARKS:
        return Break.CLAUSE
    if last in _CLAUSE_MARKS or token in _HYPHENS:
        figures = body[-2:-1].isdigit() and after.lstrip(_OPENERS)[:1].isdigit()
        return Break.SPACE if figures or is_title(token[:-1].removesuffix(".")) else Break.CLAUSE
    if last not in _STOPS or _ORDINAL.fullmatch(before.strip()):
        return Break.SPACE
    following = after.lstrip(_OPENERS)
    if not following and not whole:
        return None
    goes_on = following[:1].islower()
    if last in "!?":
        return Break.CLAUSE if goes_on else Break.SENTENCE
    if token.endswith(("…", "..")):
        return Break.CLAUSE if goes_on else Break.SENTENCE
    word = token.removesuffix(".")
    if is_title(word) or (needs_number(word) and following[:1].isdigit()):
        return Break.SPACE
    if may_end_sentence(word):
        first_word, ended, _ = following.partition(" ")
        if not ended and not whole:
            return None
        return Break.SENTENCE if begins_sentence(first_word) else Break.SPACE
    return Break.SENTENCE


class ClauseChunker:
    """One answer's text on its way out in chunks.

    `first_min_words`: chunks end at clauses until this many words are out.
    `first_max_chars`, `max_chars`: a chunk that has found no boundary when it is this long is
    cut at the best place it has.
    """

    def __init__(
        self, first_min_words: int = 3, first_max_chars: int = 100, max_chars: int = 240
    ) -> None:
        self._first_min_words = first_min_words
        self._first_max_chars = first_max_chars
        self._max_chars = max_chars
        self._words_out = 0
        self._waiting = Speakable("", ())
        self._breaks: dict[int, Break] = {}  # decided, by where the text after them begins
        self._undecided: int | None = None  # a break that its next word will decide

    def feed(self, speakable: Speakable) -> list[Speakable]:
        """The chunks that this text completed."""
        chunks: list[Speakable] = []
        for index in range(len(speakable.text)):
            cut = self._accept(speakable[index : index + 1])
            if cut is not None:
                chunks += self._cut(cut)
        return chunks

    def flush(self) -> list[Speakable]:
        """The last chunks, at the end of the answer."""
        cut = self._decide(whole=True)
        chunks = self._cut(cut) if cut is not None else []
        return chunks + self._cut(len(self._waiting.text))

    @property
    def _hurried(self) -> bool:
        return self._words_out < self._first_min_words

    def _accept(self, character: Speakable) -> int | None:
        """Take one character; where to cut now that it is known, if anywhere."""
        before = self._waiting.text
        self._waiting += character
        if character.text == "\n":
            return len(self._waiting.text)
        if self._may_begin(before, character.text):
            # A break still undecided here had its whole next word, which decided it.
            self._undecided = len(before)
        cut = self._decide()
        if cut is None and len(self._waiting.text) >= self._limit:
            return self._best_cut()
        return cut

    @staticmethod
    def _may_begin(before: str, character: str) -> bool:
        """Whether the text might be cut before this character."""
        if not before or character.isspace():
            return False
        if before[-1].isspace():
            return True
        mark = before.rstrip(_CLOSERS)[-1:]
        if mark and mark in _STANDS_BETWEEN:
            return character.isalnum()
        unspaced = _OTHER_STOPS + _OTHER_CLAUSE_MARKS
        return bool(mark) and mark in unspaced and character not in unspaced + _CLOSERS + _STOPS

    def _decide(self, *, whole: bool = False) -> int | None:
        """Judge the undecided break; where to cut if it is good enough to cut at once."""
        place, text = self._undecided, self._waiting.text
        if place is None:
            return None
        before = text[:place].rstrip()
        quality = break_between(before, text[place:], whole=whole)
        if quality is None:
            return None
        self._undecided = None
        self._breaks[place] = quality
        enough = self._words_out + count_words(before) >= self._first_min_words
        wanted = Break.CLAUSE if self._hurried else Break.SENTENCE
        return place if enough and quality >= wanted else None

    @property
    def _limit(self) -> int:
        return self._first_max_chars if self._hurried else self._max_chars

    def _best_cut(self) -> int:
        """Where to cut a text that has become too long."""
        text = self._waiting.text
        places = dict(self._breaks)
        for joint in _JOINS.finditer(text):
            places[joint.end()] = max(Break.JOINT, places.get(joint.end(), Break.JOINT))
        for place in range(1, len(text)):
            if re.match(rf"[{_UNSPACED}]", text[place]) and not unicodedata.combining(text[place]):
                places.setdefault(place, Break.SPACE)
        far_enough = {place: rank for place, rank in places.items() if place > len(text) // 4}
        if not far_enough:
            return len(text)
        return max(far_enough, key=lambda place: (far_enough[place], place))

    def _cut(self, place: int) -> list[Speakable]:
        """Let the text before `place` out; nothing comes out of a text without words."""
        chunk, self._waiting = _stripped(self._waiting[:place]), self._waiting[place:]
        self._breaks = {at - place: rank for at, rank in self._breaks.items() if at > place}
        if self._undecided is not None:
            self._undecided = self._undecided - place if self._undecided > place else None
        words = count_words(chunk.text)
        self._words_out += words
        return [chunk] if words else []


def _stripped(speakable: Speakable) -> Speakable:
    text = speakable.text
    start = len(text) - len(text.lstrip())
    return speakable[start : max(start, len(text.rstrip()))]
