"""Which contenders there are for a target on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark.bench.bandwidth import bytes_per_token
from dspark.bench.contenders import Contender
from dspark.bench.others import LlamaCpp, Transformers
from dspark.bench.ours import EngineSettings, OurEngine
from dspark.checkpoint import Checkpoint
from dspark.errors import InvalidRequest
from dspark.linear import PRECISIONS

SYSTEMS = ("transformers", "prompt-lookup", "llama.cpp", "dspark")
_OF_TRANSFORMERS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Wanted:
    """What is to be compared.

    Attributes:
        target: the model, as for `load_target`.
        folder: its converted or original checkpoint folder.
        stop_token_ids: what ends an answer.
        context_tokens: room for a prompt and its answer.
        systems: some of `SYSTEMS`.
        dtypes: precisions; systems without one of them are left out in it.
        drafters: what `load_drafter` takes.
        schedules: what each drafter is run with.
    """

    target: str | Path
    folder: Path
    stop_token_ids: frozenset[int]
    context_tokens: int
    device: str
    threads: int
    systems: Sequence[str]
    dtypes: Sequence[str]
    drafters: Sequence[str]
    schedules: Sequence[str]

    def __post_init__(self) -> None:
        for name, given, known in (
            ("system", self.systems, SYSTEMS),
            ("dtype", self.dtypes, tuple(PRECISIONS)),
        ):
            for each in given:
                if each not in known:
                    raise InvalidRequest(
                        f"{name} {each!r} is unknown; choose of {', '.join(known)}"
                    )


def lineup(wanted: Wanted) -> tuple[Contender, ...]:
    """The contenders, plain ones before those that draft."""
    checkpoint = Checkpoint(wanted.folder)
    contenders: list[Contender] = []

    def transformers(dtype: str, prompt_lookup: bool) -> Contender:
        return Contender(
            system="transformers",
            dtype=dtype,
            drafter="prompt lookup" if prompt_lookup else None,
            keeps_prompts=False,
            weight_bytes=bytes_per_token(checkpoint, dtype),
            load=lambda: Transformers(
                wanted.folder,
                wanted.device,
                dtype,
                wanted.threads,
                wanted.stop_token_ids,
                prompt_lookup=prompt_lookup,
            ),
        )

    def llama_cpp() -> Contender:
        path = Path(wanted.target)
        return Contender(
            system="llama.cpp",
            dtype=path.stem.rpartition(".")[2] if path.suffix == ".gguf" else "gguf",
            weight_bytes=path.stat().st_size if path.is_file() else 0,
            load=lambda: LlamaCpp(
                wanted.target, wanted.threads, wanted.context_tokens, wanted.stop_token_ids
            ),
        )

    def ours(dtype: str, drafter: str | None = None, schedule: str | None = None) -> Contender:
        settings = EngineSettings(
            wanted.target,
            wanted.device,
            dtype,
            wanted.threads,
            wanted.context_tokens,
            drafter,
            schedule,
        )
        return Contender(
            system="dspark",
            dtype=dtype,
            drafter=drafter and Path(drafter).name,
            schedule=schedule,
            weight_bytes=bytes_per_token(checkpoint, dtype),
            load=lambda: OurEngine(settings),
        )

    theirs = [dtype for dtype in wanted.dtypes if dtype in _OF_TRANSFORMERS]
    if "transformers" in wanted.systems:
        contenders += [transformers(dtype, prompt_lookup=False) for dtype in theirs]
    if "prompt-lookup" in wanted.systems:
        contenders += [transformers(dtype, prompt_lookup=True) for dtype in theirs]
    if "llama.cpp" in wanted.systems:
        contenders.append(llama_cpp())
    if "dspark" in wanted.systems:
        contenders += [ours(dtype) for dtype in wanted.dtypes]
        contenders += [
            ours(dtype, drafter, schedule)
            for dtype in wanted.dtypes
            for drafter in wanted.drafters
            for schedule in wanted.schedules
        ]
    return tuple(contenders)
