"""What the bench counts, and how: on figures made by hand, and in virtual time."""

from __future__ import annotations

import asyncio
import json
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from assistant.bench import caller, command, run
from assistant.bench.caller import Call, frames
from assistant.bench.clips import Clip, read_manifest, spread
from assistant.bench.loudspeaker import Loudspeaker
from assistant.bench.outcome import MOMENTS, Outcome
from assistant.bench.rounds import play_all
from assistant.bench.scores import Percentiles, Played, as_json, score, scores
from assistant.bench.table import comparisons, count_table, latency_table
from assistant.bench.waterfall import bars, svg
from assistant.cli import app
from assistant.client import Assistant
from assistant.config import Config
from assistant.errors import ManifestError, UsageError
from audio.pcm import Samples, write_wav
from tests.fakes import ScriptedLanguageModel, ScriptedTranscriber, fake_stages, silence, speech
from tests.virtual_time import run_in_virtual_time

CLIP = Clip(Path("clip.wav"), "turn on the light", 1.5)
FRAME_AND_WINDOW_MS = 20 + 32
"""A sound is known to be over once its frame was sent and its window analysed."""
COMPLETE_MS = Config().endpoint.shortest_ms
"""The scripted model finds everything complete."""


def answered(sent_ms: float = 600.0, endpoint_ms: float = 500.0, **fields: object) -> Outcome:
    moments = {"endpoint": endpoint_ms, "first_sent": sent_ms}
    defaults = {"transcript": CLIP.text, "moments_ms": moments, "heard_ms": sent_ms + 10}
    return Outcome(**{**defaults, **fields})  # type: ignore[arg-type]


def played(*outcomes: Outcome, system: str = "assistant", sessions: int = 1) -> list[Played]:
    return [Played(system, sessions, CLIP, outcome) for outcome in outcomes]


# -- recordings -----------------------------------------------------------------------------


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[..., Path]:
    write_wav(tmp_path / "a.wav", speech(0.1), 16_000)

    def write(*lines: object) -> Path:
        path = tmp_path / "manifest.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts), encoding="utf-8")
        return path

    return write


def line(**changes: object) -> dict[str, object]:
    whole = {"file": "a.wav", "text": "a light", "lang": "en", "vad_auto": [[0.1, 0.5], [0.7, 0.9]]}
    return {key: value for key, value in {**whole, **changes}.items() if value != "absent"}


def test_a_recording_ends_with_its_last_voiced_span(manifest: Callable[..., Path]) -> None:
    path = manifest(line(), "", line(kind="noise", text=None), line(lang="de"), line(vad_auto=[]))
    (clip,) = read_manifest(path, language="en")
    assert clip == Clip(path.parent / "a.wav", "a light", 0.9)


def test_a_tag_chooses(manifest: Callable[..., Path]) -> None:
    path = manifest(line(text="one"), line(text="two", tags=["assistant", "noisy"]))
    assert [clip.text for clip in read_manifest(path, language="en", tag="noisy")] == ["two"]
    with pytest.raises(UsageError, match="loud"):
        read_manifest(path, language="en", tag="loud")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("{", "not JSON"),
        ('["a.wav"]', "valid dictionary"),
        (line(file="absent"), "file: Field required"),
        (line(text=7), "text: Input should be a valid string"),
        (line(file="b.wav"), "there is no file .*b.wav"),
        (line(vad_auto="absent"), "vad_auto is missing"),
        (line(vad_auto=[[0.5, 0.1]]), "ends before it begins"),
        (line(vad_auto=[[0.5]]), "vad_auto"),
        (line(vad_auto=[[-1, 0.1]]), "vad_auto.0.0: Input should be greater"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(
    manifest: Callable[..., Path], wrong: object, complaint: str
) -> None:
    with pytest.raises(ManifestError, match=f"line 3: .*{complaint}|line 3 is .*{complaint}"):
        read_manifest(manifest(line(), "", wrong), language="en")


@given(st.integers(1, 40), st.integers(1, 100))
def test_clips_are_spread_over_the_whole_manifest(count: int, turns: int) -> None:
    clips = [Clip(Path(str(number)), "", 1.0) for number in range(count)]
    chosen = spread(clips, turns)
    assert len(chosen) == turns
    assert len(set(chosen)) == min(count, turns)
    if turns <= count:
        assert chosen == sorted(chosen, key=clips.index)


def test_a_microphone_hands_over_whole_frames_and_never_ends() -> None:
    coming = frames(np.ones(500, np.float32), 16_000)
    first, second, third = (next(coming) for _ in range(3))
    assert first.sum() == 320 and second.sum() == 180 and third.sum() == 0
    assert {len(first), len(second), len(third)} == {320}


# -- the loudspeaker ------------------------------------------------------------------------


def test_the_first_audible_sample_is_heard_where_it_lies() -> None:
    speaker = Loudspeaker(1000)
    quiet, loud = np.full(100, 0.009, np.float32), np.full(100, 0.011, np.float32)
    speaker.play(quiet, now=5.0)
    speaker.play(np.concatenate([quiet, loud]), now=5.02)
    assert speaker.first_received_s == 5.0
    assert speaker.first_audible_s == pytest.approx(5.2)
    assert speaker.played_s(5.05) == pytest.approx(0.05)
    assert speaker.played_s(99.0) == pytest.approx(0.3)
    assert speaker.underruns == 0


def test_a_gap_counts_and_delays_what_follows() -> None:
    speaker = Loudspeaker(1000)
    speaker.play(np.zeros(100, np.float32), now=1.0)
    speaker.play(np.zeros(0, np.float32), now=1.5)
    speaker.play(np.ones(100, np.float32), now=2.0)
    assert speaker.underruns == 1
    assert speaker.first_audible_s == 2.0
    assert speaker.played_s(2.05) == pytest.approx(0.15)


# -- figures --------------------------------------------------------------------------------


def test_percentiles_are_interpolated_over_the_turns_that_have_a_value() -> None:
    assert Percentiles.of([None, *map(float, range(101))]) == Percentiles(50.0, 90.0, 99.0)
    assert Percentiles.of([10.0, 20.0]) == Percentiles(15.0, 19.0, 19.9)
    assert Percentiles.of([None]) is None


def test_a_cut_in_is_counted_and_has_no_latency() -> None:
    early = answered(sent_ms=-200.0, endpoint_ms=-210.0, cut_in=True)
    total = score(played(answered(600.0), answered(800.0), early))
    assert (total.turns, total.answered, total.cut_ins) == (3, 2, 1)
    assert total.server_ttfa_ms == Percentiles(700.0, 780.0, 798.0)
    assert total.client_ttfa_ms == Percentiles(710.0, 790.0, 808.0)
    assert total.endpoint_wait_ms == Percentiles(500.0, 500.0, 500.0)
    assert total.added_latency_ms == Percentiles(200.0, 280.0, 298.0)


def test_a_turn_without_an_answer_costs_its_words_and_has_no_latency() -> None:
    total = score(played(answered(), Outcome(error="no answer was heard")))
    assert (total.turns, total.answered, total.cut_ins) == (2, 1, 0)
    assert total.wer == 0.5
    assert total.server_ttfa_ms == Percentiles(600.0, 600.0, 600.0)


def test_words_count_over_all_turns_together() -> None:
    label = "turn on the light"
    outcomes = [answered(transcript=label.upper() + "."), answered(transcript="turn off the light")]
    assert score(played(*outcomes)).wer == round(1 / 8, 4)


def test_speculation_and_drafts_are_summed_up() -> None:
    hit = answered(speculation="hit", output_tokens=12, accepted=6)
    miss = answered(speculation="miss", output_tokens=8, accepted=4, wasted_tokens=5, underruns=1)
    total = score(played(hit, hit, miss, answered(wasted_tokens=2)))
    assert total.speculation == {"hit": 2, "miss": 1, "none": 1, "wasted_tokens": 7}
    assert total.hit_rate == 0.5
    assert total.accepted_length == 2.0  # 32 tokens in 16 steps
    assert total.underruns == 1


def test_each_number_of_sessions_is_a_system_of_its_own() -> None:
    turns = played(answered(600)) + played(answered(900), sessions=4)
    turns += played(answered(1500), system="naive") + played(answered(3000), system="naive")
    names = [each.name for each in scores(turns)]
    assert names == ["assistant", "assistant, 4 sessions", "naive"]
    (line,) = comparisons(scores(turns), "naive")
    assert line.startswith("assistant: first sound after 0.27 × (p50), 0.21 × (p90)")


def test_the_json_has_the_figures_by_name_and_every_turn() -> None:
    content = json.loads(as_json(played(answered()), {"cores": 2}, {"turns": 1}))
    assert set(content) == {"machine", "settings", "systems", "each_turn"}
    figures = content["systems"]["assistant"]
    assert figures["server_ttfa_ms"] == {"p50": 600.0, "p90": 600.0, "p99": 600.0}
    assert figures["speculation"] == {"hit": 0, "miss": 0, "none": 1, "wasted_tokens": 0}
    assert content["each_turn"][0]["added_latency_ms"] == 100.0


def test_the_tables_have_a_line_for_each_score() -> None:
    results = scores(played(answered(), Outcome()) + played(Outcome(), system="naive"))
    assert latency_table(results).row_count == count_table(results).row_count == 2


# -- the picture ----------------------------------------------------------------------------


def moments(*milliseconds: float) -> dict[str, float]:
    return dict(zip(MOMENTS, milliseconds, strict=True))


def test_a_step_begins_when_what_it_needs_is_there() -> None:
    ahead = moments(180, 280, 300, 400, 450, 520, 521)
    steps = [(bar.name, bar.begin_ms, bar.end_ms) for bar in bars(ahead)]
    assert steps == [
        ("silence", 0, 520),
        ("recognition", 180, 280),
        ("first words written", 280, 400),
        ("their first sound", 400, 450),
        ("ready, held back", 450, 520),
    ]
    behind = moments(0, 1000, 1100, 1300, 1600, 500, 1601)
    del behind["pause"]
    assert [bar.begin_ms for bar in bars(behind)] == [0, 500, 1000, 1300]
    known = moments(180, -50, 220, 300, 350, 320, 351)
    steps = [(bar.name, bar.begin_ms, bar.end_ms) for bar in bars(known)]
    assert steps[1:3] == [("recognition", -50, -50), ("first words written", 180, 300)]


def test_the_picture_shows_median_turns() -> None:
    outcomes = [
        answered(sent, moments_ms=moments(180, 280, 300, 400, 450, 520, sent), heard_ms=sent + 20)
        for sent in (521, 621, 921)
    ]
    results = scores(played(*outcomes, Outcome()) + played(Outcome(), system="naive"))
    assert results[0].moments_ms == {**moments(180, 280, 300, 400, 450, 520, 621), "heard": 641}
    drawn = ElementTree.fromstring(svg(results))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "heard after 641 ms" in texts
    assert "naive" not in texts  # it never answered


# -- calls, in virtual time -----------------------------------------------------------------


def call(
    *pieces: Samples,
    speech_end_s: float,
    folder: Path,
    lines: Sequence[str] = ("What is the capital of France?",),
    answer: str = "The capital of France is Paris. It lies on the Seine.",
    listen_s: float = 1.0,
) -> Outcome:
    """Play a recording to scripted stages."""
    path = folder / "clip.wav"
    write_wav(path, np.concatenate(pieces), 16_000)
    clip = Clip(path, lines[0], speech_end_s)

    async def play() -> Outcome:
        stages = fake_stages(
            transcriber=ScriptedTranscriber(lines=lines),
            language=ScriptedLanguageModel(lines=[answer]),
        )
        async with Assistant(stages).dialogue(playback_lead_ms=400) as dialogue:
            return await Call(dialogue, clip, listen_s).outcome()

    return run_in_virtual_time(play())


def test_latencies_count_from_the_end_that_the_label_says(tmp_path: Path) -> None:
    sound = (silence(0.5), speech(1.0), silence(0.2))
    exact = call(*sound, speech_end_s=1.5, folder=tmp_path)
    assert exact.error is None and exact.answered and exact.speculation == "hit"
    assert exact.transcript == "What is the capital of France?"
    assert exact.endpoint_wait_ms == pytest.approx(COMPLETE_MS, abs=FRAME_AND_WINDOW_MS)
    assert exact.added_latency_ms is not None and exact.server_ttfa_ms is not None
    assert exact.server_ttfa_ms - exact.endpoint_wait_ms == exact.added_latency_ms
    assert exact.client_ttfa_ms == pytest.approx(exact.server_ttfa_ms, abs=FRAME_AND_WINDOW_MS)
    earlier = call(*sound, speech_end_s=1.3, folder=tmp_path)
    for name in ("server_ttfa_ms", "client_ttfa_ms", "endpoint_wait_ms"):
        assert getattr(earlier, name) == pytest.approx(getattr(exact, name) + 200, abs=0.2)
    assert earlier.added_latency_ms == pytest.approx(exact.added_latency_ms, abs=0.2)


def test_the_listener_hangs_up_when_enough_was_heard(tmp_path: Path) -> None:
    sound = (silence(0.5), speech(1.0))
    long = "This is the beginning of it, " + "and so it goes on " * 20
    brief = call(*sound, speech_end_s=1.5, folder=tmp_path, answer=long)
    whole = call(*sound, speech_end_s=1.5, folder=tmp_path, answer=long, listen_s=60)
    assert 0 < brief.output_tokens < whole.output_tokens == len(long.split(" "))
    assert brief.underruns == whole.underruns == 0


def test_an_answer_that_outlasts_the_patience_counts_with_its_first_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = (silence(0.5), speech(1.0))
    whole = call(*sound, speech_end_s=1.5, folder=tmp_path)
    monkeypatch.setattr(caller, "PATIENCE_S", 0.2)
    cut = call(*sound, speech_end_s=1.5, folder=tmp_path, listen_s=0.6)
    assert cut.answered and set(cut.moments_ms) == {"first_sent"}
    assert cut.server_ttfa_ms == pytest.approx(whole.server_ttfa_ms, abs=FRAME_AND_WINDOW_MS)
    assert cut.endpoint_wait_ms is None and cut.added_latency_ms is None


def test_sound_before_the_last_word_is_a_cut_in(tmp_path: Path) -> None:
    sound = (silence(0.5), speech(0.5), silence(1.0), speech(0.5), silence(0.1))
    lines = ("Turn on", "the light.")
    interrupted = call(*sound, speech_end_s=2.5, folder=tmp_path, lines=lines)
    assert interrupted.cut_in and not interrupted.answered
    assert interrupted.server_ttfa_ms is interrupted.added_latency_ms is None
    assert interrupted.transcript == "Turn on the light."


def test_a_sound_without_words_ends_unanswered(tmp_path: Path) -> None:
    nothing = call(silence(0.5), speech(0.5), speech_end_s=1.0, folder=tmp_path, lines=[""])
    assert not nothing.answered and nothing.error == "no answer was heard"


# -- rounds ---------------------------------------------------------------------------------


@dataclass
class ScriptedSystem:
    name: str
    log: list[str] = field(default_factory=list)

    async def play(self, clip: Clip, listen_s: float) -> Outcome:
        self.log.append(f"{self.name}{clip.path}")
        return answered()


def test_every_round_plays_the_same_to_all_and_begins_with_another() -> None:
    log: list[str] = []
    systems = [ScriptedSystem("x", log), ScriptedSystem("y", log)]
    clips = [Clip(Path(name), "", 1.0) for name in "abcd"]
    turns: list[Played] = []
    progress: list[float] = []
    run_in_virtual_time(
        play_all(
            systems,
            clips,
            sessions=[1, 2],
            turns=4,
            listen_s=1.0,
            on_played=turns.append,
            on_progress=lambda _, done: progress.append(done),
        )
    )
    assert log[:2] == ["xa", "ya"]  # not counted
    assert log[2:10] == ["xa", "ya", "yb", "xb", "xc", "yc", "yd", "xd"]
    assert log[10:] == ["xa", "xb", "ya", "yb", "yc", "yd", "xc", "xd"]
    assert [turn.sessions for turn in turns] == [1] * 8 + [2] * 8
    assert progress == sorted(progress) and progress[-1] == 1.0


# -- the command ----------------------------------------------------------------------------


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_present", lambda config: None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--plot", "turn.png"], "SVG"),
        (["--sessions", "one"], "write numbers"),
        (["--sessions", "0"], "how many speak at once"),
        (["--systems", "assistant,theirs"], "no system 'theirs'"),
        (["--url", "ws://x", "--systems", "assistant without speculation"], "leave out"),
        (["--clips", "nowhere.jsonl"], "cannot be read"),
        (["--json", "no/such/folder.json"], "cannot be written"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(arguments: list[str], complaint: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2, result.output
    assert complaint in " ".join(result.output.split())


def test_a_run_that_is_broken_off_shows_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def measure(
        plan: run.Plan, on_played: Callable[[Played], None], on_progress: object
    ) -> None:
        on_played(Played("assistant", 1, plan.clips[0], answered()))
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", measure)
    written, drawn = tmp_path / "bench.json", tmp_path / "turn.svg"
    result = bench("--json", str(written), "--plot", str(drawn), "--turns", "3")
    assert result.exit_code == 0, result.output
    assert "600/600/600" in result.output
    assert json.loads(written.read_text())["systems"]["assistant"]["turns"] == 1
    assert drawn.read_text().startswith("<svg")


def test_a_run_without_a_turn_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", measure)
    assert bench().exit_code == 1


def test_a_terminated_run_ends_like_one_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its servers are in processes of their own, which would go on for ever."""
    stopped = list[str]()

    async def measure(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            stopped.append("the servers")

    monkeypatch.setattr(run, "measure", measure)
    assert bench().exit_code == 1
    assert stopped == ["the servers"]
