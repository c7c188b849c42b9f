"""Confidences are learnt from what became of tokens with the same evidence."""

from __future__ import annotations

import pytest

from dspark.acceptance import PRIOR_TOKENS, RunningAcceptance
from dspark.drafters import Draft
from dspark.tree import TreeShape


def draft(*evidence: str | None, tree: TreeShape | None = None) -> Draft:
    count = len(evidence)
    return Draft((4,) * count, confidence=(0.5,) * count, tree=tree, evidence=evidence)


def test_before_anything_is_known_a_drafters_own_estimate_holds() -> None:
    assert RunningAcceptance().applied(draft("a", "b")).confidence == (0.5, 0.5)
    assert RunningAcceptance().applied(Draft((1,), confidence=(0.7,))).confidence == (0.7,)


def test_then_it_is_the_share_that_stood_of_those_that_were_judged() -> None:
    acceptance = RunningAcceptance()
    for _ in range(60):
        acceptance.learn(draft("a", "b", "c"), [0])  # the second is refused, the third not judged
    a, b, c = acceptance.applied(draft("a", "b", "c")).confidence
    assert (a, c) == (pytest.approx(1, abs=PRIOR_TOKENS / 60), 0.5)
    assert b == pytest.approx(0, abs=PRIOR_TOKENS / 60)


def test_of_candidates_those_behind_the_accepted_one_were_not_judged() -> None:
    acceptance = RunningAcceptance()
    tree = TreeShape((-1, -1, -1, 1))
    for _ in range(60):
        acceptance.learn(draft("first", "second", "third", "child", tree=tree), [1])
    found = acceptance.applied(draft("first", "second", "third", "child")).confidence
    assert [round(each) for each in found[:2]] == [0, 1]
    assert found[2] == 0.5
    assert found[3] < 0.1


def test_what_has_no_evidence_keeps_its_confidence() -> None:
    acceptance = RunningAcceptance()
    acceptance.learn(draft(None, "b"), [])
    assert acceptance.applied(draft(None, "b")).confidence == (0.5, 0.5)


def test_it_follows_when_texts_change() -> None:
    acceptance = RunningAcceptance()
    for path in ([0], []):
        for _ in range(2000):
            acceptance.learn(draft("a"), path)
    assert acceptance.applied(draft("a")).confidence[0] < 0.05
