"""From what became of each recording to the figures of a system."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import get_args

import numpy as np

from assistant.bench.clips import Clip
from assistant.bench.outcome import MOMENTS, Outcome, Speculation
from audio.words import normalise, word_errors

LATENCIES = ("server_ttfa_ms", "client_ttfa_ms", "endpoint_wait_ms", "added_latency_ms")


@dataclass(frozen=True)
class Played:
    """A recording, and what one system made of it while `sessions` spoke at once."""

    system: str
    sessions: int
    clip: Clip
    outcome: Outcome

    def as_json(self) -> dict[str, object]:
        """The turn as JSON's types."""
        latencies = {name: _rounded(getattr(self.outcome, name)) for name in LATENCIES}
        moments = {name: _rounded(ms) for name, ms in self.outcome.moments_ms.items()}
        told = asdict(self.outcome) | {"moments_ms": moments}
        told["heard_ms"] = _rounded(self.outcome.heard_ms)
        return {
            "system": self.system,
            "sessions": self.sessions,
            "file": self.clip.path.name,
            "text": self.clip.text,
            **latencies,
            **told,
        }


@dataclass(frozen=True)
class Percentiles:
    """Of a latency, in milliseconds, over the turns that have one."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Percentiles | None:
        """Between two values the percentile is interpolated; without values there is none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(*(round(float(each), 1) for each in np.percentile(known, (50, 90, 99))))


@dataclass(frozen=True)
class Score:
    """The figures of one system with so many sessions at once.

    Attributes:
        turns: recordings played.
        answered: of these, how many have latencies: answered, and not cut into.
        cut_ins: turns in which it spoke before the user's last sample.
        wer: word errors per word of the labels, over all turns.
        speculation: what became of the answers begun early, and the tokens of those never heard.
        accepted_length: answer tokens per step of the language model; 1 is plain decoding.
        underruns: how often an answer's sound broke off.
        moments_ms: the median moment of each step of a turn, from the speech end; in order where
            those of each turn are.
    """

    system: str
    sessions: int
    turns: int
    answered: int
    server_ttfa_ms: Percentiles | None
    client_ttfa_ms: Percentiles | None
    endpoint_wait_ms: Percentiles | None
    added_latency_ms: Percentiles | None
    cut_ins: int
    wer: float
    speculation: Mapping[str, int]
    accepted_length: float
    underruns: int
    moments_ms: Mapping[str, float]

    @property
    def name(self) -> str:
        """How it is called in tables and files."""
        return self.system if self.sessions == 1 else f"{self.system}, {self.sessions} sessions"

    @property
    def hit_rate(self) -> float:
        """Which share of the turns was answered with what had been begun early."""
        return self.speculation["hit"] / self.turns


def score(turns: Sequence[Played]) -> Score:
    """Sum up the turns of one system, of which there is at least one."""
    outcomes = [turn.outcome for turn in turns]
    answered = [outcome for outcome in outcomes if outcome.answered]
    kinds = [outcome.speculation for outcome in outcomes]
    tokens = sum(outcome.output_tokens for outcome in outcomes)
    steps = tokens - sum(outcome.accepted for outcome in outcomes)
    return Score(
        system=turns[0].system,
        sessions=turns[0].sessions,
        turns=len(turns),
        answered=len(answered),
        server_ttfa_ms=Percentiles.of(each.server_ttfa_ms for each in outcomes),
        client_ttfa_ms=Percentiles.of(each.client_ttfa_ms for each in outcomes),
        endpoint_wait_ms=Percentiles.of(each.endpoint_wait_ms for each in outcomes),
        added_latency_ms=Percentiles.of(each.added_latency_ms for each in outcomes),
        cut_ins=sum(outcome.cut_in for outcome in outcomes),
        wer=_word_error_rate(turns),
        speculation={kind: kinds.count(kind) for kind in get_args(Speculation)}
        | {"wasted_tokens": sum(outcome.wasted_tokens for outcome in outcomes)},
        accepted_length=round(tokens / steps, 2) if steps else 1.0,
        underruns=sum(outcome.underruns for outcome in outcomes),
        moments_ms=_median_moments(answered),
    )


def scores(turns: Iterable[Played]) -> list[Score]:
    """Sum up each system at each number of sessions, in the order in which they first came."""
    groups: dict[tuple[int, str], list[Played]] = {}
    for turn in turns:
        groups.setdefault((turn.sessions, turn.system), []).append(turn)
    return [score(group) for group in groups.values()]


def as_json(
    turns: Sequence[Played], machine: Mapping[str, object], settings: Mapping[str, object]
) -> str:
    """The whole run: the figures of each system by its name, and every turn."""
    systems = {each.name: asdict(each) for each in scores(turns)}
    content = {
        "machine": machine,
        "settings": settings,
        "systems": systems,
        "each_turn": [turn.as_json() for turn in turns],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _word_error_rate(turns: Sequence[Played]) -> float:
    labels = [normalise(turn.clip.text) for turn in turns]
    errors = sum(
        word_errors(label, normalise(turn.outcome.transcript))
        for label, turn in zip(labels, turns, strict=True)
    )
    return round(errors / max(1, sum(map(len, labels))), 4)


def _median_moments(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The median of each moment that most turns have, over the turns that have all of these."""
    told = [
        {**outcome.moments_ms, "heard": outcome.heard_ms}
        for outcome in outcomes
        if outcome.heard_ms is not None
    ]
    names = [
        name for name in (*MOMENTS, "heard") if sum(name in each for each in told) > len(told) / 2
    ]
    whole = [each for each in told if all(name in each for name in names)]
    return {name: round(median(each[name] for each in whole), 1) for name in names if whole}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
