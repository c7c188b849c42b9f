"""What is spoken of the text that a model writes, and which part of it has been said."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.speakable import Speakable, SpeakableStream

SPOKEN = {
    # emphasis
    "**bold** and *italic* and ***both***": "bold and italic and both",
    "__bold__ and _italic_": "bold and italic",
    "**Note:** read *this*.": "Note: read this.",
    '"**quoted**" (*aside*)': '"quoted" (aside)',
    "un**frigging**believable": "unfriggingbelievable",
    "~~old~~ new": "old new",
    "unclosed **bold here": "unclosed bold here",
    "**a**, **b**, and **c**": "a, b, and c",
    "*one\ntwo*": "one\ntwo",
    # what only looks like it
    "5 < 10 and 10 > 5": "5 < 10 and 10 > 5",
    "2 * 3 * 4 is 24": "2 * 3 * 4 is 24",
    "2*3*4 is 24": "2*3*4 is 24",
    "**2*3 is 6**": "2*3 is 6",
    "a snake_case_name and f(x)*g(x)": "a snake_case_name and f(x)*g(x)",
    "about ~5 of them": "about ~5 of them",
    "a<b and c>d": "a<b and c>d",
    "if a <b then": "if a <b then",
    "x = y && z": "x = y && z",
    "AT&T and R&D;": "AT&T and R&D;",
    "#1 in C#": "#1 in C#",
    "-5 degrees": "-5 degrees",
    "arr[0] and [1] and [sic]": "arr[0] and [1] and [sic]",
    "C:\\Users\\bob": "C:\\Users\\bob",
    "we won | they lost": "we won | they lost",
    ">=5": ">=5",
    # escapes and entities
    "\\*not\\* bold": "*not* bold",
    "fish &amp; chips &lt;3&nbsp;you": "fish & chips <3 you",
    "&#39;tis &unknown; here": "'tis &unknown; here",
    # blocks
    "# Title\n\nText.": "Title\nText.",
    "### **Bold** title\nText.": "Bold title\nText.",
    "- one\n- two\n  - three": "one\ntwo\nthree",
    "* one\n+ two\n• three": "one\ntwo\nthree",
    "1. one\n2. two\n3) three": "1. one\n2. two\n3) three",
    "- **Milk**: white": "Milk: white",
    "> quoted\n> > twice": "quoted\ntwice",
    "above\n---\nbelow\n***\nend": "above\nbelow\nend",
    "Title\n=====\nText.": "Title\nText.",
    "two  spaces \t and\n\n\nlines": "two spaces and\nlines",
    "windows\r\nlines": "windows\nlines",
    # code and tables
    "Use `pip install *x*` now": "Use pip install *x* now",
    "Use ``a ` b`` now": "Use a b now",
    "unclosed `code\nnext": "unclosed code\nnext",
    "Before\n```python\nx = 1\n```\nafter": "Before\nafter",
    "Before\n~~~\n```\n~~~\nafter": "Before\nafter",
    "Before\n````\n```\n````\nafter": "Before\nafter",
    "Before\n```\nnever closed": "Before",
    "```in its line``` after": "in its line after",
    "  ```\n  x\n  ```\nafter": "after",
    "Before\n| a | b |\n|:--|--:|\n| 1 | 2 |\nafter": "Before\nafter",
    # links and addresses
    "see [the *docs*](https://x.org/a_(b)) now": "see the docs now",
    'see [it](<x y> "title"), [that][1]': "see it, that",
    "![a cat](cat.png) sits": "a cat sits",
    "[![badge](b.svg)](x.org) here": "badge here",
    "wow! [really](x)": "wow! really",
    "[open": "[open",
    "[text] (not a link)": "[text] (not a link)",
    "go to https://www.example.com/a/b?x=1#y.": "go to example.com.",
    "(see http://en.wikipedia.org/wiki/Cat)": "(see en.wikipedia.org)",
    "http://en.wikipedia.org/wiki/Cat_(pet) it is": "en.wikipedia.org it is",
    "www.example.com, then": "example.com, then",
    "<https://example.com/x> here": "example.com here",
    "mail bob.smith@example.com": "mail bob.smith@example.com",
    "https://user:word@host.org:8080/x": "host.org",
    "who has http:// there": "who has http there",
    # emoji and other invisible things
    "Hi 😀 there 👩‍👩‍👧 you 👍🏽!": "Hi there you!",
    "🎉 Great! ❤️": "Great!",
    "🇫🇷 France ✅ done": "France done",
    "1️⃣ first": "1 first",
    "50 °C, 5 €, ½, ™, naïve, 字": "50 °C, 5 €, ½, ™, naïve, 字",
    "zero\u200bwidth and soft\u00adhyphen": "zerowidth and softhyphen",
    # tags and thoughts
    "<b>bold</b> and <a href=\"x>y\" id='z'>link</a>": "bold and link",
    "one<br>two<br/>three": "one\ntwo\nthree",
    "<p>one</p><p>two</p>": "one\ntwo",
    "a <!-- comment > here --> b": "a b",
    "<think>Hm **what**\n```</think>\n\nYes.": "Yes.",
    "<thinking>never closed": "",
    "So <think>hm</think> yes": "So\nyes",
    "</think>Yes.": "Yes.",
    "Bye.<|im_end|>": "Bye.",
    "": "",
    " \n ": "",
}


def spoken(source: str) -> Speakable:
    stream = SpeakableStream()
    return stream.feed(source) + stream.flush()


@pytest.mark.parametrize("source", SPOKEN)
def test_words_are_kept_and_markup_is_not(source: str) -> None:
    assert spoken(source).text.rstrip("\n") == SPOKEN[source]


@pytest.mark.parametrize(
    ("source", "said", "heard"),
    [
        ("It is **very** late", "It is very", "It is **very**"),
        ("It is **very** late", "It is", "It is"),
        ("Use `x` now", "Use x", "Use `x`"),
        ("see [the docs](x.org) now", "see the docs", "see [the docs](x.org)"),
        ("see [the docs](x.org) now", "see the", "see [the"),
        ("go https://a.org/x now", "go a.org", "go https://a.org/x"),
        ("go https://a.org/x now", "go a.or", "go "),
        ("so <b>it</b> is", "so it", "so <b>it</b>"),
        ("fish &amp; chips", "fish &", "fish &amp;"),
        ("Hi 😀 you", "Hi", "Hi"),
        ("Hi 😀 you", "Hi y", "Hi 😀 y"),
        ("- one\n- two", "one", "- one"),
        ("- one\n- two", "one\nt", "- one\n- t"),
        ("<think>hm</think>Yes", "Y", "<think>hm</think>Y"),
        ("Done. 🎉 ", "Done.", "Done. 🎉 "),
    ],
)
def test_what_was_said_shows_what_was_heard_of_the_source(
    source: str, said: str, heard: str
) -> None:
    answer = spoken(source)
    assert answer.text.startswith(said)
    assert source[: answer.source_ends[len(said) - 1]] == heard


@pytest.mark.parametrize(
    ("begun", "certain"),
    [
        ("Hello there, fr", "Hello there, f"),
        ("It is **very** late", "It is very lat"),
        ("Look at [a link](http", "Look a"),
        ("5 < 10 is", "5 < 10 i"),
        ("So it is:\n```python\nx = ", "So it is:\n"),
        ("So it is:\n", "So it is:\n"),
        ("a <b and then", "a <b and the"),
    ],
)
def test_only_what_could_still_be_markup_is_held_back(begun: str, certain: str) -> None:
    assert SpeakableStream().feed(begun).text == certain


def test_a_long_bracket_is_not_waited_for() -> None:
    begun = "[" + "word " * 100
    assert len(SpeakableStream().feed(begun).text) > len(begun) - 10


PIECES = [*SPOKEN, "*", "**", "_", "`", "```\n", "[", "](", ")", "<", ">", "</b>", "<think>", "|"]
SOURCES = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=4).map(" ".join),
    st.lists(st.sampled_from(PIECES), max_size=4).map("\n".join),
    st.text(max_size=60),
)


@given(SOURCES, st.data())
def test_the_text_does_not_depend_on_how_it_was_cut(source: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(source)), max_size=20).map(sorted))
    stream, together = SpeakableStream(), Speakable("", ())
    for start, end in zip([0, *cuts], [*cuts, len(source)], strict=True):
        together += stream.feed(source[start:end])
    assert together + stream.flush() == spoken(source)


@given(SOURCES)
def test_source_positions_never_go_back_and_stay_within_the_source(source: str) -> None:
    ends = spoken(source).source_ends
    assert list(ends) == sorted(ends)
    assert all(0 <= end <= len(source) for end in ends)


@given(SOURCES.filter(lambda source: "\n" not in source and "<" not in source))
def test_all_of_a_line_is_accounted_for_once_it_has_been_said(source: str) -> None:
    answer = spoken(source)
    assert not answer.text or answer.source_ends[-1] == len(source)


@given(st.text(st.sampled_from("abc .,!?"), max_size=60))
def test_plain_text_stays_as_it_is(source: str) -> None:
    assert spoken(source).text == " ".join(source.split())


@given(SOURCES)
def test_white_space_is_single_and_never_at_the_start(source: str) -> None:
    text = spoken(source).text
    assert not text[:1].isspace()
    assert not any(one.isspace() and next_one.isspace() for one, next_one in pairwise(text))
