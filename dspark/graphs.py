"""Steps that are recorded once and replayed: one launch where there would be hundreds.

On a GPU the arithmetic of a decoding step takes less time than Python needs to launch its
kernels. A CUDA graph launches them all at once, always the same kernels on the same memory. So
what is recorded must be a *static step*: a function without arguments that reads tables at fixed
places, writes its results to fixed places, keeps nothing in Python, and may be run again with the
same result. The same functions run as they are where nothing records them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

import torch

logger = logging.getLogger(__name__)

StaticStep = Callable[[], None]
"""See above: depends on nothing but the contents of tensors that stay where they are."""

Capture = Callable[[StaticStep], StaticStep]
"""Runs a step as often as it likes, and returns what replays it."""


class Graphs:
    """Runs static steps, by replaying them where there is a way to capture them.

    Args:
        capture: how a step is recorded; None to call steps as they are.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture
        self._replays: dict[Hashable, StaticStep] = {}

    @classmethod
    def on(cls, device: torch.device) -> Graphs:
        """CUDA graphs on a CUDA device, plain calls elsewhere."""
        return cls(CudaCapture(device) if device.type == "cuda" else None)

    @property
    def capturing(self) -> bool:
        """Whether a step's first run takes longer because it is recorded."""
        return self._capture is not None

    def run(self, key: Hashable, step: StaticStep) -> None:
        """Run a step.

        Args:
            key: names the step and all its shapes. Steps with equal keys do the same to the same
                tensors: of those only the first is ever called.
            step: what to do.
        """
        replay = self._replays.get(key)
        if replay is None:
            replay = self._replays[key] = self._recorded(step)
        replay()

    def prepare(self, key: Hashable, step: StaticStep) -> None:
        """Record a step for later, if steps are recorded at all; arguments as in `run`.

        The step may be run meanwhile, with whatever is in its tables.
        """
        if self._capture is not None and key not in self._replays:
            self._replays[key] = self._recorded(step)

    def _recorded(self, step: StaticStep) -> StaticStep:
        if self._capture is None:
            return step
        try:
            return self._capture(step)
        except torch.OutOfMemoryError as error:
            logger.warning("There is no memory to record a step (%s): it runs unrecorded", error)
            return step
        except RuntimeError as error:
            # Slower, and just as right. What fails for one shape would fail for the others.
            logger.warning("A step cannot be recorded (%s): new ones run unrecorded", error)
            self._capture = None
            return step


class CudaCapture:
    """Records steps as CUDA graphs, which share one pool of memory.

    Sharing is safe because graphs are replayed one after the other and leave their results in
    tensors outside the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no type

    def __call__(self, step: StaticStep) -> StaticStep:
        """Run the step, then record it; raises RuntimeError if it cannot be recorded."""
        with torch.cuda.device(self._device):
            main = torch.cuda.current_stream()
            # The first runs load kernels and allocate workspaces, which a recording may not; and
            # on a side stream, so that nothing of them becomes part of it.
            self._side.wait_stream(main)
            with torch.cuda.stream(self._side):
                for _ in range(2):
                    step()
            main.wait_stream(self._side)
            graph = torch.cuda.CUDAGraph()
            try:
                # Other threads may use the GPU meanwhile (for speech, say): theirs does not count.
                with torch.cuda.graph(
                    graph, self._pool, self._side, capture_error_mode="thread_local"
                ):
                    step()
            except RuntimeError:
                torch.cuda.set_stream(main)  # which a failed recording leaves as it was within
                raise
        return graph.replay
