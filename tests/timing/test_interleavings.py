"""Two thousand random dialogues in virtual time: whatever comes when, the promises hold."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from assistant.effects import (
    PlaybackCleared,
    ResponseAudio,
    ResponseFinished,
    ResponseStarted,
    TranscriptCompleted,
    TranscriptSoFar,
)
from assistant.events import (
    CancelResponse,
    ClearAudio,
    ClearPlayback,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Event,
    TruncateItem,
    UpdateSettings,
)
from assistant.items import ItemStatus, Role
from assistant.settings import Settings, TurnDetection
from audio.endpoint import SemanticEndpointer
from tests.timing.world import RATE_HZ, WORD_S, Pace, Speech, World, acknowledged

RUNS = 2_000
BLOCKS = 20
SPEECH_UNTIL_S = 12.0
SEMANTIC = SemanticEndpointer()
SETTLED_S = 120.0
"""By then the last deadline of the last turn has passed."""
REPLIES = (
    "One two, three four. Five six seven eight nine ten.",
    "Yes.",
    "",
    "Alpha beta gamma delta epsilon, zeta eta theta. Iota kappa! Lambda mu nu xi omicron pi.",
)
BREAKABLE = ("asr", "asr_hangs", "llm", "tts", "judge_hangs")


def random_world(seed: int) -> World:
    """Return a dialogue drawn from `seed`: speech, noises, client commands, stage pace, faults."""
    draw = random.Random(seed)
    speeches = []
    moment_s = draw.uniform(0.2, 2.0)
    while moment_s < SPEECH_UNTIL_S:
        end_s = moment_s + draw.choice((0.1, 0.3, 0.8, 2.0))
        text = draw.choice(("", f"words number {len(speeches)}", "yes"))
        fade_s = draw.choice((0.0, 0.06, 0.2))
        speeches.append(Speech(moment_s, end_s, text, fade_s))
        moment_s = end_s + draw.choice((0.2, 0.6, 1.0, 3.0))
    detection = draw.choice(
        (
            TurnDetection(),
            TurnDetection(),
            TurnDetection(silence_ms=200),
            TurnDetection(semantic=SEMANTIC),
            TurnDetection(semantic=SEMANTIC),
            TurnDetection(semantic=SEMANTIC, pause_ms=None),
            TurnDetection(interrupt_response=False),
            TurnDetection(create_response=False),
            TurnDetection(idle_timeout_ms=4_000),
            None,
        )
    )
    settings = Settings(
        turn_detection=detection,
        modality=draw.choice(("audio", "audio", "audio", "text")),
        playback_lead_ms=draw.choice((400, 400, None)),
    )
    pace = Pace(
        transcript_s=draw.choice((0.05, 0.3, 2.0)),
        judgement_s=draw.choice((0.01, 0.2, 1.0)),
        first_text_s=draw.choice((0.05, 0.5)),
        text_s=draw.choice((0.0, 0.02, 0.3)),
        encode_s=draw.choice((0.02, 0.4)),
        window_s=draw.choice((0.01, 0.2)),
        jitter=draw.choice((0.0, 3.0)),
    )
    acknowledges = draw.random() < 0.7
    world = World(
        acknowledged(settings) if acknowledges else settings,
        speeches=tuple(speeches),
        replies=tuple(draw.sample(REPLIES, k=len(REPLIES))),
        pace=pace,
        seed=seed,
        microphone_until_s=draw.choice((SPEECH_UNTIL_S / 2, SPEECH_UNTIL_S + 3)),
        broken=frozenset(stage for stage in BREAKABLE if draw.random() < 0.05),
        flaky=draw.choice((0.0, 0.0, 0.2, 0.5)),
    )
    world.acknowledges = acknowledges
    judge = random.Random(seed)
    world.completeness = lambda words: judge.choice((None, 0.0, 0.5, 0.9, 0.92, 1.0))
    for _ in range(draw.choice((0, 0, 2, 6, 12))):
        moment_s = draw.uniform(0.0, SPEECH_UNTIL_S)
        world.at(moment_s, lambda: world.feed(random_command(draw, world)))
    return world


def random_command(draw: random.Random, world: World) -> Event:
    """Return a command that may or may not make sense at this moment."""
    items = [item.item_id for item in world.session.history] or ["none"]
    item_id = draw.choice((*items, "none"))
    end_sample = round(world.now * 16_000)
    commands: tuple[Event, ...] = (
        CancelResponse(),
        CreateResponse(),
        ClearPlayback(),
        CommitAudio(end_sample=end_sample),
        ClearAudio(end_sample=end_sample),
        CreateItem(role=Role.USER, text="typed words"),
        TruncateItem(item_id=item_id, audio_end_ms=draw.choice((0, 300, 5_000))),
        DeleteItem(item_id=item_id),
        UpdateSettings(settings=world.session.settings),
    )
    return draw.choice(commands)


def check(world: World) -> None:
    """Check everything that must hold of a dialogue that has come to rest.

    That no frame of a void generation is sent, and none twice, the world checks as it happens.
    """
    assert world.session.turns == [], "a turn is stuck"
    assert world.session.answer is None

    ended = Counter(turn.turn_id for turn in world.turns)
    assert set(ended.values()) <= {1}, "a turn ended twice"
    answers = Counter(turn.response_id for turn in world.turns if turn.response_id is not None)
    started = [n.response.response_id for n in world.of(ResponseStarted) if _is_start(n)]
    assert answers == Counter(started), "not exactly one turn for each answer"
    done = Counter(n.response.response_id for n in world.of(ResponseFinished) if _is_end(n))
    assert done == Counter(started), "an answer did not end exactly once"

    roles = [role for role, _ in world.said]
    assert all(earlier != later for earlier, later in pairwise(roles)), "not alternating"
    for item in world.session.history:
        if item.role is Role.ASSISTANT and item.heard is not None:
            assert item.text is not None
            assert item.text.startswith(item.heard), "heard what was never planned"
            assert item.status is not ItemStatus.IN_PROGRESS
    for turn in world.turns:
        turn.timeline.check_order()
    check_words(world)


def check_words(world: World) -> None:
    """Check that words shown early were never taken back, and that none came too late."""
    stable: dict[str, str] = {}
    told: set[str] = set()
    for notice in world.of(TranscriptSoFar, TranscriptCompleted):
        if isinstance(notice, TranscriptSoFar):
            assert notice.item_id not in told, "words so far after all words"
            assert notice.stable.startswith(stable.get(notice.item_id, "")), "stable words changed"
            stable[notice.item_id] = notice.stable
        elif isinstance(notice, TranscriptCompleted):
            told.add(notice.item_id)


def _is_start(notice: object) -> bool:
    return isinstance(notice, ResponseStarted)


def _is_end(notice: object) -> bool:
    return isinstance(notice, ResponseFinished)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_random_dialogue_keeps_its_promises(block: int) -> None:
    for seed in range(block, RUNS, BLOCKS):
        world = random_world(seed)
        try:
            world.run(until_s=SETTLED_S)
            check(world)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_random_dialogues_reach_what_they_are_meant_to_reach() -> None:
    """The promises would be empty if nothing was ever interrupted, discarded or failed."""
    outcomes: Counter[str] = Counter()
    frames = clears = 0
    for seed in range(100):
        world = random_world(seed)
        world.run(until_s=SETTLED_S)
        outcomes += Counter(turn.outcome for turn in world.turns)
        frames += len(world.of(ResponseAudio))
        clears += len(world.of(PlaybackCleared))
    assert set(outcomes) == {"done", "interrupted", "failed", "discarded"}
    assert min(outcomes.values()) >= 10
    assert frames > 1_000
    assert clears > 20


def test_what_counts_as_heard_is_what_the_loudspeaker_played() -> None:
    """With an acknowledging client the kept words are those whose sound was played to its end."""
    cut = 0
    for seed in range(200):
        draw = random.Random(seed)
        cut_in_s = draw.uniform(3.2, 6.0)
        world = World(
            acknowledged(),
            speeches=(
                Speech(1.0, 2.0, "hello"),
                Speech(cut_in_s, cut_in_s + 1, "stop"),
            ),
            replies=(REPLIES[3], "Fine."),
            pace=Pace(jitter=draw.choice((0.0, 2.0))),
            seed=seed,
        )
        world.run(until_s=25)
        first = next(n for n in world.of(ResponseFinished) if isinstance(n, ResponseFinished))
        heard = world.item(first.response.item_id).heard
        played_s = sum(end - start for start, end, gen in world.loudspeaker.sounding if gen == 1)
        words = min(int(round(played_s * RATE_HZ) / RATE_HZ / WORD_S + 1e-9), 16)
        assert heard is not None, f"seed {seed}"
        assert heard.split() == REPLIES[3].split()[:words], f"seed {seed}"
        cut += words < len(REPLIES[3].split())
    assert cut > 100
