"""Which contenders there are for a target on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark.bench.contenders import Contender
from dspark.bench.others import LlamaCpp, Transformers
from dspark.bench.ours import EngineSettings, OurEngine
from dspark.bench.sources import Source
from dspark.errors import InvalidRequest
from dspark.linear import PRECISIONS
from dspark.tree import TreeShape

SYSTEMS = ("transformers", "prompt-lookup", "llama.cpp", "dspark")
_OF_TRANSFORMERS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Wanted:
    """What is to be compared.

    Attributes:
        source: where the models come from.
        folder: its converted or original checkpoint folder.
        stop_token_ids: what ends an answer.
        context_tokens: room for a prompt and its answer.
        systems: some of `SYSTEMS`.
        dtypes: precisions; systems without one of them are left out in it.
        drafters: what `load_drafter` takes.
        schedules: what each drafter is run with.
        trees: what each proposes, as `TreeShape.parse` reads it; `none` is one token after the
            other.
        temperature: of the answers; above 0 only this package's engine is compared.
    """

    source: Source
    folder: Path
    stop_token_ids: frozenset[int]
    context_tokens: int
    device: str
    threads: int
    systems: Sequence[str]
    dtypes: Sequence[str]
    drafters: Sequence[str]
    schedules: Sequence[str]
    trees: Sequence[str] = ("none",)
    temperature: float = 0.0

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


def _label(drafter: str) -> str:
    """What a drafter is called in tables: `dspark train` calls the folder of each `drafter`."""
    path = Path(drafter)
    return path.resolve().parent.name if path.name == "drafter" and path.is_dir() else path.name


def lineup(wanted: Wanted) -> tuple[Contender, ...]:
    """The contenders, plain ones before those that draft."""
    systems = [
        each
        for each in wanted.systems
        if each == "dspark" or (wanted.source.path is not None and wanted.temperature == 0)
    ]
    shapes = {
        each: None if each == "none" else TreeShape.parse(each) for each in ("none", *wanted.trees)
    }
    contenders: list[Contender] = []

    def transformers(dtype: str, prompt_lookup: bool) -> Contender:
        return Contender(
            system="transformers",
            dtype=dtype,
            drafter="prompt lookup" if prompt_lookup else None,
            keeps_prompts=False,
            weight_bytes=wanted.source.weight_bytes(wanted.folder, dtype),
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
        path = Path(wanted.source.path or "")
        return Contender(
            system="llama.cpp",
            dtype=path.stem.rpartition(".")[2] if path.suffix == ".gguf" else "gguf",
            weight_bytes=path.stat().st_size if path.is_file() else 0,
            load=lambda: LlamaCpp(
                path, wanted.threads, wanted.context_tokens, wanted.stop_token_ids
            ),
        )

    def ours(
        dtype: str, drafter: str | None = None, schedule: str | None = None, tree: str = "none"
    ) -> Contender:
        settings = EngineSettings(
            wanted.source,
            wanted.device,
            dtype,
            wanted.threads,
            wanted.context_tokens,
            drafter,
            schedule,
            shapes[tree],
            wanted.temperature,
        )
        return Contender(
            system="dspark",
            dtype=dtype,
            drafter=drafter and _label(drafter) + ("" if tree == "none" else f" tree {tree}"),
            schedule=schedule,
            sampled=wanted.temperature > 0,
            weight_bytes=wanted.source.weight_bytes(wanted.folder, dtype),
            load=lambda: OurEngine(settings),
        )

    theirs = [dtype for dtype in wanted.dtypes if dtype in _OF_TRANSFORMERS]
    if "transformers" in systems:
        contenders += [transformers(dtype, prompt_lookup=False) for dtype in theirs]
    if "prompt-lookup" in systems:
        contenders += [transformers(dtype, prompt_lookup=True) for dtype in theirs]
    if "llama.cpp" in systems:
        contenders.append(llama_cpp())
    if "dspark" in systems:
        contenders += [ours(dtype) for dtype in wanted.dtypes]
        contenders += [
            ours(dtype, drafter, schedule, tree)
            for dtype in wanted.dtypes
            for drafter in wanted.drafters
            for tree in wanted.trees
            for schedule in wanted.schedules
        ]
    return tuple(contenders)
