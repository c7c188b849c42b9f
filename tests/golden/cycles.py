"""What an engine did, in the words of the reference vectors."""

from __future__ import annotations

from dspark import Generation

TOLERANCE = 1e-4  # absolute, in float32, as the vectors' own description asks for
NEVER_ENDS = 10_000


def cycles(generation: Generation, count: int) -> list[dict[str, object]]:
    """The first cycles of a generation in which something was drafted; it is then cancelled."""
    found: list[dict[str, object]] = []
    start = generation.prompt_tokens
    for step in generation:
        if step.draft:
            found.append(
                {
                    "start": start,
                    "anchor": step.anchor,
                    "draft": list(step.draft),
                    "scheduled": step.scheduled,
                    "accepted": step.accepted,
                    "committed": list(step.committed),
                }
            )
            start += len(step.committed)
        if len(found) == count:
            generation.cancel()
            break  # steps may have been made since
    return found
