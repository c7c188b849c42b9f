"""Where an answer may be cut for the voice, and where it must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.chunker import ClauseChunker, count_words
from audio.speakable import Speakable, SpeakableStream

# In these tables `|` stands for a cut in place of a space, and `¦` for one where there is none.
SENTENCES = """
Dr. Smith is here.|He waits.
Mr. and Mrs. Jones left.|They were tired.
Ask Prof. Lee about it.|She knows.
Ms. Brown, please sit.|Thank you.
St. John lived here.|It was long ago.
They climbed Mt. Everest.|It was cold.
Gen. Grant met Col. Shaw.|Nobody spoke.
Sen. Warren and Rep. Lewis agree.|Gov. Newsom does not.
Rev. Green spoke.|Capt. Hook listened.
mr. smith called.|dr. jones did not.
(Dr. Smith agrees.)|Nobody else does.
“Dr. No” is a film.|It is old.
Messrs. Black and White came.|They sat.
Lt. Dan laughed.|Sgt. Pepper sang.

J. R. R. Tolkien wrote it.|He was English.
J.R.R. Tolkien wrote it.|He was English.
George W. Bush was president.|He paints now.
Samuel L. Jackson acted.|It was good.
I like the works of C. S. Lewis.|Do you?
Franklin D. Roosevelt won.|John F. Kennedy won too.
We need a Plan B.|The first one failed.
She is taller than I.|He is not.

He lives in the U.S. and works there.
The U.S. Army is large.|It has tanks.
He moved to the U.S.|The reason was work.
The U.K. Government said so.|We agree.
The U.N. was founded in 1945.|It has members.
Washington, D.C. is the capital.|It is hot.
She has a Ph.D. in physics.|He has a B.A. in music.
He was born in the U.S.S.R.|It is gone.
It is made in the U.S.A.|We like it.
A.I. is a broad field.|It grows.

Take fruit, e.g. apples or pears.|They are cheap.
Take fruit, e.g., apples.|They are cheap.
The last month, i.e. December, is cold.|It snows.
Milk, eggs, etc. are in the fridge.
We bought milk, eggs, etc.|Then we left.
Smith et al. found it.|It was new.
It is cats vs. dogs.|Cats win.
It was built ca. 1900 by monks.|They left.
It takes approx. five minutes.|Then rest.

It starts at 5 p.m. tomorrow.|Be there.
It starts at 5 p.m.|The doors open at four.
It opens at 9 a.m. Eastern time.|Call then.
The train leaves at 10:30.|It is late.
Come at 6:15 a.m. or 7 p.m. on Monday.|I wait.
It is 3 p.m.|Please hurry.
The alarm rings at 06:45:00.|Get up.
We met on Jan. 5 in town.|It rained.
It closes in Dec. every year.|It opens in May.
See you Mon. or Tues. next week.|Bye.
The cat sat.|The dog ran.
The party is on Sat.|We will come.

Pi is 3.14 or so.|It goes on.
It weighs 2.5 kg. on my scale.
About 1,000,000 people live there.|It is big.
It costs 5.|You have 6.
That was in 1999.|This is 2024.
It rose by 3.5%.|It fell by .5 points.
The ratio is 16:9.|It is wide.
Add 1.5 cups.|Stir it.
The answer is -3.|It is negative.
In Europe one writes 1.000.000,50.|Here we do not.
It is 6 ft. 2 in. tall.
He is 6 ft. tall.|She is 5 ft. 4.
Drive 5 mi. north and 3 km. east.|Stop there.
It took 5 min. and 3 sec. in all.|Good.
Use 5 lbs. of flour.|Mix it.
Oh no!|5 of them broke.

It costs $3.50.|That is cheap.
It costs $1,299.99 in total.|I paid.
She earned €2.5 million.|He earned less.
The fee is £10.|Pay now.
Apple Inc. is rich.|Google LLC is too.
Acme Co. makes things.|We buy them.
Acme Ltd. and Sons Corp. merged.|It was big.
He works at Acme Inc.|He likes it.

See No. 5 on the list.|It is blue.
He said no.|Five people left.
Look at Fig. 3 for this.|It is clear.
See p. 12 and pp. 14 of the book.|Read them.
It is in Vol. 2, Ch. 3.|Read it.
Beethoven's Op. 27 is famous.|He was deaf.
Use Ver. 2 of it.|It works.
See Sec. 4 below.|It is long.
Call ext. 42 for help.|They know.
He ate a fig.|It was sweet.

Install Python 3.12.1 first.|Then run it.
Use v2.0 or v2.1.3-beta.|They work.
Open main.py and setup.cfg.|Save them.
It is in Node.js.|We like it.
The address is 192.168.0.1.|Ping it.
Use .NET or ASP.NET.|They are old.
Edit config.yaml.|Restart it.
Write C++.|Or C#.

Visit example.com.|It is nice.
See en.wikipedia.org for more.|It is free.
Mail bob.smith@example.com.|He answers.
Write to a.b@c.co.uk, please.|Thanks.
We live at 5 Main St. in town.|Come by.
We live on 5th Ave. near the park.|Come by.
Yahoo! is a company.|It is old.

Really?|Yes!|Good.
What?!|No way!!|Fine.
Wait... what is that?|It is a cat.
Wait…|It is a cat.
Well… maybe so.|Who knows.
I am not sure...|Let us see.
hello there.|how are you?
iPhones are nice.|iPads too.
It ends here.
No end here
He left.|'Twas late.
Stop.|…and go.
First, second, and third; then the rest: all of it.|Next.
However, it rained – a lot – and stopped.|Next.

He said "Stop."|Then he left.
He said "stop!" and left.|Good.
"Why?" she asked.|He knew.
She wrote (in haste.)|Then she slept.
It works (see above).|Try it.
“It is late.”|“Yes, it is.”
‘Go.’|‘No.’
It is called "The End."|It ends.
(He left.)|[She stayed.]
It's the dogs' bowl.|It's full.
He said: «Bonjour.»|Elle rit.
She said "I like J. R. R. Tolkien."|Nobody agreed.
¿Qué tal?|¡Muy bien!

你好。¦今天天气很好！¦我们去公园吧？¦好的。
他说：“走吧。”¦她说：“好。”
今日は。¦元気ですか？¦はい、元気です。
नमस्ते।|आप कैसे हैं?|मैं ठीक हूँ।
नमस्ते।¦आप कैसे हैं?
كيف حالك؟|أنا بخير.
Привет.|Как дела?|Хорошо!
Она приехала в 1999 г. из города.
안녕하세요.|반갑습니다.
یہ اچھا ہے۔|وہ بھی۔
Բարեւ։|Ինչպես ես։
版本是3.14。¦价格是1,000元。
"""

FIRST_CHUNKS = """
Sure, I can help,|and then we go, slowly, home.|Bye.
Sure! Let me see.|It is, as far as I know, late.
Yes, of course,|we can, if you like.
Hello there, friend,|how are you, really?
Yes.
Yes. No. Maybe.|Who knows, really.
The capital of France is Paris,|and it is, I think, old.
Here is what I found:|one, two and three.
I looked it up;|it is true, I think.
It is sunny —|very sunny — today, and warm.
It is sunny—¦really, very sunny.
It is red-hot -|don't touch - it, ever.
On May 5, 2024,|we met, at last.
The numbers 1, 2, 3, 4,|and so on.
It costs 1,000,000 dollars,|give or take.
Well... it depends,|as always, on you.
At 5 p.m. we eat,|then, at six, we rest.
Take fruit, e.g., apples,|and eat it, raw.
Dr. Smith, who lives here,|left, sadly.
It is 10:30 now,|or later, perhaps.
“I am here,”|she said, and left.
Is that so?|he asked.|Yes, it is.
我的朋友，¦你好，世界。
مرحبا بك في بيتي،|كيف حالك، اليوم؟
"""

# What a model writes, with its markup; the chunks are what is left to be spoken of it.
MARKED_UP = {
    "1. Apples are red.\n2. Pears are green.\n": ["1. Apples are red.", "2. Pears are green."],
    "1) First this\n2) Then that": ["1) First this", "2) Then that"],
    "a. One thing\nb. Another": ["a. One thing", "b. Another"],
    "10. Ten\n11. Eleven": ["10. Ten", "11. Eleven"],
    "- Milk\n- Two eggs\n\nThat is all.": ["Milk", "Two eggs", "That is all."],
    "* **Milk:** white\n* **Eggs:** brown": ["Milk: white", "Eggs: brown"],
    "## Weather\nIt is sunny.": ["Weather", "It is sunny."],
    "**Stop.** Then go.": ["Stop.", "Then go."],
    "It is *very* late. **Go!**": ["It is very late.", "Go!"],
    "Use `a.b. C` here. Good.": ["Use a.b. C here.", "Good."],
    "Like so:\n```python\nx = 1. Y\n```\nDone.": ["Like so:", "Done."],
    "Great! 🎉 Let's go. 😀": ["Great!", "Let's go."],
    "🎉🎉🎉": [],
    "— … —": [],
    "See [Dr. Who](https://x.org/a.b?c). Bye.": ["See Dr. Who.", "Bye."],
    "See https://www.x.org/a.b?c=1. Then go.": ["See x.org.", "Then go."],
    "<think>Hm. What?</think>It is five. Yes.": ["It is five.", "Yes."],
    "| a. B | c |\n|---|---|\n| 1. D | 2 |\n\nSo there.": ["So there."],
    "One line\nanother line": ["One line", "another line"],
    "> Quoted. Twice.": ["Quoted.", "Twice."],
    "2 * 3 is 6. 5 < 10. Yes.": ["2 * 3 is 6.", "5 < 10.", "Yes."],
}


def table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def as_written(row: str) -> str:
    return row.replace("|", " ").replace("¦", "")


def as_cut(row: str) -> list[str]:
    return row.replace("¦", "|").split("|")


def chunks_of(answer: str, **settings: int) -> list[Speakable]:
    stream, chunker = SpeakableStream(), ClauseChunker(**settings)
    chunks = chunker.feed(stream.feed(answer))
    return chunks + chunker.feed(stream.flush()) + chunker.flush()


def texts(chunks: list[Speakable]) -> list[str]:
    return [chunk.text for chunk in chunks]


@pytest.mark.parametrize("row", table(SENTENCES))
def test_a_chunk_is_a_sentence(row: str) -> None:
    assert texts(chunks_of(as_written(row), first_min_words=0)) == as_cut(row)


@pytest.mark.parametrize("row", table(FIRST_CHUNKS))
def test_the_first_chunk_is_a_clause_of_three_words(row: str) -> None:
    assert texts(chunks_of(as_written(row))) == as_cut(row)


@pytest.mark.parametrize("answer", MARKED_UP)
def test_markup_neither_makes_nor_hides_a_sentence(answer: str) -> None:
    assert texts(chunks_of(answer, first_min_words=0)) == MARKED_UP[answer]


def test_there_are_enough_traps() -> None:
    assert len(table(SENTENCES)) + len(table(FIRST_CHUNKS)) + len(MARKED_UP) >= 150


def test_a_chunk_leaves_with_the_beginning_of_the_next_word() -> None:
    stream, chunker = SpeakableStream(), ClauseChunker()
    assert chunker.feed(stream.feed("Sure, I can help,")) == []
    assert texts(chunker.feed(stream.feed(" an"))) == ["Sure, I can help,"]


def test_a_line_leaves_with_its_end() -> None:
    stream, chunker = SpeakableStream(), ClauseChunker()
    assert texts(chunker.feed(stream.feed("Sure, here it is:\n"))) == ["Sure, here it is:"]


def test_what_comes_before_code_does_not_wait_for_the_code() -> None:
    stream, chunker = SpeakableStream(), ClauseChunker()
    assert texts(chunker.feed(stream.feed("Sure!\n```py"))) == ["Sure!"]


LONG = (
    "the old keeper walked along the shore looking for a thing that he had lost many years ago "
    "when the lighthouse was still burning every night and ships came from far away"
)


def test_a_sentence_without_a_boundary_is_cut_before_a_joining_word() -> None:
    assert texts(chunks_of(LONG, first_max_chars=100, max_chars=60)) == [
        "the old keeper walked along the shore looking for a thing that he had lost many years ago",
        "when the lighthouse was still burning every night",
        "and ships came from far away",
    ]


def test_a_long_sentence_is_cut_at_a_comma_rather_than_at_a_space() -> None:
    answer = "one two three four five, six seven eight nine ten eleven twelve thirteen"
    assert texts(chunks_of(answer, first_min_words=0, max_chars=50)) == [
        "one two three four five,",
        "six seven eight nine ten eleven twelve thirteen",
    ]


def test_a_long_sentence_is_not_cut_into_a_crumb_and_the_rest() -> None:
    answer = "Well, one two three four five six seven eight nine ten eleven twelve thirteen"
    assert texts(chunks_of(answer, first_min_words=0, max_chars=50)) == [
        "Well, one two three four five six seven eight",
        "nine ten eleven twelve thirteen",
    ]


@pytest.mark.parametrize("answer", ["a" * 1000, "字" * 1000, "ab " * 400, "ab, " * 300, "ก็" * 500])
def test_no_chunk_is_longer_than_the_maximum(answer: str) -> None:
    chunks = chunks_of(answer, max_chars=120)
    assert max(len(chunk.text) for chunk in chunks) <= 120
    assert "".join(texts(chunks)).replace(" ", "") == answer.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 0), ("— …", 0), ("It's 5 p.m.", 3), ("你好", 2), ("really—yes", 2), ("안녕 세상", 2)],
)
def test_words_are_counted_as_they_are_spoken(text: str, words: int) -> None:
    assert count_words(text) == words


ANSWERS = st.one_of(
    st.sampled_from([as_written(row) for row in table(SENTENCES + FIRST_CHUNKS)] + [*MARKED_UP]),
    st.text(st.sampled_from("ab .,!?*_`[]()<>|\n1A\"'—…。，字🎉"), max_size=80),
)


@given(st.lists(ANSWERS, max_size=4).map(" ".join), st.data())
def test_chunks_do_not_depend_on_how_the_answer_arrived(answer: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=20).map(sorted))
    stream, chunker = SpeakableStream(), ClauseChunker()
    chunks: list[Speakable] = []
    for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        chunks += chunker.feed(stream.feed(answer[start:end]))
    chunks += chunker.feed(stream.flush()) + chunker.flush()
    assert chunks == chunks_of(answer)


@given(ANSWERS)
def test_no_word_is_lost_and_every_chunk_keeps_its_place_in_the_source(answer: str) -> None:
    stream = SpeakableStream()
    spoken = stream.feed(answer) + stream.flush()
    chunks = chunks_of(answer)
    place = 0
    for chunk in chunks:
        assert count_words(chunk.text) > 0
        assert chunk.text == chunk.text.strip()
        start = spoken.text.index(chunk.text, place)
        assert count_words(spoken.text[place:start]) == 0
        place = start + len(chunk.text)
        assert chunk == spoken[start:place]
    assert count_words(spoken.text[place:]) == 0
