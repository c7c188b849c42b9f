"""A stand-in for CUDA graphs that runs anywhere: the operations of a step, recorded and replayed.

As with a CUDA graph, a replay runs no Python of the step. It repeats the recorded operations on
the recorded tensors, so whatever the step took from elsewhere than a tensor stays as it was. And
as with one, a step that makes the host wait for a result cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dspark.graphs import StaticStep

_WAITS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "lift_fresh", "_assert")
"""Operations that need a value on the host, or bring one from there."""


def _tensors(values: object) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


class _Recording(TorchDispatchMode):
    """Notes each operation with its very arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.repeats: list[Callable[[], None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in _WAITS:
            # No RuntimeError, which would be taken for a reason to go on unrecorded.
            raise AssertionError(f"{name} waits for the device")
        results = func(*args, **kwargs)
        given = {each.untyped_storage().data_ptr() for each in _tensors([*args, *kwargs.values()])}
        made = [
            index
            for index, each in enumerate(_tensors(results))
            if each.untyped_storage().data_ptr() not in given
        ]

        def repeat() -> None:
            again = list(_tensors(func(*args, **kwargs)))
            for index, result in enumerate(_tensors(results)):
                if index in made:  # a view, and what was written in place, is there already
                    result.copy_(again[index])

        if made or func._schema.is_mutable:
            self.repeats.append(repeat)
        return results


class Tape:
    """A `Capture`; counts what was recorded and replayed.

    Attributes:
        recorded: how many steps.
        replayed: how many times.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def __call__(self, step: StaticStep) -> StaticStep:
        recording = _Recording()
        with recording:
            step()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            for repeat in recording.repeats:
                repeat()

        return replay
