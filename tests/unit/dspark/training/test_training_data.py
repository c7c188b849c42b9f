"""Dialogues and features are written once, in order, and each counts whole or not at all."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark import InvalidRequest, Target, TokenizerError, load_target
from dspark.errors import RunMismatch
from dspark.training import seeds
from dspark.training.corpus import Corpus, Dialogue, Split
from dspark.training.dialogues import DialogueSettings, extend_dialogues, user_header
from dspark.training.features import FeatureStore, extend_features
from dspark.training.frame import load_frame
from dspark.training.storage import Rows
from dspark.training.vocabulary import count_tokens, draft_vocabulary, mask_token

SETTINGS = DialogueSettings(max_new_tokens=12)
ENOUGH = 24


@pytest.fixture(scope="module")
def target(speaking_target: Path) -> Target:
    return load_target(speaking_target)


@pytest.fixture(scope="module")
def corpus(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    corpus = Corpus(tmp_path_factory.mktemp("corpus"))
    extend_dialogues(corpus, target, SETTINGS, ENOUGH, slots=3)
    return corpus


def test_thousands_of_different_requests_come_from_the_templates() -> None:
    assert sum(map(seeds.fillings, seeds.TEMPLATES)) > 10_000
    rng = random.Random(0)
    assert len({seeds.request(rng) for _ in range(10_000)}) > 5000


def test_every_slot_is_filled_and_every_list_used() -> None:
    rng = random.Random(0)
    assert not any(set("{}|") & set(seeds.request(rng)) for _ in range(2000))
    assert all(any("{" + name in text for text in seeds.TEMPLATES) for name in seeds.SLOTS)


@given(st.text())
def test_equal_requests_are_never_split(request: str) -> None:
    assert Split.of(request) is Split.of("".join(request))


def test_an_eighth_of_the_requests_is_held_out() -> None:
    counts = Counter(Split.of(f"request {number}") for number in range(8000))
    assert counts[Split.CALIBRATE] == pytest.approx(500, rel=0.2)
    assert counts[Split.EVALUATE] == pytest.approx(500, rel=0.2)


def test_a_dialogue_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = [
        Dialogue("Grüße, 世界\u2028!", (3, 1), (4, 1, 5), greedy=True),
        Dialogue("", (9,), (), greedy=False),
    ]
    corpus = Corpus(tmp_path)
    corpus.begin({})
    for dialogue in written:
        corpus.append(dialogue)
    assert list(corpus) == written
    assert corpus.prompt_tokens.tolist() == [2, 1]
    assert corpus.tokens.tolist() == [5, 1]


@pytest.mark.parametrize("torn", ["dialogues.jsonl", "dialogues.index"])
def test_what_was_not_written_whole_does_not_count(tmp_path: Path, torn: str) -> None:
    first, second = (Dialogue(text, (1,), (2, 3), greedy=True) for text in ("one", "two"))
    corpus = Corpus(tmp_path)
    corpus.begin({})
    corpus.append(first)
    with (tmp_path / torn).open("ab") as file:
        file.write(b'{"reques')
    assert list(corpus) == [first]
    corpus.begin({})
    corpus.append(second)
    assert list(corpus) == [first, second]
    assert len((tmp_path / "dialogues.jsonl").read_text().splitlines()) == 2


def test_rows_grow_and_are_cut(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows", 2, np.int16)
    assert rows.mapped().shape == (0, 2)
    rows.append(np.array([[1, 2], [3, 4], [5, 6]]))
    rows.truncate(2)
    rows.append(np.array([[7, 8]]))
    assert rows.mapped().tolist() == [[1, 2], [3, 4], [7, 8]]


def test_a_dialogue_depends_on_its_number_alone(
    target: Target, corpus: Corpus, tmp_path: Path
) -> None:
    other = Corpus(tmp_path)
    for wanted in (5, 6, ENOUGH):
        extend_dialogues(other, target, SETTINGS, wanted, slots=7)
    assert list(other) == list(corpus)


def test_answers_are_the_targets_and_end_as_it_ends_them(target: Target, corpus: Corpus) -> None:
    (end,) = target.stop_token_ids
    assert all(len(each.answer) <= SETTINGS.max_new_tokens + 1 for each in corpus)
    assert any(each.answer[-1] == end for each in corpus)
    assert all(end not in each.answer[:-1] for each in corpus)
    assert {each.greedy for each in corpus} == {True, False}


def test_a_share_of_the_requests_is_written_by_the_target(target: Target, tmp_path: Path) -> None:
    settings = DialogueSettings(requests=("mine",), self_written_share=0.5, max_new_tokens=4)
    corpus = Corpus(tmp_path)
    extend_dialogues(corpus, target, settings, ENOUGH, slots=4)
    mine = sum(each.request == "mine" for each in corpus)
    assert ENOUGH / 4 < mine < ENOUGH * 3 / 4


def test_a_request_may_be_begun_as_people_begin_to_speak(target: Target, tmp_path: Path) -> None:
    settings = DialogueSettings(
        requests=("mine",), self_written_share=1.0, begun_share=1.0, max_new_tokens=2
    )
    corpus = Corpus(tmp_path)
    extend_dialogues(corpus, target, settings, 10, slots=3)
    requests = [dialogue.request for dialogue in corpus]
    assert all(each.startswith(tuple(seeds.BEGINNINGS)) for each in requests)
    assert len(set(requests)) > 5


def test_a_request_begins_where_the_header_ends(target: Target) -> None:
    settings = DialogueSettings(instructions="be brief")
    tokenizer = target.tokenizer
    header = user_header(tokenizer, settings.messages)
    chat = tokenizer.chat(settings.messages("w1 w2"), add_generation_prompt=False)
    rest = tokenizer.encode("w1 w2 <end>")
    # Requests that the tokenizer does not tell apart share more than what stands before them.
    assert chat[: len(chat) - len(rest)] == header[: len(chat) - len(rest)]


def test_dialogues_of_other_settings_do_not_mix(target: Target, corpus: Corpus) -> None:
    with pytest.raises(RunMismatch, match=r"temperature: 0\.7"):
        extend_dialogues(corpus, target, DialogueSettings(temperature=1.0, max_new_tokens=12), 99)


def test_a_target_that_cannot_chat_says_so(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        extend_dialogues(Corpus(tmp_path), load_target(tiny_folder), SETTINGS, 1)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="greedy_share"):
        DialogueSettings(greedy_share=1.5)
    with pytest.raises(InvalidRequest, match="top_p"):
        DialogueSettings(top_p=0.0)


def test_the_stored_features_give_the_targets_distribution(
    target: Target, corpus: Corpus, tmp_path: Path
) -> None:
    taps = (-1, 1)
    store = extend_features(tmp_path, corpus, target, taps)
    assert len(store) == len(corpus) == ENOUGH
    head = load_frame(target.folder, "cpu").decoder.head
    from dspark.target import Span

    for number in (0, 7, ENOUGH - 1):
        dialogue, features = corpus[number], store[number]
        answer = len(dialogue.answer)
        with torch.inference_mode():
            spans = [Span(0, 0, dialogue.tokens, logits=answer)]
            forward = target.forward(spans, target.new_cache(1, len(dialogue.tokens)), taps)
            assert forward.features is not None and forward.features[0] is not None
            logits = head(features.finals.float()) - features.log_normalisers[:, None]
        torch.testing.assert_close(features.taps.float(), forward.features[0], atol=0, rtol=2**-8)
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(answer))
        expected = forward.logits[0].log_softmax(-1)
        torch.testing.assert_close(logits, expected, atol=0.02, rtol=0.01)


def test_features_go_on_behind_the_last_whole_dialogue(
    target: Target, corpus: Corpus, tmp_path: Path
) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    extend_features(whole, corpus, target, (0, 1))

    def stop(done: int, total: int) -> None:
        if done >= ENOUGH / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend_features(torn, corpus, target, (0, 1), on_progress=stop)
    hidden = target.decoder.config.hidden_size
    done = len(FeatureStore(torn, corpus, 2, hidden))
    assert ENOUGH / 2 <= done < ENOUGH
    with (torn / "taps.bf16").open("ab") as file:
        file.write(bytes(3 * hidden))
    extend_features(torn, corpus, target, (0, 1))
    for name in ("taps.bf16", "finals.f16", "normalisers.f32"):
        assert (torn / name).read_bytes() == (whole / name).read_bytes()
    with pytest.raises(RunMismatch, match="taps"):
        extend_features(torn, corpus, target, (0,))


def test_a_layer_that_is_no_tap_is_refused(target: Target, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"\[2\]; the target offers -1 … 1"):
        extend_features(tmp_path, corpus, target, (2,))


def test_the_vocabulary_is_what_the_target_says_in_training() -> None:
    said = Counter({5: 9, 3: 4, 8: 4, 1: 1})
    assert draft_vocabulary(said, 3, 10) == (3, 5, 8)
    assert draft_vocabulary(said, 6, 10) == (0, 1, 2, 3, 5, 8)
    assert draft_vocabulary(said, 10, 10) is None
    assert draft_vocabulary(said, 0, 10) is None


def test_held_out_answers_do_not_choose_the_vocabulary() -> None:
    dialogues = [Dialogue(f"request {n}", (7,), (n,), greedy=True) for n in range(200)]
    said, seen = count_tokens(dialogues)
    assert said == Counter(each.answer[0] for each in dialogues if each.split is Split.TRAIN)
    assert 0 < len(said) < len(dialogues)
    assert seen == {7, *range(200)}


def test_the_mask_is_a_token_that_never_occurs() -> None:
    assert mask_token(frozenset({9, 8, 3}), 10) == 7
    assert mask_token(frozenset(range(10)), 10) == 9


def test_a_run_that_wants_no_more_needs_no_engine(corpus: Corpus, target: Target) -> None:
    lines = (corpus._lines).read_text()
    extend_dialogues(corpus, target, SETTINGS, ENOUGH)
    assert corpus._lines.read_text() == lines
    assert all(json.loads(line) for line in lines.splitlines())
