"""Which full stops belong to an abbreviation, and when one ends the sentence as well.

The lists are short on purpose: they hold what conversation and encyclopaedic prose use.  An
abbreviation that is missing costs a pause inside a sentence, never a word.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BEFORE_A_NAME = _words(
    """dr mr mrs ms mx prof st mt messrs mme mlle vs e.g i.e viz cf approx ca incl esp
    Rev Fr Gen Col Maj Lt Sgt Cpl Capt Cmdr Adm Gov Sen Rep Pres Hon Supt Insp"""
)
"""Never the end of a sentence. Capitalised entries only as they are: "gen" may be a word."""

BEFORE_A_NUMBER = _words(
    "no nos fig figs eq eqs p pp vol vols ch chap sec art par ver v bk pt ext tel op"
)
"""Not the end of a sentence if a number follows."""

PERHAPS_THE_END = _words(
    """etc al jr sr inc ltd co corp llc bros dept univ assn est ave blvd rd hwy
    in ft lb lbs oz kg km cm mm mi yd hr hrs min mins sec secs
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec
    Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun"""
)
"""The end of a sentence only if the next word begins one; so is everything like "p.m."."""

BEGINS_A_SENTENCE = _words(
    """A After All Also An And Any Are As At Before But By Can Could Did Do Does Each Every For
    From Had Has Have He Her Here His How However I If In Is It Its Just Let Many Maybe Me Most My
    No Not Now Of On Once One Or Our Perhaps Please She Should So Some Still Such Sure Thanks That
    The Their Then There These They This Those Though Thus To Today Tomorrow Unfortunately Use Was
    We Well Were What When Where Which While Who Why Will With Would Yes Yesterday Yet You Your"""
)
"""Words whose capital letter comes from their place and not from a name."""

_LETTERS_WITH_STOPS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}|[^\W\d_]")


def is_title(word: str) -> bool:
    """Whether a word without its full stop is like "Dr" or "e.g", which need one to follow."""
    return word.lower() in BEFORE_A_NAME or word in BEFORE_A_NAME


def needs_number(word: str) -> bool:
    """Whether a word without its full stop is like "no" or "p", which may stand for a longer one
    before a number."""
    return word.lower() in BEFORE_A_NUMBER


def may_end_sentence(word: str) -> bool:
    """Whether a word without its last full stop is like "etc", "p.m" or an initial."""
    return (
        word.lower() in PERHAPS_THE_END
        or word in PERHAPS_THE_END
        or _LETTERS_WITH_STOPS.fullmatch(word) is not None
    )


def begins_sentence(word: str) -> bool:
    """Whether a word, as it is written, is one that mostly begins a sentence."""
    return re.split(r"['’,]", word)[0] in BEGINS_A_SENTENCE
