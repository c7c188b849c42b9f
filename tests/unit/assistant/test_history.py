"""The prompt is what was said and heard, in strict alternation."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.history import ROOT, History
from assistant.items import Item, ItemStatus, Message, Role


def item(item_id: str, role: Role, text: str | None, heard: str | None = None) -> Item:
    return Item(item_id, role, text, False, ItemStatus.COMPLETED, heard)


def test_an_answer_counts_as_far_as_it_was_heard() -> None:
    history = History()
    history.add(item("1", Role.USER, "tell me a story"))
    history.add(item("2", Role.ASSISTANT, "Once upon a time there was", "Once upon"))
    assert history.messages("Be kind.") == (
        Message(Role.SYSTEM, "Be kind."),
        Message(Role.USER, "tell me a story"),
        Message(Role.ASSISTANT, "Once upon"),
    )


def test_an_unheard_answer_joins_the_questions_around_it() -> None:
    history = History()
    history.add(item("1", Role.USER, "tell me"))
    history.add(item("2", Role.ASSISTANT, "Once", ""))
    history.add(item("3", Role.USER, "a joke"))
    assert history.messages("") == (Message(Role.USER, "tell me a joke"),)


def test_system_items_join_the_instructions() -> None:
    history = History()
    history.add(item("1", Role.USER, "hi"))
    history.add(item("2", Role.SYSTEM, "Speak French."))
    assert history.messages("Be kind.")[0] == Message(Role.SYSTEM, "Be kind.\n\nSpeak French.")


def test_items_go_where_they_are_put() -> None:
    history = History()
    for item_id, after in (("b", None), ("a", ROOT), ("c", "b"), ("ab", "a")):
        history.add(item(item_id, Role.USER, item_id), after)
    assert [i.item_id for i in history] == ["a", "ab", "b", "c"]
    assert history.previous_id("ab") == "a"
    assert history.previous_id("a") is None
    with pytest.raises(KeyError):
        history.add(item("x", Role.USER, "x"), "nowhere")


def test_it_knows_whether_the_user_waits_for_an_answer() -> None:
    history = History()
    assert not history.awaits_answer
    history.add(item("1", Role.USER, "hi"))
    assert history.awaits_answer
    history.add(item("2", Role.ASSISTANT, "Hello.", ""))
    assert history.awaits_answer
    history.write("2", "Hello.", ItemStatus.COMPLETED, "Hello.")
    assert not history.awaits_answer


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Role)), st.sampled_from([None, "", "a", "b c"])),
        max_size=12,
    )
)
def test_the_prompt_alternates_whatever_happened(said: list[tuple[Role, str | None]]) -> None:
    history = History()
    for number, (role, text) in enumerate(said):
        history.add(item(str(number), role, text, text))
    roles = [message.role for message in history.messages("instructions")]
    assert roles[0] is Role.SYSTEM
    assert Role.SYSTEM not in roles[1:]
    assert all(a is not b for a, b in pairwise(roles))
