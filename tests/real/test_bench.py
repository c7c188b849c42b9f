"""The bench against the real server and the real naive pipeline, with two recordings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real


def test_the_assistant_is_heard_before_the_naive_pipeline(server_url: str, tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    program = [sys.executable, "-c", "from assistant.cli import app; app()", "bench"]
    settings = ["--sessions", "1", "--turns", "2", "--listen-s", "1", "--url", server_url]
    subprocess.run([*program, *settings, "--json", str(written)], check=True, capture_output=True)
    systems = json.loads(written.read_text(encoding="utf-8"))["systems"]
    assert list(systems) == ["assistant", "naive"]
    for figures in systems.values():
        assert figures["answered"] == figures["turns"] == 2
        assert figures["wer"] < 0.5
        assert figures["client_ttfa_ms"]["p50"] >= figures["server_ttfa_ms"]["p50"]
    # Both were measured in the same moments, and the naive one pads every sound to 30 s.
    assert systems["assistant"]["server_ttfa_ms"]["p50"] < systems["naive"]["server_ttfa_ms"]["p50"]
