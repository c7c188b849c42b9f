"""How English writing is said, where the phonemiser's own reading is wrong.

eSpeak reads "$5" as "dollar five", passes over "<" in silence and ends a sentence after "Dr.".
Each written word is respelled by itself, with a look at its neighbours, and stays one word: what
is said for it can be traced back to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from audio.abbreviations import is_title, may_end_sentence, needs_number

_SIGNS = {"<": "less than", ">": "greater than", "*": "times", "→": "to", "=>": "to", "->": "to"}
_SHORT = {
    "dr": "doctor", "mr": "mister", "mrs": "missus", "ms": "miz", "prof": "professor",
    "mt": "mount", "gen": "general", "sen": "senator", "gov": "governor", "rev": "reverend",
    "rep": "representative", "capt": "captain", "lt": "lieutenant", "sgt": "sergeant",
    "col": "colonel", "pres": "president", "vs": "versus", "approx": "approximately",
    "jr": "junior", "sr": "senior", "e.g": "for example", "i.e": "that is", "ft": "feet",
    "ave": "avenue", "blvd": "boulevard", "jan": "january", "feb": "february", "mar": "march",
    "apr": "april", "jun": "june", "jul": "july", "aug": "august", "sep": "september",
    "sept": "september", "oct": "october", "nov": "november", "dec": "december",
}  # fmt: skip
_BEFORE_NUMBER = {
    "no": "number", "nos": "numbers", "fig": "figure", "p": "page", "pp": "pages",
    "vol": "volume", "ch": "chapter", "sec": "section", "eq": "equation", "ver": "version",
}  # fmt: skip
_SCALES = ("thousand", "million", "billion", "trillion")
_MONEY = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny")}
_FRACTIONS = {"1/2": "one half", "1/3": "one third", "2/3": "two thirds", "1/4": "one quarter",
              "3/4": "three quarters"}  # fmt: skip
_DECADES = {"00": "hundreds", "10": "tens", "20": "twenties", "30": "thirties", "40": "forties",
            "50": "fifties", "60": "sixties", "70": "seventies", "80": "eighties",
            "90": "nineties"}  # fmt: skip

_AROUND = re.compile(r"^([\"'“‘(\[{]*)(.*?)([\"'”’)\]},;:!?…]*|[\"'”’)\]}]*\.+[\"'”’)\]}]*)$")
_AMOUNT = re.compile(r"([$€£])(\d[\d,]*)(?:\.(\d+))?")
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)([ap]\.?m\.?)?", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,4})[-–](\d{1,4})")
_TELEPHONE = re.compile(r"(?:\d{3}-)?\d{3}-\d{4}")
_CENTURY = re.compile(r"(1[1-9])(\d\d)(s?)")


def spelled_out(words: Sequence[str]) -> list[str]:
    """What to give the phonemiser for each word of a text; as many as there are words."""
    padded = ["", *words, ""]
    return [_said(*padded[i : i + 3]) for i in range(len(words))]


def _said(previous: str, word: str, following: str) -> str:
    if word in _SIGNS:
        return _SIGNS[word]
    if word == "-" and previous[-1:].isdigit() and following[:1].isdigit():
        return "minus"
    match = _AROUND.match(word)
    if match is None:
        return word
    before, core, after = match.groups()
    if after.startswith(".") and after.strip(".") == "" and following:
        if len(after) > 1:
            after = ","  # a sentence that trails off and goes on
        elif _stop_is_not_spoken(core, following):
            return before + _in_full(core, following)
    if after.startswith("…") and following:
        after = ","
    if (amount := _AMOUNT.match(previous.lstrip("(\"'"))) and core in _SCALES:
        return f"{before}{core} {_MONEY[amount[1]][0]}s{after}"
    return before + _figure(core, following) + after


def _stop_is_not_spoken(core: str, following: str) -> bool:
    by_number = needs_number(core) and following[:1].isdigit()
    return is_title(core) or by_number or may_end_sentence(core)


def _in_full(core: str, following: str) -> str:
    if needs_number(core) and following[:1].isdigit():
        return _BEFORE_NUMBER.get(core.lower(), core)
    return _SHORT.get(core.lower(), core)


def _figure(core: str, following: str) -> str:
    """A number, an amount or a time in words, as far as the digits alone mislead."""
    if amount := _AMOUNT.fullmatch(core):
        return _amount(*amount.groups(), scaled=following.strip(".,!?") in _SCALES)
    if time := _TIME.fullmatch(core):
        return _time(time[1], time[2], time[3], following)
    if core in _FRACTIONS:
        return _FRACTIONS[core]
    if _TELEPHONE.fullmatch(core):
        return ", ".join(" ".join(group) for group in core.split("-"))
    if (limits := _RANGE.fullmatch(core)) and int(limits[1]) < int(limits[2]):
        return f"{limits[1]} to {limits[2]}"
    if year := _CENTURY.fullmatch(core):
        return _year(*year.groups())
    if core.startswith("#") and core[1:].isdigit():
        return f"number {core[1:]}"
    if core.startswith("~") and core[1:2].isdigit():
        return f"about {core[1:]}"
    if re.fullmatch(r"[^\W\d_]+(/[^\W\d_]+)+", core):
        return core.replace("/", " ")
    return core


def _amount(sign: str, whole: str, part: str | None, *, scaled: bool) -> str:
    unit, small = _MONEY[sign]
    if scaled:
        return whole if part is None else f"{whole}.{part}"
    units = f"{whole} {unit}" if whole == "1" else f"{whole} {unit}s"
    if part is None or len(part) != 2:
        return units if part is None else f"{whole}.{part} {unit}s"
    if int(part) == 0:
        return units
    plural = {"penny": "pence"}.get(small, f"{small}s")
    smalls = f"{int(part)} {small if int(part) == 1 else plural}"
    return smalls if whole == "0" else f"{units} and {smalls}"


def _time(hour: str, minute: str, half: str | None, following: str) -> str:
    if minute == "00":
        named = half or re.match(r"[ap]\.?m", following, re.IGNORECASE)
        said = hour if named else f"{hour} o'clock"
    else:
        said = f"{hour} oh {minute[1]}" if minute[0] == "0" else f"{hour} {minute}"
    return f"{said} {half}" if half else said


def _year(century: str, rest: str, plural: str) -> str:
    if plural:
        return f"{century} {_DECADES[rest]}" if rest in _DECADES else f"{century}{rest} s"
    if rest == "00":
        return f"{century} hundred"
    return f"{century} oh {rest[1]}" if rest[0] == "0" else f"{century} {rest}"
