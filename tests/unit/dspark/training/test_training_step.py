"""A training step sees what drafting sees, and its loss is the paper's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark import DSparkDrafter, SamplingParams, Target, load_drafter
from dspark.checkpoint import read_json
from dspark.drafters import Anchor
from dspark.sampling import Sampler
from dspark.target import Span
from dspark.training.batches import Batches
from dspark.training.corpus import Dialogue
from dspark.training.features import DialogueFeatures
from dspark.training.frame import load_frame
from dspark.training.fused_loss import Labels, fused_terms
from dspark.training.loss import (
    Terms,
    accepted_length,
    loss_terms,
    target_probabilities,
    weights_of_places,
)
from dspark.training.network import Drafted, TrainableDrafter
from dspark.training.packing import Batch, pack, possible_anchors
from tests.unit.dspark.conftest import HEADS

Write = Callable[..., Path]
Part = tuple[Dialogue, DialogueFeatures, Sequence[int]]
TOLERANCE = 1e-4  # absolute, in float32
BLOCK = 4  # of the drafters that `write_drafter` writes
ALL = range(1000)


def part(target: Target, seed: int, anchors: Sequence[int] = ALL) -> Part:
    """A dialogue of arbitrary tokens, with the target's features, unrounded."""
    rng = random.Random(seed)
    tokens = [rng.randrange(2, target.vocab_size) for _ in range(rng.randint(14, 20))]
    prompt = rng.randint(3, 6)
    dialogue = Dialogue(str(seed), tuple(tokens[:prompt]), tuple(tokens[prompt:]), greedy=False)
    decoder = target.decoder
    with torch.inference_mode():
        forward = target.forward(
            [Span(0, 0, tokens)], target.new_cache(1, 32), (-1, 1, decoder.config.layers - 1)
        )
        assert forward.features is not None and forward.features[0] is not None
        hidden = decoder.config.hidden_size
        taps, last = torch.split(forward.features[0], [2 * hidden, hidden], -1)
        finals = torch.nn.functional.rms_norm(
            last[prompt:], (hidden,), decoder.final_norm, decoder.config.norm_epsilon
        )
        normalisers = decoder.head(finals).logsumexp(-1)
    features = DialogueFeatures(taps.clone(), finals.clone(), normalisers.clone())
    possible = possible_anchors(dialogue)
    return dialogue, features, [each for each in possible if each in anchors]


def trainable(folder: Path, target: Target) -> TrainableDrafter:
    tensors = load_file(folder / "model.safetensors")
    return TrainableDrafter(
        read_json(folder / "config.json"), tensors, load_frame(target.folder, "cpu")
    )


def drafting(
    target: Target, drafter: DSparkDrafter, dialogue: Dialogue, anchor: int
) -> tuple[Tensor, Tensor]:
    """Logits and confidences behind an anchor as the engine's drafter computes them."""
    tokens = dialogue.tokens
    cache = drafter.new_cache(1, 64)
    with torch.inference_mode():
        spans = [Span(0, 0, tokens[:anchor])]
        features = target.forward(spans, target.new_cache(1, 64), drafter.taps).features
        assert features is not None and features[0] is not None
        drafter.extend(cache, 0, 0, features[0])
        sampler = Sampler(SamplingParams(), tokens[:anchor], [], random.Random(0))
        hidden = drafter.block_hidden(cache, [Anchor(0, anchor, tokens[anchor], sampler)])
        base, state = drafter.base_logits(hidden), drafter.head.start(1)
        logits, confidences = [], []
        for place in range(drafter.block_size):
            previous = [tokens[anchor + place]]
            row, confidence, state = drafter.position(
                hidden[:, place], base[:, place], previous, state
            )
            logits.append(row[0])
            confidences.append(confidence[0])
    return torch.stack(logits), torch.stack(confidences)


@pytest.mark.parametrize("vocabulary", [None, [50, 3, 17, 8, 62, 30, 11]])
@pytest.mark.parametrize("head", HEADS)
def test_training_computes_what_drafting_computes(
    head: str, vocabulary: list[int] | None, target: Target, write_drafter: Write
) -> None:
    folder = write_drafter({"markov_head_type": head}, vocabulary=vocabulary)
    drafter = load_drafter(folder, target)
    parts = [part(target, 1), part(target, 2)]
    with torch.no_grad():
        drafted = trainable(folder, target).teacher_forced(pack(parts, BLOCK))
    row = 0
    for dialogue, _, anchors in parts:
        for anchor in anchors:
            if anchor + BLOCK < len(dialogue.tokens):
                logits, confidence = drafting(target, drafter, dialogue, anchor)
                logits = logits if vocabulary is None else logits[:, vocabulary]
                torch.testing.assert_close(drafted.logits[row], logits, atol=TOLERANCE, rtol=0)
                torch.testing.assert_close(
                    drafted.confidence_logits[row], confidence, atol=TOLERANCE, rtol=0
                )
            row += 1
    assert row == len(drafted.logits)


def changed_behind(whole: Part, anchor: int) -> Part:
    """The same up to the block behind an anchor, and something else from there on."""
    dialogue, features, anchors = whole
    end = anchor + BLOCK + 1 - len(dialogue.prompt)
    other = tuple((token + 7) % 60 for token in dialogue.answer[end:])
    taps, finals = features.taps.clone(), features.finals.clone()
    taps[anchor:] += 5  # not even of the anchor itself may anything be seen
    finals[end - 1 :] += 5
    changed = replace(dialogue, answer=dialogue.answer[:end] + other)
    return changed, DialogueFeatures(taps, finals, features.log_normalisers), anchors


def test_a_block_ends_with_its_answer(target: Target) -> None:
    dialogue, features, anchors = part(target, 8)
    batch = pack([part(target, 9), (dialogue, features, anchors)], BLOCK)
    rows = batch.pieces[1].anchors
    left = [len(dialogue.tokens) - 1 - anchor for anchor in anchors]
    assert batch.valid[rows].sum(1).tolist() == [min(BLOCK, count) for count in left]
    for row, anchor in zip(range(rows.start, rows.stop), anchors, strict=True):
        labels = batch.tokens[row, 1:][batch.valid[row]]
        assert labels.tolist() == list(dialogue.tokens[anchor + 1 : anchor + 1 + BLOCK])
        predicted_from = batch.finals[batch.predicting[row]][batch.valid[row]]
        first = anchor - len(dialogue.prompt)
        assert torch.equal(predicted_from, features.finals[first : first + len(labels)])


def loss_of_blocks(drafter: TrainableDrafter, batch: Batch, head: Tensor) -> Tensor:
    """Each block's own loss."""
    drafted = drafter.teacher_forced(batch)
    probabilities = target_probabilities(batch, head)[batch.predicting]
    return torch.stack(
        [
            loss_terms(
                Drafted(drafted.logits[row, None], drafted.confidence_logits[row, None]),
                probabilities[row, None],
                batch.valid[row, None],
                decay=4.0,
            ).loss()
            for row in range(len(drafted.logits))
        ]
    )


def test_a_block_sees_nothing_of_what_comes_after_it(target: Target, write_drafter: Write) -> None:
    drafter = trainable(write_drafter(), target)
    head = load_frame(target.folder, "cpu").decoder.head.weight  # type: ignore[attr-defined]
    whole = part(target, 3)
    anchor = whole[2][2]
    with torch.no_grad():
        before = loss_of_blocks(drafter, pack([whole], BLOCK), head)
        after = loss_of_blocks(drafter, pack([changed_behind(whole, anchor)], BLOCK), head)
    torch.testing.assert_close(after[:3], before[:3])
    assert (after[3:] - before[3:]).abs().min() > TOLERANCE


def test_a_block_depends_on_no_other_block_or_dialogue(
    target: Target, write_drafter: Write
) -> None:
    drafter = trainable(write_drafter(), target)
    parts = [part(target, seed) for seed in (4, 5)]
    with torch.no_grad():
        together = drafter.teacher_forced(pack(parts, BLOCK)).logits
        alone = [
            drafter.teacher_forced(pack([(dialogue, features, [anchor])], BLOCK)).logits
            for dialogue, features, anchors in parts
            for anchor in anchors
        ]
    torch.testing.assert_close(together, torch.cat(alone), atol=TOLERANCE, rtol=0)


def test_a_block_sees_every_feature_before_its_anchor(target: Target, write_drafter: Write) -> None:
    drafter = trainable(write_drafter(), target)
    dialogue, features, anchors = part(target, 6)
    anchor = anchors[1]
    taps = features.taps.clone().requires_grad_()
    seen = DialogueFeatures(taps, features.finals, features.log_normalisers)
    batch = pack([(dialogue, seen, [anchor, anchors[-1]])], BLOCK)
    drafter.teacher_forced(batch).logits[0].square().sum().backward()  # type: ignore[no-untyped-call]
    assert taps.grad is not None
    assert (taps.grad[:anchor].abs().sum(-1) > 0).all()
    assert (taps.grad[anchor:] == 0).all()


def test_every_weight_but_the_targets_learns(target: Target, write_drafter: Write) -> None:
    folder = write_drafter({"markov_head_type": "rnn"}, vocabulary=list(range(20)))
    frozen = {"lm_head.weight", "d2t", "embed_tokens.weight"}
    unused = {"markov_head.gate_proj.weight"}  # of the other kind of head
    tensors = {
        name: tensor.requires_grad_(name not in frozen)
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    config = read_json(folder / "config.json")
    drafter = TrainableDrafter(config, tensors, load_frame(target.folder, "cpu"))
    drafted = drafter.teacher_forced(pack([part(target, 7)], BLOCK))
    loss = drafted.logits.square().mean() + drafted.confidence_logits.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    still = {
        name
        for name, tensor in tensors.items()
        if tensor.grad is None or not tensor.grad.abs().sum() > 0
    }
    assert still == frozen | unused


def brute_force_loss(
    drafter_logits: list[list[list[float]]],
    confidences: list[list[float]],
    target_logits: list[list[list[float]]],
    valid: list[list[bool]],
    vocabulary: list[int],
    decay: float,
) -> float:
    """The loss number by number, over the whole vocabulary."""
    sums, weights = {"ce": 0.0, "tv": 0.0, "bce": 0.0}, 0.0
    for block, row in enumerate(target_logits):
        for place, logits in enumerate(row):
            if not valid[block][place]:
                continue
            weight = math.exp(-place / decay)
            p_target = [math.exp(x) / sum(map(math.exp, logits)) for x in logits]
            p_drafter = [0.0] * len(logits)
            exps = [math.exp(x) for x in drafter_logits[block][place]]
            for token, value in zip(vocabulary, exps, strict=True):
                p_drafter[token] = value / sum(exps)
            distance = sum(abs(d - t) for d, t in zip(p_drafter, p_target, strict=True))
            overlap = sum(min(d, t) for d, t in zip(p_drafter, p_target, strict=True))
            assert overlap == pytest.approx(1 - distance / 2)
            confidence = 1 / (1 + math.exp(-confidences[block][place]))
            doubt = -overlap * math.log(confidence) - (1 - overlap) * math.log(1 - confidence)
            surprise = -sum(p_target[token] * math.log(p_drafter[token]) for token in vocabulary)
            for name, value in {"ce": surprise, "tv": distance, "bce": doubt}.items():
                sums[name] += weight * value
            weights += weight
    ce, tv, bce = (sums[name] / weights for name in ("ce", "tv", "bce"))
    return 0.1 * ce + 0.9 * tv + 1.0 * bce


def test_the_loss_is_what_its_definition_gives() -> None:
    torch.manual_seed(3)
    vocab, vocabulary, blocks = 6, [4, 0, 3], 5
    target_logits, drafter_logits = torch.randn(blocks, 3, vocab), torch.randn(blocks, 3, 3)
    confidences = torch.randn(blocks, 3)
    valid = torch.tensor([[True] * 3] * 3 + [[True, False, False], [True, True, False]])
    terms = loss_terms(
        Drafted(drafter_logits, confidences),
        target_logits.softmax(-1)[..., vocabulary],
        valid,
        decay=4.0,
    )
    expected = brute_force_loss(
        drafter_logits.tolist(),
        confidences.tolist(),
        target_logits.tolist(),
        valid.tolist(),
        vocabulary,
        decay=4.0,
    )
    assert float(terms.loss()) == pytest.approx(expected, rel=1e-5)
    assert (terms.acceptance[~valid] == 0).all()


@pytest.mark.parametrize("head_type", HEADS)
def test_the_fused_loss_and_its_gradients_are_autograds(
    target: Target, write_drafter: Write, head_type: str
) -> None:
    folder = write_drafter({"markov_head_type": head_type})
    frame = load_frame(target.folder, "cpu")
    head = frame.decoder.head.weight  # type: ignore[attr-defined]
    config = dict(read_json(folder / "config.json"))
    batch = pack([part(target, 5), part(target, 6)], BLOCK)
    probabilities = target_probabilities(batch, head) * 0.9  # as if there were other tokens

    def gradients(fused: bool) -> tuple[Tensor, Terms, dict[str, Tensor]]:
        tensors = {
            name: tensor.clone().requires_grad_()
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        drafter = TrainableDrafter(config, tensors, frame)
        if fused:
            weights = weights_of_places(batch.valid, 4.0).flatten()
            predicting = batch.predicting.flatten()
            told = Labels(probabilities, predicting, weights)
            loss, terms = fused_terms(drafter.blocks(batch), told, cross_entropy=0.6)
        else:
            drafted = drafter.teacher_forced(batch)
            terms = loss_terms(drafted, probabilities[batch.predicting], batch.valid, decay=4.0)
            loss = terms.loss(cross_entropy=0.6)
        loss.backward()  # type: ignore[no-untyped-call]
        found = {name: each.grad for name, each in tensors.items() if each.grad is not None}
        return loss.detach(), terms, found

    loss, terms, expected = gradients(fused=False)
    fused_loss, fused_terms_, found = gradients(fused=True)
    torch.testing.assert_close(fused_loss, loss)
    for ours, reference in zip(fused_terms_, terms, strict=True):
        torch.testing.assert_close(ours, reference.detach())
    assert found.keys() == expected.keys() and len(found) > 10
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


def test_accepted_length_counts_whole_prefixes_and_the_bonus() -> None:
    acceptance = torch.tensor([[1.0, 1.0, 1.0], [0.5, 0.5, 0.0], [0.0, 1.0, 1.0]])
    assert accepted_length(acceptance).tolist() == [4.0, 1.75, 1.0]


class FakeStore:
    """As many features as said, for a corpus of dialogues in memory."""

    def __init__(self, done: int) -> None:
        self._done = done

    def __len__(self) -> int:
        return self._done

    def __getitem__(self, number: int) -> DialogueFeatures:
        return DialogueFeatures(torch.full((9, 2), number), torch.zeros(6, 2), torch.zeros(6))


class FakeCorpus:
    def __init__(self, dialogues: int) -> None:
        self._dialogues = dialogues
        self.prompt_tokens = torch.full((dialogues,), 3).numpy()
        self.tokens = torch.full((dialogues,), 9).numpy()

    def __len__(self) -> int:
        return self._dialogues

    def __getitem__(self, number: int) -> Dialogue:
        return Dialogue(str(number), (0,) * 3, (number,) * 6, greedy=False)


def batches(dialogues: int, featured: int) -> Batches:
    corpus = FakeCorpus(dialogues)
    splits = [corpus[number].split for number in range(dialogues)]
    return Batches(
        corpus,  # type: ignore[arg-type]
        FakeStore(featured),  # type: ignore[arg-type]
        splits,
        block=2,
        dialogues=5,
        anchors=4,
        seed=0,
    )


def test_an_epoch_sees_every_dialogue_that_trains_once() -> None:
    found = batches(dialogues=60, featured=50)
    corpus = FakeCorpus(50)
    train = {number for number in range(50) if corpus[number].split == "train"}
    seen = [
        int(found.at(step).taps[piece.context][0, 0])
        for step in range(len(train) // 5 + 1)
        for piece in found.at(step).pieces
    ]
    assert set(seen[: len(train)]) == train
    assert all(len(found.at(step).anchor_positions) == 5 * 4 for step in range(3))


def test_a_step_sees_the_same_whatever_came_before() -> None:
    one, other = batches(60, 60), batches(60, 60)
    for step in range(7):
        one.at(step)
    assert torch.equal(one.at(30).anchor_positions, other.at(30).anchor_positions)
    assert torch.equal(one.at(30).tokens, other.at(30).tokens)
    assert not torch.equal(one.at(30).anchor_positions, one.at(31).anchor_positions)
