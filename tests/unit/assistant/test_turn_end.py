"""Which words a judgement belongs to."""

from __future__ import annotations

from assistant.turn_end import TurnEnd
from audio.endpoint import SemanticEndpointer

ENDPOINTER = SemanticEndpointer()


def test_the_same_words_heard_again_keep_the_judgement_that_is_on_its_way() -> None:
    turn_end = TurnEnd(ENDPOINTER)
    assert turn_end.said(1, "turn on the lamp")
    assert not turn_end.said(2, "turn on the lamp")
    turn_end.judged(1, 1.0)
    assert turn_end.silence_needed_ms == ENDPOINTER.shortest_ms


def test_other_words_need_another_judgement() -> None:
    turn_end = TurnEnd(ENDPOINTER)
    turn_end.said(1, "turn on the lamp")
    turn_end.judged(1, 1.0)
    assert turn_end.said(2, "turn on the lamp and")
    turn_end.judged(1, 1.0)
    assert turn_end.silence_needed_ms == ENDPOINTER.unjudged_ms
    turn_end.judged(2, 0.0)
    assert turn_end.silence_needed_ms == ENDPOINTER.doubtful_ms


def test_after_more_speech_nothing_is_known() -> None:
    turn_end = TurnEnd(ENDPOINTER)
    turn_end.said(1, "turn on the lamp")
    turn_end.goes_on()
    turn_end.judged(1, 1.0)
    assert turn_end.silence_needed_ms == ENDPOINTER.unjudged_ms
    assert turn_end.said(1, "turn on the lamp")


def test_a_model_that_cannot_say_leaves_it_to_the_silence() -> None:
    turn_end = TurnEnd(ENDPOINTER)
    turn_end.said(1, "turn on the lamp")
    turn_end.judged(1, None)
    assert turn_end.silence_needed_ms == ENDPOINTER.unjudged_ms
