"""How long a silence ends a turn."""

from __future__ import annotations

import pytest

from audio.endpoint import Endpointer, SilenceEndpointer


@pytest.mark.parametrize("text", [None, "", "and then", "What time is it?"])
def test_silence_alone_decides_whatever_was_said(text: str | None) -> None:
    endpointer: Endpointer = SilenceEndpointer(silence_ms=500)
    assert endpointer.silence_needed_ms(text) == 500
