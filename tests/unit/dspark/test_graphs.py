"""Steps are recorded once and replayed, run as they are where they cannot be, and never differ."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from dspark.graphs import Graphs, StaticStep
from tests.unit.dspark.tape import Tape


class Doubling:
    """A static step: `output = 2 × input + offset`, where the offset is Python's."""

    def __init__(self) -> None:
        self.input = torch.zeros(2)
        self.output = torch.zeros(2)
        self.offset = 0.0
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self.output.copy_(self.input * 2 + self.offset)


def test_a_replay_reads_the_tensors_as_they_are_then() -> None:
    graphs, step = Graphs(Tape()), Doubling()
    for value in (1.0, 5.0, -2.0):
        step.input.fill_(value)
        graphs.run("doubling", step)
        assert step.output.tolist() == [2 * value] * 2
    assert step.calls == 1


def test_a_replay_does_not_see_what_python_changes() -> None:
    """What makes the tape a proof: a step that depends on Python's state would be found out."""
    graphs, step = Graphs(Tape()), Doubling()
    graphs.run("doubling", step)
    step.offset = 1.0
    graphs.run("doubling", step)
    assert step.output.tolist() == [0.0, 0.0]


def test_each_key_is_recorded_once() -> None:
    tape = Tape()
    graphs = Graphs(tape)
    for key in ("a", "b", "a", "b", "a"):
        graphs.run(key, Doubling())
    assert (tape.recorded, tape.replayed) == (2, 5)


def test_what_was_prepared_is_not_recorded_again() -> None:
    tape = Tape()
    graphs, step, other = Graphs(tape), Doubling(), Doubling()
    graphs.prepare("doubling", step)
    assert (tape.recorded, tape.replayed) == (1, 0)
    step.input.fill_(4.0)
    graphs.prepare("doubling", other)
    graphs.run("doubling", other)
    assert step.output.tolist() == [8.0, 8.0]
    assert (tape.recorded, other.calls) == (1, 0)


def test_nothing_is_prepared_where_nothing_is_recorded() -> None:
    step = Doubling()
    Graphs().prepare("doubling", step)
    assert step.calls == 0


def test_a_step_too_large_to_record_leaves_the_others_recorded() -> None:
    tape = Tape()

    def capture(step: StaticStep) -> StaticStep:
        if step is large:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tape(step)

    large, small = Doubling(), Doubling()
    graphs = Graphs(capture)
    graphs.prepare("large", large)
    for _ in range(2):
        graphs.run("large", large)
        graphs.run("small", small)
    assert (large.calls, small.calls, tape.recorded) == (2, 1, 1)


def test_without_a_capture_steps_are_called() -> None:
    graphs, step = Graphs(), Doubling()
    assert not graphs.capturing
    for _ in range(3):
        graphs.run("doubling", step)
    assert step.calls == 3


def test_a_step_that_waits_for_a_result_is_no_static_step() -> None:
    with pytest.raises(AssertionError, match="waits for the device"):
        Tape()(lambda: print(torch.zeros(1).item()))


def test_what_cannot_be_recorded_runs_unrecorded_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts = []

    def refuse(step: StaticStep) -> StaticStep:
        attempts.append(step)
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs, first, second = Graphs(refuse), Doubling(), Doubling()
    first.input.fill_(3.0)
    with caplog.at_level(logging.WARNING):
        graphs.run("first", first)
        graphs.run("second", second)
        graphs.run("first", first)
    assert first.output.tolist() == [6.0, 6.0]
    assert (first.calls, second.calls) == (2, 1)
    assert attempts == [first]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "not permitted" in caplog.text


class FakeCuda:
    """Just enough of `torch.cuda` to follow a capture: which stream is current, what was run."""

    def __init__(self, patch: pytest.MonkeyPatch, *, fails: bool) -> None:
        self.current = self.main = FakeStream("main")
        self.events: list[str] = []
        self._fails = fails
        for name in ("graph_pool_handle", "current_stream", "device", "stream", "graph"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "set_stream", self._set)
        patch.setattr(torch.cuda, "Stream", lambda: FakeStream("side"))
        patch.setattr(torch.cuda, "CUDAGraph", FakeGraph)

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 1)

    def current_stream(self) -> FakeStream:
        return self.current

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(
        self, graph: FakeGraph, pool: object, stream: FakeStream, capture_error_mode: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        before, self.current = self.current, stream
        self.events.append("recording")
        yield
        if self._fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.current = before

    def _set(self, stream: FakeStream) -> None:
        self.current = stream

    def step(self) -> None:
        self.events.append(f"step on {self.current.name}")


class FakeStream:
    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: FakeStream) -> None:
        assert other is not self


class FakeGraph:
    replays = 0

    def replay(self) -> None:
        type(self).replays += 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_cuda_step_is_warmed_up_and_recorded_on_a_side_stream(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch, fails=fails)
    monkeypatch.setattr(FakeGraph, "replays", 0)
    graphs = Graphs.on(torch.device("cuda"))
    assert graphs.capturing
    graphs.run("step", cuda.step)
    graphs.run("step", cuda.step)
    recorded = ["step on side", "step on side", "recording", "step on side"]
    if fails:
        assert cuda.events == [*recorded, "step on main", "step on main"]
        assert not graphs.capturing
    else:
        assert cuda.events == recorded
        assert FakeGraph.replays == 2
    assert cuda.current is cuda.main
