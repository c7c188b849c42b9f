"""Stops drafting while it does not pay, and tries it again after a while.

It counts steps and looks at no clock, so the same steps always switch at the same places.
"""

from __future__ import annotations


class SpeculationSwitch:
    """On while speculation yields more tokens in the time than plain decoding would.

    It begins with a probe of some steps. A probe that gains too little ends in a rest without
    drafting, a hopeless one before its end, and each failed probe doubles the next rest, so that a
    hopeless drafter costs next to nothing in the long run. Turning on asks for more than staying
    on does; otherwise a drafter that just breaks even would flip the switch at every probe.

    Args:
        probe_steps: how many drafted steps are looked at before it is decided.
        fewest_steps: how many are looked at in any case.
        rest_steps: how many steps go by before the next probe.
        longest_rest_steps: what doubling ends at.
        window_steps: over about how many of the last steps the gain is averaged.
        turn_on_gain: the gain that a probe must show; 1 is as fast as without drafts.
        keep_on_gain: the gain below which speculation is switched off again.
        hopeless_gain: the gain below which a probe is not even finished.
        least_expected_gain: likewise of the gain that the drafts' confidences promised, which says
            sooner what is to be had, and is wrong where a text is foreign to the drafter.
    """

    def __init__(
        self,
        *,
        probe_steps: int = 12,
        fewest_steps: int = 4,
        rest_steps: int = 128,
        longest_rest_steps: int = 1024,
        window_steps: int = 32,
        turn_on_gain: float = 1.05,
        keep_on_gain: float = 1.0,
        hopeless_gain: float = 0.75,
        least_expected_gain: float = 0.95,
    ) -> None:
        self._probe_steps = probe_steps
        self._fewest_steps = min(fewest_steps, probe_steps)
        self._first_rest_steps = rest_steps
        self._longest_rest_steps = longest_rest_steps
        self._decay = 1 - 1 / window_steps
        self._turn_on_gain = turn_on_gain
        self._keep_on_gain = keep_on_gain
        self._hopeless_gain = hopeless_gain
        self._least_expected_gain = least_expected_gain
        self._rest_steps = rest_steps  # of the next rest
        self._rest_left = 0
        self._drafted_steps = 0  # since the probe began
        self._spent_ms = 0.0
        self._plain_ms = 0.0
        self._expected_plain_ms = 0.0

    @property
    def on(self) -> bool:
        """Whether the next step is to be drafted."""
        return self._rest_left == 0

    @property
    def gain(self) -> float | None:
        """How much faster than plain decoding the last drafted steps were; None before any."""
        return self._plain_ms / self._spent_ms if self._spent_ms > 0 else None

    def record_drafted(
        self, spent_ms: float, plain_ms: float, expected_plain_ms: float | None = None
    ) -> None:
        """Take in a step with drafts.

        Args:
            spent_ms: what drafting and the step took.
            plain_ms: what plain decoding would have taken for the tokens that it gave.
            expected_plain_ms: for those that it was expected to give; the same if not said.
        """
        expected_plain_ms = plain_ms if expected_plain_ms is None else expected_plain_ms
        self._spent_ms = self._spent_ms * self._decay + spent_ms
        self._plain_ms = self._plain_ms * self._decay + plain_ms
        self._expected_plain_ms = self._expected_plain_ms * self._decay + expected_plain_ms
        self._drafted_steps += 1
        if self._drafted_steps < self._fewest_steps:
            return
        if not self._pays:
            self._rest_left = self._rest_steps
            self._rest_steps = min(2 * self._rest_steps, self._longest_rest_steps)
        elif self._drafted_steps == self._probe_steps:
            self._rest_steps = self._first_rest_steps

    @property
    def _pays(self) -> bool:
        if self._drafted_steps < self._probe_steps:
            return (
                self._plain_ms >= self._hopeless_gain * self._spent_ms
                and self._expected_plain_ms >= self._least_expected_gain * self._spent_ms
            )
        probed = self._drafted_steps == self._probe_steps
        needed = self._turn_on_gain if probed else self._keep_on_gain
        return self._plain_ms >= needed * self._spent_ms

    def record_plain(self) -> None:
        """Take in a step without drafts."""
        if self._rest_left > 0:
            self._rest_left -= 1
            if self._rest_left == 0:
                self._begin_probe()

    def _begin_probe(self) -> None:
        self._drafted_steps = 0
        self._spent_ms = 0.0
        self._plain_ms = 0.0
        self._expected_plain_ms = 0.0
