"""The command line: answers on standard output, mistakes in a line on standard error."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers
from typer.testing import CliRunner, Result

from dspark import Engine, SamplingParams, load_target
from dspark.cli import FAILED, MISUSED, app, find_target

VOCAB = {chr(ord("A") + index): index for index in range(64)}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"

Run = Callable[..., Result]


@pytest.fixture
def model(write_model: Callable[..., Path]) -> Path:
    """The tiny model with a tokenizer of one letter a token."""
    folder = write_model({"max_position_embeddings": 512})
    core = tokenizers.Tokenizer(models.BPE(vocab=VOCAB, merges=[]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ASSISTANT_MODELS", str(tmp_path / "models"))

    def invoke(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    return invoke


def test_generate_writes_what_the_engine_gives(run: Run, model: Path) -> None:
    target = load_target(model)
    with Engine(target) as engine:
        prompt = target.tokenizer.encode("HELLO")
        token_ids = engine.generate(prompt, SamplingParams(max_new_tokens=8)).token_ids
    result = run("generate", "HELLO", "--target", model, "--max-new-tokens", 8)
    assert result.exit_code == 0
    assert result.stdout == target.tokenizer.decode(token_ids) + "\n"


def test_generate_puts_a_system_prompt_before_the_question(run: Run, model: Path) -> None:
    arguments = ("--target", model, "--max-new-tokens", 8)
    both = run("generate", "HELLO", "--system", "WORLD", *arguments)
    together = run("generate", "WORLDHELLO", "--raw", *arguments)
    assert both.stdout == together.stdout != run("generate", "HELLO", *arguments).stdout


def test_generate_says_on_request_how_fast_it_was(run: Run, model: Path) -> None:
    result = run("generate", "HELLO", "--target", model, "--max-new-tokens", 8, "--stats")
    assert "tokens/s" in result.stderr and "tokens/s" not in result.stdout


def test_profile_prints_a_line_for_each_number_of_tokens(
    run: Run, model: Path, tmp_path: Path
) -> None:
    result = run("profile", "--target", model, "--json", tmp_path / "costs.json")
    assert result.exit_code == 0
    costs = json.loads((tmp_path / "costs.json").read_text())
    assert costs["draft_ms"] == []
    assert all(f"\n{n:6}  " in result.stdout for n in range(1, len(costs["step_ms"]) + 1))


def test_a_profile_is_kept_until_it_is_refreshed(run: Run, model: Path, tmp_path: Path) -> None:
    run("profile", "--target", model)
    (kept,) = (tmp_path / "cache" / "step-cost").iterdir()
    content = json.loads(kept.read_text())
    kept.write_text(json.dumps({**content, "ms": [777.0] * len(content["ms"])}))
    assert "777.00" in run("profile", "--target", model).stdout
    assert "777.00" not in run("profile", "--target", model, "--refresh").stdout


def test_bench_prints_writes_and_draws(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("HELLO\nGOODBYE\n")
    result = run(
        "bench",
        *("--target", model, "--prompts", tmp_path / "prompts.txt", "--dtype", "float32"),
        *("--repeats", 1, "--max-new-tokens", 4),
        *("--json", tmp_path / "bench.json", "--plot", tmp_path / "bench.svg"),
    )
    assert result.exit_code == 0, result.output
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [(row["system"], row["drafter"]) for row in content["rows"]] == [
        ("transformers", None),
        ("transformers", "prompt lookup"),
        ("dspark", None),
    ]
    assert all(row["tokens_per_s"] > 0 and row["ttft_ms"] > 0 for row in content["rows"])
    assert "dspark" in result.stdout
    assert re.search(r"^dspark float32: [\d.]+ tokens/s", result.stderr, re.MULTILINE)
    assert "left out llama.cpp" in result.stderr and "GGUF" in result.stderr
    ET.parse(tmp_path / "bench.svg")


def test_bench_compares_drafters_of_a_shape(run: Run, model: Path, tmp_path: Path) -> None:
    result = run(
        "bench",
        *("--random-weights", model, "--dtype", "float32", "--limit", 2, "--repeats", 1),
        *("--drafter", "layer-skip:2", "--drafter", "random", "--tree", "none,4"),
        *("--schedule", "full", "--temperature", 0.7, "--max-new-tokens", 4),
        *("--json", tmp_path / "bench.json"),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert [row["drafter"] for row in rows] == [
        None,
        "layer-skip:2",
        "layer-skip:2 tree 4",
        "random",
        "random tree 4",
    ]


def test_bench_that_is_interrupted_has_written_what_it_measured(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    written = tmp_path / "bench.json"
    monkeypatch.setattr("dspark.bench.sources.RandomWeights.drafter", interrupted)
    result = run(
        *("bench", "--random-weights", model, "--dtype", "float32", "--limit", 1),
        *("--drafter", "random", "--schedule", "full", "--repeats", 1, "--max-new-tokens", 2),
        *("--json", written),
    )
    assert result.exit_code != 0
    assert [row["system"] for row in json.loads(written.read_text())["rows"]] == ["dspark"]
    assert "dspark float32: " in result.stderr


def test_a_tree_without_a_drafter_is_refused(run: Run, model: Path) -> None:
    for drafter in ((), ("--drafter", "none")):
        done = run("generate", "abc", "--target", str(model), "--tree", "5+2", *drafter)
        assert done.exit_code == 2
        assert "give --drafter too" in done.stderr


def test_generate_drafts_with_whatever_is_named(run: Run, model: Path) -> None:
    arguments = ("generate", "HELLO", "--target", model, "--max-new-tokens", 8)
    plain = run(*arguments).stdout
    for extra in (("--drafter", "prompt-lookup"), ("--drafter", "layer-skip:2", "--tree", "2x2")):
        assert run(*arguments, *extra, "--schedule", "full").stdout == plain


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("generate", "HELLO", "--dtype", "float8"), MISUSED, "dtype is 'float8'"),
        (("generate", "HELLO", "--temperature", "-1"), MISUSED, "temperature"),
        (("generate", "HELLO", "--drafter", "nowhere"), FAILED, "nowhere"),
        (("bench", "--plot", "picture.png"), MISUSED, "drawn as SVG"),
        (("bench", "--json", "missing/bench.json"), MISUSED, "cannot be written"),
        (("bench", "--systems", "vllm"), MISUSED, "vllm"),
        (("bench", "--tree", "big"), MISUSED, "give a number of nodes"),
        (("bench", "--random-weights", "huge"), MISUSED, "there is no shape 'huge'"),
        (("generate", "HELLO", "--drafter", "layer-skip:9"), MISUSED, "below the target's 3"),
        (("generate", "HELLO", "--device", "gpu"), MISUSED, "device is 'gpu'"),
        (("bench", "--dtype", "float8"), MISUSED, "float8"),
        (("bench", "--prompts", "missing.txt"), MISUSED, "missing.txt cannot be read"),
        (("profile", "--json", "missing/costs.json"), MISUSED, "cannot be written"),
    ],
)
def test_mistakes_are_told_in_a_line(
    run: Run, model: Path, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    result = run(*arguments, "--target", model)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert "Traceback" not in result.output


def test_a_missing_target_says_how_to_get_it(run: Run) -> None:
    result = run("generate", "HELLO", "--target", "smollm2-135m-instruct")
    assert result.exit_code == FAILED
    assert "assistant models pull smollm2-135m-instruct" in result.stderr


def test_an_installed_model_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSISTANT_MODELS", str(tmp_path))
    for name, file in (("quantised", "weights.gguf"), ("plain", "config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert find_target("quantised") == str(tmp_path / "quantised" / "weights.gguf")
    assert find_target("plain") == str(tmp_path / "plain")


def test_paths_and_hub_ids_are_left_to_the_loader(tmp_path: Path) -> None:
    assert find_target(str(tmp_path)) == str(tmp_path)
    assert find_target("owner/model") == "owner/model"
