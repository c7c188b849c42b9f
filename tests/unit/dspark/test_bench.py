"""The comparison: every contender asked alike, in rotating order, and its numbers as defined."""

from __future__ import annotations

import json
import os
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from safetensors.torch import load_file

from dspark import Engine, SamplingParams, load_target
from dspark.bench.bandwidth import bytes_per_token, copy_bandwidth
from dspark.bench.chart import svg
from dspark.bench.contenders import Answer, Contender, Unavailable
from dspark.bench.cost_chart import costs_svg
from dspark.bench.lineup import SYSTEMS, Wanted, lineup
from dspark.bench.measurement import Machine, Report, Row, Skipped, measure
from dspark.bench.others import LlamaCpp, Transformers
from dspark.bench.ours import EngineSettings, OurEngine
from dspark.bench.prompts import BenchPrompt, read_prompts, tokenised
from dspark.bench.record import Record
from dspark.bench.sources import RandomWeights, Stored
from dspark.bench.table import table
from dspark.checkpoint import Checkpoint
from dspark.errors import InvalidRequest
from dspark.tree import TreeShape

MACHINE = Machine("a processor", cores=2, device="cpu", torch="2", bandwidth_gb_s=10.0)
PROMPTS = (BenchPrompt(known=(1, 2), new=(3, 4)), BenchPrompt(known=(1, 5), new=(6, 7)))
MAX_NEW_TOKENS = 5


class Scripted:
    """A contender that takes what it is told, and logs what it is asked."""

    def __init__(self, name: str, log: list[str], steps: Sequence[int], step_ms: float) -> None:
        self._name = name
        self._log = log
        self.extra_bytes = 5_000_000
        self._steps = steps
        self._step_ms = step_ms

    def answer(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
        self._log.append(f"{self._name} {tuple(prompt_ids)} {max_new_tokens}")
        return Answer(
            token_ids=tuple(range(sum(self._steps))),
            stopped=False,
            first_token_ms=40.0 if prompt_ids[0] == 1 else 100.0,
            total_ms=(40.0 if prompt_ids[0] == 1 else 100.0)
            + (len(self._steps) - 1) * self._step_ms,
            steps=len(self._steps),
            phases_ms={"target": (len(self._steps) - 1) * self._step_ms},
        )

    def close(self) -> None:
        self._log.append(f"{self._name} closed")


def contender(
    system: str,
    log: list[str] | None = None,
    steps: Sequence[int] = (1, 1, 1, 1, 1),
    step_ms: Sequence[float] = (20.0,),
    drafter: str | None = None,
) -> Contender:
    """One whose n-th round takes `step_ms[n]` a step and gives `steps` tokens in each."""
    rounds = iter(step_ms * 10)
    scripted_log = [] if log is None else log
    return Contender(
        system=system,
        dtype="int8",
        drafter=drafter,
        weight_bytes=100_000_000,
        load=lambda: Scripted(system, scripted_log, steps, next(rounds)),
    )


def unavailable(system: str) -> Contender:
    def load() -> Scripted:
        raise Unavailable("it is not installed")

    return Contender(system, "int8", load)


def run(*contenders: Contender, repeats: int = 1) -> Report:
    return measure(contenders, PROMPTS, MACHINE, repeats=repeats, max_new_tokens=MAX_NEW_TOKENS)


# --- measuring -----------------------------------------------------------------------------------


def test_each_round_begins_with_another_contender_and_one_is_in_memory_at_a_time() -> None:
    log: list[str] = []
    run(*(contender(name, log) for name in "abc"), repeats=3)
    in_memory = [name for name, _ in groupby(line.split()[0] for line in log)]
    assert "".join(in_memory) == "abc" + "bca" + "cab"


def test_side_by_side_each_prompt_is_answered_by_all_before_the_next() -> None:
    log: list[str] = []
    rivals = [contender("a", log), unavailable("b"), contender("c", log, step_ms=(10.0,))]
    report = measure(rivals, PROMPTS, MACHINE, repeats=1, max_new_tokens=5, side_by_side=True)
    prompts = [" ".join(line.split()[1:]) for line in log]
    assert prompts[::2] == prompts[1::2]
    answers = [line.split()[0] for line in log if line.endswith(" 5")]
    assert sorted(answers[:2]) == sorted(answers[2:]) == ["a", "c"]
    assert log[-2:] == ["c closed", "a closed"]
    assert [(row.system, round(row.tokens_per_s)) for row in report.rows] == [("a", 50), ("c", 100)]
    assert [each.system for each in report.skipped] == ["b int8"]


def test_side_by_side_they_come_after_each_other_in_any_order() -> None:
    log: list[str] = []
    prompts = [replace(PROMPTS[0], known=(number,)) for number in range(30)]
    rivals = [contender(name, log) for name in "abc"]
    measure(rivals, prompts, MACHINE, repeats=1, max_new_tokens=5, side_by_side=True)
    answers = "".join(line[0] for line in log if line.endswith(" 5"))
    assert len({answers[at : at + 3] for at in range(0, len(answers), 3)}) == 6


def test_all_new_prompts_come_before_those_whose_beginning_is_then_known() -> None:
    log: list[str] = []
    run(contender("a", log))
    assert log == [
        "a (6, 7) 8",
        "a (3, 4) 1",
        "a (6, 7) 1",
        "a (1, 5) 8",
        "a (1, 2) 5",
        "a (1, 5) 5",
        "a closed",
    ]


def test_numbers_are_as_defined() -> None:
    (row,) = run(contender("a")).rows
    assert row.tokens_per_s == pytest.approx(50)  # 20 ms a token after the first
    assert (row.ttft_ms, row.ttft_cached_ms) == (100, 40)
    assert row.accepted_length == 1
    assert row.phases_ms == {"target": pytest.approx(20)}
    assert row.floor_share == pytest.approx(0.5)  # 10 GB/s allow 100 tokens/s of 0.1 GB each
    assert row.prompts == 2
    assert row.same_as_plain is None
    assert row.extra_mb == 5


def test_speculation_counts_tokens_a_step_without_the_first() -> None:
    plain, drafting = run(contender("a"), contender("a", steps=(1, 4), drafter="d")).rows
    assert drafting.accepted_length == 4
    assert drafting.tokens_per_s == pytest.approx(4 * plain.tokens_per_s)
    assert drafting.phases_ms == {"target": pytest.approx(20)}


def test_a_disturbed_round_does_not_count() -> None:
    (row,) = run(contender("a", step_ms=(900.0, 20.0, 5.0)), repeats=3).rows
    assert row.tokens_per_s == pytest.approx(50)
    assert row.phases_ms["target"] == pytest.approx(20)


def test_drafted_answers_are_compared_with_plain_ones_of_the_same_system() -> None:
    rows = run(
        contender("a"),
        contender("a", steps=(1, 4), drafter="right"),
        contender("a", steps=(1, 3), drafter="wrong"),
        contender("b", steps=(1, 4), drafter="without a plain one"),
    ).rows
    assert [row.same_as_plain for row in rows] == [None, 1.0, 0.0, None]


def test_one_that_keeps_no_prompts_has_no_time_for_a_known_one() -> None:
    (row,) = run(replace(contender("a"), keeps_prompts=False)).rows
    assert row.ttft_cached_ms is None


def test_one_that_cannot_run_is_left_out_with_its_reason() -> None:
    report = run(contender("a"), unavailable("b"), repeats=2)
    assert [row.system for row in report.rows] == ["a"]
    assert [(each.system, each.reason) for each in report.skipped] == [
        ("b int8", "it is not installed")
    ]


def test_one_that_fails_is_still_let_go() -> None:
    log: list[str] = []

    class Failing(Scripted):
        def answer(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
            raise RuntimeError("out of memory")

    broken = Contender("a", "int8", lambda: Failing("a", log, (), 0.0))
    with pytest.raises(RuntimeError, match="out of memory"):
        run(broken)
    assert log == ["a closed"]


def test_progress_goes_from_nothing_to_everything() -> None:
    seen: list[tuple[str, float]] = []
    measure(
        [contender("a"), contender("b")],
        PROMPTS,
        MACHINE,
        repeats=2,
        on_progress=lambda name, done: seen.append((name, done)),
    )
    assert [done for _, done in seen] == [0, 0.25, 0.5, 0.75, 1]
    assert seen[0][0] == "a int8"


def test_each_turn_is_told_with_everything_so_far() -> None:
    told: list[tuple[str, list[float]]] = []

    def on_turn(latest: Row | Skipped, report: Report) -> None:
        told.append((latest.system, [round(row.tokens_per_s) for row in report.rows]))

    rivals = [contender("a", step_ms=(20.0, 10.0)), unavailable("b"), contender("c")]
    report = measure(rivals, PROMPTS, MACHINE, repeats=2, on_turn=on_turn)
    assert told == [
        ("a", [50]),
        ("b int8", [50]),
        ("c", [50, 50]),
        ("c", [50, 50]),
        ("a", [75, 50]),
    ]
    assert [round(row.tokens_per_s) for row in report.rows] == [75, 50]


def test_the_json_has_the_machine_and_a_row_for_each() -> None:
    content = json.loads(json.dumps(run(contender("a"), unavailable("b")).as_json()))
    assert content["machine"]["processor"] == "a processor"
    (row,) = content["rows"]
    keys = "system drafter schedule dtype threads prompts tokens_per_s ttft_ms accepted_length"
    assert set(keys.split()) | {"phases_ms"} <= set(row)
    assert content["skipped"] == [{"system": "b int8", "reason": "it is not installed"}]


# --- keeping what was measured -------------------------------------------------------------------


def test_a_comparison_that_is_stopped_leaves_the_rows_it_had(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    record = Record(path)

    def stopped() -> Scripted:
        raise KeyboardInterrupt

    rivals = [contender("a"), contender("b", drafter="d"), Contender("c", "int8", stopped)]
    with pytest.raises(KeyboardInterrupt):
        measure(rivals, PROMPTS, MACHINE, on_turn=lambda _, report: record.update(report))
    whole = measure(rivals[:2], PROMPTS, MACHINE)
    assert json.loads(path.read_text()) == json.loads(json.dumps(whole.as_json()))
    assert list(tmp_path.iterdir()) == [path]


def test_the_record_is_whole_whenever_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    record, ended = Record(path), threading.Event()
    row = run(contender("a")).rows[0]
    record.update(Report(MACHINE, ()))

    def write() -> None:
        for count in range(100):
            record.update(Report(MACHINE, (row,) * count))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    while not ended.is_set():
        seen.append(len(json.loads(path.read_text())["rows"]))
    writer.join()
    assert seen == sorted(seen)


def test_a_record_that_was_there_stays_until_there_is_more(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text("before")
    link = tmp_path / "latest.json"
    link.symlink_to(path)
    record = Record(link)
    assert path.read_text() == "before"
    record.finish(run(contender("a")))
    assert link.is_symlink() and json.loads(path.read_text())["rows"]


def test_a_pipe_is_given_the_finished_report_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    record = Record(pipe)
    report = run(contender("a"))
    record.update(report)  # would wait for a reader
    with ThreadPoolExecutor(1) as reader:
        text = reader.submit(pipe.read_text)
        record.finish(report)
        assert json.loads(text.result())["rows"]


def test_a_record_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written"):
        Record(tmp_path / "missing" / "bench.json")


# --- showing -------------------------------------------------------------------------------------


def test_the_table_shows_every_row_within_a_usual_terminal() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table(run(contender("a"), contender("b", steps=(1, 4), drafter="d"))))
    text = capture.get()
    assert "50.0" in text and "200.0" in text and "100 · 40" in text
    assert "…" not in text


def test_the_chart_is_well_formed_with_the_fastest_first() -> None:
    report = run(contender("slow"), contender("<fast>", steps=(1, 4), drafter="d"))
    root = ET.fromstring(svg(report))
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.index("<fast> d int8") < texts.index("slow int8")
    assert "200.0  (×4.00)" in texts


def test_a_chart_of_nothing_is_still_one() -> None:
    ET.fromstring(svg(Report(MACHINE, ())))
    ET.fromstring(costs_svg(Report(MACHINE, ())))


def test_the_costs_of_a_token_are_stacked_with_the_cheapest_first() -> None:
    plain, drafted = run(contender("plain"), contender("fast", steps=(1, 4), drafter="d")).rows
    drafted = replace(drafted, phases_ms={"target": 20.0, "drafter": 8.0, "rest": 0.4})
    unknown = replace(plain, system="unknown", phases_ms={})
    root = ET.fromstring(costs_svg(Report(MACHINE, (plain, drafted, unknown))))
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-4:] == ["fast d int8", "7.1", "plain int8", "20.0"]


# --- prompts -------------------------------------------------------------------------------------


def test_twenty_questions_come_with_the_package() -> None:
    prompts = read_prompts()
    assert len(set(prompts)) == len(prompts) == 20


def test_a_text_file_holds_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("# a comment\nOne?\n\n  Two?  \n")
    assert read_prompts(path) == ("One?", "Two?")


def test_a_jsonl_file_holds_an_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "One?"}\n\n{"prompt": "Two?", "id": 2}\n')
    assert read_prompts(path) == ("One?", "Two?")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("p.txt", "# nothing\n", "holds no prompts"),
        ("p.jsonl", "", "holds no prompts"),
        ("p.jsonl", '{"prompt": "One?"}\n{', "line 2 is not JSON"),
        ("p.jsonl", '["One?"]', 'called "prompt"'),
        ("p.jsonl", '{"prompt": " "}', 'called "prompt"'),
        ("p.txt", None, "cannot be read"),
    ],
)
def test_a_file_without_prompts_is_complained_of(
    tmp_path: Path, name: str, content: str | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidRequest, match=complaint):
        read_prompts(tmp_path / name)


class LetterTokenizer:
    """A token a letter of whatever the messages say."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(letter) for message in messages for letter in message["content"]]


def test_new_prompts_share_no_beginning_and_known_ones_do() -> None:
    prompts = tokenised(["Where?", "When?", "Why?"], LetterTokenizer())  # type: ignore[arg-type]
    instructions = len(prompts[0].known) - len("Where?")
    assert len({prompt.known[:instructions] for prompt in prompts}) == 1
    number_at = len("Dialogue ")
    assert len({prompt.new[number_at] for prompt in prompts}) == 3


# --- contenders ----------------------------------------------------------------------------------

PROMPT = (3, 14, 15, 9)


def wanted(folder: Path, **changes: object) -> Wanted:
    settings: dict[str, object] = {
        "source": Stored(folder),
        "folder": folder,
        "stop_token_ids": frozenset({1}),
        "context_tokens": 64,
        "device": "cpu",
        "threads": 1,
        "systems": SYSTEMS,
        "dtypes": ["float32", "int8"],
        "drafters": [],
        "schedules": ["full"],
    }
    return Wanted(**{**settings, **changes})  # type: ignore[arg-type]


def test_the_lineup_has_each_system_in_each_precision_it_knows(tiny_folder: Path) -> None:
    names = [each.name for each in lineup(wanted(tiny_folder, drafters=["owner/drafter"]))]
    assert names == [
        "transformers float32",
        "transformers float32 prompt lookup",
        "llama.cpp gguf",
        "dspark float32",
        "dspark int8",
        "dspark float32 drafter full",
        "dspark int8 drafter full",
    ]


def test_trained_drafters_are_told_apart_by_the_run_they_come_from(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name / "drafter" for name in ("short", "long")]
    for folder in folders:
        folder.mkdir(parents=True)
    wishes = wanted(
        tiny_folder, systems=["dspark"], dtypes=["int8"], drafters=list(map(str, folders))
    )
    names = [each.name for each in lineup(wishes)]
    assert names == ["dspark int8", "dspark int8 short full", "dspark int8 long full"]


def test_each_drafter_lines_up_with_each_tree_and_schedule(tiny_folder: Path) -> None:
    wishes = wanted(
        tiny_folder,
        systems=["dspark"],
        dtypes=["int8"],
        drafters=["prompt-lookup", "layer-skip:2"],
        trees=["none", "3x2"],
        schedules=["full", "confidence"],
    )
    assert [each.name.removeprefix("dspark int8") for each in lineup(wishes)] == [
        "",
        " prompt-lookup full",
        " prompt-lookup confidence",
        " prompt-lookup tree 3x2 full",
        " prompt-lookup tree 3x2 confidence",
        " layer-skip:2 full",
        " layer-skip:2 confidence",
        " layer-skip:2 tree 3x2 full",
        " layer-skip:2 tree 3x2 confidence",
    ]


def test_sampled_answers_are_ours_alone_and_need_not_be_those_of_plain_decoding(
    tiny_folder: Path,
) -> None:
    contenders = lineup(wanted(tiny_folder, temperature=0.7, drafters=["prompt-lookup"]))
    assert {each.system for each in contenders} == {"dspark"}
    assert all(each.sampled for each in contenders)
    _, drafted = run(
        contender("a"), replace(contender("a", steps=(1, 3), drafter="d"), sampled=True)
    ).rows
    assert drafted.same_as_plain is None


def test_only_the_wanted_systems_line_up(tiny_folder: Path) -> None:
    names = [each.name for each in lineup(wanted(tiny_folder, systems=["dspark"]))]
    assert names == ["dspark float32", "dspark int8"]


@pytest.mark.parametrize("changes", [{"systems": ["vllm"]}, {"dtypes": ["float8"]}])
def test_an_unknown_wish_is_refused(tiny_folder: Path, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="is unknown; choose of"):
        wanted(tiny_folder, **changes)


def test_a_head_of_its_own_is_read_in_each_step_and_the_embedding_is_not(
    write_model: Callable[..., Path],
) -> None:
    untied = Checkpoint(write_model(name="untied"))
    tied = Checkpoint(write_model({"tie_word_embeddings": True}, name="tied"))
    sizes = {k: v.numel() for k, v in load_file(untied.folder / "model.safetensors").items()}
    head = sizes["lm_head.weight"]
    layers = sum(sizes.values()) - head - sizes["model.embed_tokens.weight"]
    for checkpoint in (untied, tied):  # the tied one has a head beside it that is not used
        assert bytes_per_token(checkpoint, "float32") == 4 * (layers + head)
        assert bytes_per_token(checkpoint, "bfloat16") == 2 * (layers + head)
        assert bytes_per_token(checkpoint, "int8") == layers + head
        # 20 bytes for 32 weights, like GGUF's Q4_1; the head is kept in int8
        assert bytes_per_token(checkpoint, "int4") == round(layers * 20 / 32) + head


def test_copying_memory_takes_time() -> None:
    assert copy_bandwidth("cpu", threads=1) > 0


def test_our_engine_gives_what_the_engine_gives_and_says_what_it_did(tiny_folder: Path) -> None:
    with Engine(load_target(tiny_folder)) as engine:
        expected = engine.generate(PROMPT, SamplingParams(max_new_tokens=6))
    ours = OurEngine(EngineSettings(Stored(tiny_folder), "cpu", "float32", 1, 64))
    try:
        answer = ours.answer(PROMPT, 6)
    finally:
        ours.close()
    assert answer.token_ids == expected.token_ids
    assert answer.stopped == (expected.finish_reason == "stop")
    assert answer.steps == answer.tokens
    assert set(answer.phases_ms) == {"target", "rest"}
    assert sum(answer.phases_ms.values()) == pytest.approx(answer.total_ms - answer.first_token_ms)


def test_engines_that_are_compared_read_the_same_weights(
    tiny_folder: Path, write_drafter: Callable[..., Path]
) -> None:
    drafter = str(write_drafter())
    settings = EngineSettings(Stored(tiny_folder), "cpu", "float32", 1, 64, drafter, "full")
    one, other = OurEngine(settings), OurEngine(replace(settings, schedule="full:1"))
    alone = OurEngine(replace(settings, dtype="int8"))
    try:
        assert one._engine.target is other._engine.target is not alone._engine.target
        assert one._drafter is other._drafter is not alone._drafter
        assert one.extra_bytes == other.extra_bytes
    finally:
        for each in (one, other, alone):
            each.close()


def test_the_drafters_time_is_told_apart(
    tiny_folder: Path, write_drafter: Callable[..., Path]
) -> None:
    drafter = str(write_drafter())
    source = Stored(tiny_folder)
    ours = OurEngine(EngineSettings(source, "cpu", "float32", 1, 64, drafter, "full"))
    try:
        answer = ours.answer(PROMPT, 6)
    finally:
        ours.close()
    assert set(answer.phases_ms) == {"target", "drafter", "rest"}
    assert answer.phases_ms["drafter"] > 0


def test_a_drafter_costs_the_memory_of_its_weights_and_its_cache(
    tiny_folder: Path, write_drafter: Callable[..., Path]
) -> None:
    def extra_bytes(drafter: str | None, tree: TreeShape | None = None) -> int:
        settings = EngineSettings(
            Stored(tiny_folder), "cpu", "float32", 1, 64, drafter, "full", tree, temperature=0.5
        )
        ours = OurEngine(settings)
        ours.answer(PROMPT, 4)
        ours.close()
        return ours.extra_bytes

    assert extra_bytes(None) == 0
    for tree in (None, TreeShape.likeliest(4)):
        for name in ("prompt-lookup", "layer-skip:2"):
            assert extra_bytes(name, tree) < 1_000_000
        # The cache of two layers, for two sequences, in whole tiles.
        assert extra_bytes(str(write_drafter()), tree) >= 2 * 2 * 2 * 2 * 128 * 8 * 4


def test_a_shape_with_random_weights_is_compared_without_a_checkpoint(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))
    shape = tmp_path / "shape"
    shape.mkdir()
    (shape / "config.json").write_text((tiny_folder / "config.json").read_text())
    source = RandomWeights(str(shape))
    target = source.target("cpu", "float32", 1)
    prompts = source.prompts(target, ["a", "b"])
    assert len(set(prompts)) == 2
    assert prompts[0].known[:48] == prompts[1].known[:48] != prompts[0].new[:48]
    # Norms aside, as many bytes as the checkpoint of that shape has.
    stored = Stored(tiny_folder).weight_bytes(tiny_folder, "int8")
    assert source.weight_bytes(shape, "int8") == pytest.approx(stored, rel=0.05)
    contenders = lineup(
        wanted(
            shape,
            source=source,
            dtypes=["float32"],
            drafters=["random", "layer-skip:2"],
            context_tokens=100,
        )
    )
    report = measure(contenders, prompts, MACHINE, repeats=1, max_new_tokens=4)
    assert [row.drafter for row in report.rows] == [None, "random", "layer-skip:2"]
    assert not report.skipped


def test_a_shape_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="there is no shape 'huge'"):
        RandomWeights("huge").target("cpu", "float32", 1)


def test_an_engine_that_cannot_be_opened_is_unavailable(tmp_path: Path, tiny_folder: Path) -> None:
    for settings in (
        EngineSettings(Stored(tmp_path), "cpu", "float32", 1, 64),
        EngineSettings(Stored(tiny_folder), "cpu", "float8", 1, 64),
        EngineSettings(Stored(tiny_folder), "cpu", "float32", 1, 64, drafter=str(tmp_path)),
    ):
        with pytest.raises(Unavailable):
            OurEngine(settings)


@pytest.mark.parametrize("prompt_lookup", [False, True])
def test_transformers_generates_the_same_tokens(tiny_folder: Path, prompt_lookup: bool) -> None:
    with Engine(load_target(tiny_folder)) as engine:
        expected = engine.generate(PROMPT, SamplingParams(max_new_tokens=6))
    theirs = Transformers(tiny_folder, "cpu", "float32", 1, {1}, prompt_lookup=prompt_lookup)
    answer = theirs.answer(PROMPT, 6)
    theirs.close()
    assert answer.token_ids == expected.token_ids
    assert 0 < answer.first_token_ms <= answer.total_ms
    assert 0 < answer.steps <= answer.tokens


def test_llama_cpp_needs_a_gguf_file(tiny_folder: Path) -> None:
    with pytest.raises(Unavailable, match="GGUF"):
        LlamaCpp(tiny_folder, 1, 64, {1})


def test_without_llama_cpp_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(Unavailable, match=r"dspark-assistant\[bench\]"):
        LlamaCpp(tmp_path / "model.gguf", 1, 64, {1})


@pytest.mark.parametrize(
    ("max_new_tokens", "token_ids", "stopped"), [(2, (5, 6), False), (9, (5, 6, 7), True)]
)
def test_llama_cpp_ends_at_a_stop_token_or_the_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_new_tokens: int,
    token_ids: tuple[int, ...],
    stopped: bool,
) -> None:
    class Llama:
        def __init__(self, path: str, **settings: object) -> None:
            assert settings["n_threads"] == settings["n_threads_batch"] == 1

        def generate(self, prompt: list[int], temp: float, repeat_penalty: float) -> Iterator[int]:
            assert (prompt, temp, repeat_penalty) == (list(PROMPT), 0.0, 1.0)
            yield from (5, 6, 7, 1, 8)

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama))
    (tmp_path / "model.gguf").touch()
    answer = LlamaCpp(tmp_path / "model.gguf", 1, 64, {1}).answer(PROMPT, max_new_tokens)
    assert (answer.token_ids, answer.stopped) == (token_ids, stopped)
    assert answer.steps == answer.tokens == len(token_ids) + stopped
