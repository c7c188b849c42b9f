"""What the markup in a model's text looks like.

For what may be held back while it streams there are two patterns: one for the whole piece, and
one (`…_BEGUN`) for everything that could still become one.
"""

from __future__ import annotations

import re

BULLETS = "-*+•◦▪‣·"
RULE_MARKS = "-*_=+|: \t"
MAY_BE_ESCAPED = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
INVISIBLE = frozenset("\u00ad\u200b\u200e\u200f\u2060\ufeff")

LINK_TEXT_LIMIT = 200  # a `[` without its `]` is held back no longer than this
LINK_TARGET_LIMIT = 2000
LINK_TARGET = re.compile(r"\((?:[^()\n]|\([^()\n]*\))*\)|\[[^\[\]\n]*\]")

_S = r"[^\S\n]"  # nothing but fences and thoughts goes on after the end of a line
_ATTRIBUTE_NAME = rf"{_S}+[a-z_:@][\w:.-]*{_S}*"
_ATTRIBUTE = rf"{_ATTRIBUTE_NAME}={_S}*(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'<>]+)"
_ATTRIBUTE_BEGUN = rf"{_ATTRIBUTE_NAME}(?:={_S}*(?:\"[^\"\n]*|'[^'\n]*|[^\s\"'<>]*))?"
_TAG_NAME = rf"</?[a-z][a-z0-9-]*(?:{_ATTRIBUTE})*"
TAG = re.compile(rf"{_TAG_NAME}{_S}*/?>|<!--[^\n]*?-->|<\|[^|<>\n]*\|>", re.IGNORECASE)
TAG_BEGUN = re.compile(
    rf"</?|{_TAG_NAME}(?:{_ATTRIBUTE_BEGUN}|{_S}*/?)|<!-?|<!--[^\n]*|<\|[^|<>\n]*\|?"
    r"|<(?:https?|ftp)(?::/?|://[^\s<>]*)",
    re.IGNORECASE,
)
URL_IN_BRACKETS = re.compile(r"<((?:https?|ftp)://[^\s<>]+)>", re.IGNORECASE)
LINE_BREAKING_TAG = re.compile(r"</?(?:br|p|div|li|ul|ol|tr|table|h[1-6]|hr)\b", re.IGNORECASE)
THOUGHT = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
THOUGHT_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
THOUGHT_END_LENGTH = len("</thinking>")

ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,30});", re.IGNORECASE)
ENTITY_BEGUN = re.compile(r"&(?:#x?[0-9a-f]{0,7}|[a-z][a-z0-9]{0,30})?", re.IGNORECASE)

URL_STARTS = ("http://", "https://", "ftp://", "www.")
URL_STARTING_LETTERS = frozenset(start[0] for start in URL_STARTS)
URL_HOST = re.compile(
    r"(?:[a-z]+://)?(?:[^/@\s]*@)?(?:www\.)?([^/?#:\s]*\w[^/?#:\s]*)", re.IGNORECASE
)
URL_END = re.compile(r"[\s<>\"`]")
NOT_THE_URLS_OWN = ".,;:!?'’”*_~]}"

ZERO_WIDTH_JOINER = "\u200d"
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


def is_emoji(character: str) -> bool:
    """Whether a character is a picture, or only there to shape one."""
    code = ord(character)
    return code >= _EMOJI[0][0] and any(low <= code <= high for low, high in _EMOJI)
