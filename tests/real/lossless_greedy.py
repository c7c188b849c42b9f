"""The greedy half of `lossless_acceptance`: real answers with every kind of drafter."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from dspark import Engine, SamplingParams, Target, load_target
from dspark.bench.prompts import INSTRUCTIONS, read_prompts
from dspark.drafters import (
    Anchor,
    Draft,
    Drafter,
    DraftModel,
    LayerSkipDrafter,
    branched,
    load_drafter,
)
from dspark.random_weights import random_drafter
from dspark.target import Span
from dspark.tree import TreeShape
from tests.real.lossless_record import Comparison, Outcome

PROMPTS = 200
NEW_TOKENS = 24
SLOTS = 8
CONTEXT_TOKENS = 256
REAL_BLOCK = 5
ORACLE_ERRORS = 0.3
EARLY_LAYERS = 26
TREE = TreeShape.likeliest(6)
ALL_BUT_EQUAL = 1e-4
"""How near the two best logits lie where float32 may order them by how sums were rounded."""

SUBJECTS = (
    "the moon", "bread", "a bicycle", "my neighbour's dog", "black holes", "tax returns", "Lisbon",
    "chess", "the violin", "photosynthesis", "a broken tap", "the French Revolution", "Zürich café",
    "prime numbers", "hay fever", "a job interview", "volcanoes", "SELECT * FROM users", "rain",
    "3.14159", "old photographs", "the number 42", "sourdough", "love",
)  # fmt: skip
QUESTIONS = (
    "What should I know about {}?",
    "Write two lines of verse about {}.",
    "Explain {} to a child.",
    "Is it true that people worry too much about {}? Answer yes or no, and why.",
)
BEGINNINGS = (
    "Once upon a time, {}",
    "def describe():\n    return '{}",
    "Dear Sir or Madam, I am writing to you about {}",
    "| name | value |\n| --- | --- |\n| {} |",
)


def prompts(target: Target, count: int) -> list[tuple[int, ...]]:
    """Questions to an assistant, with and without a system prompt, and texts to be continued."""
    tokenizer = target.tokenizer

    def chat(*messages: tuple[str, str]) -> tuple[int, ...]:
        return tuple(tokenizer.chat([{"role": role, "content": text} for role, text in messages]))

    asked = [chat(("system", INSTRUCTIONS), ("user", question)) for question in read_prompts()]
    made: list[tuple[int, ...]] = []
    for subject in SUBJECTS:
        made += [chat(("user", question.format(subject))) for question in QUESTIONS]
        made += [tuple(tokenizer.encode(text.format(subject))) for text in BEGINNINGS]
    found = list(dict.fromkeys([*asked, *made]))[:count]
    assert len(found) == count, f"there are only {len(found)} prompts"
    return found


@dataclass(frozen=True)
class Known:
    """What the target says after each prompt, computed in one piece.

    Attributes:
        answers: by plain decoding.
        runners_up: at each place of an answer, the token that all but won.
        margins: how far it was behind, in logits.
    """

    answers: Mapping[tuple[int, ...], tuple[int, ...]]
    runners_up: Mapping[tuple[int, ...], tuple[int, ...]]
    margins: Mapping[tuple[int, ...], tuple[float, ...]]


class Recalling:
    """Drafts from what is known of the answers; confidences say nothing."""

    taps: Sequence[int] = ()
    block_size = REAL_BLOCK

    def new_cache(self, slots: int, context_tokens: int) -> None:
        """It needs none."""

    def extend(self, cache: object, slot: int, start: int, features: torch.Tensor) -> None:
        """It reads no features."""

    def draft(self, cache: object, anchors: Sequence[Anchor]) -> list[Draft]:
        drafts = []
        for anchor in anchors:
            done = len(anchor.sampler.answer)
            tokens = self._tokens(tuple(anchor.sampler.prompt), done)
            drafts.append(Draft(tokens, confidence=(0.5,) * len(tokens)))
        return drafts

    def _tokens(self, prompt: tuple[int, ...], done: int) -> tuple[int, ...]:
        raise NotImplementedError


class Adversary(Recalling):
    """Always wrong, and as nearly right as can be: drafts the tokens that all but won."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def _tokens(self, prompt: tuple[int, ...], done: int) -> tuple[int, ...]:
        return self._known.runners_up[prompt][done : done + REAL_BLOCK]


class Oracle(Recalling):
    """Knows the answers, and errs now and then."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._random = random.Random(1)

    def _tokens(self, prompt: tuple[int, ...], done: int) -> tuple[int, ...]:
        places = range(done, min(done + REAL_BLOCK, NEW_TOKENS))
        answer, wrong = self._known.answers[prompt], self._known.runners_up[prompt]
        return tuple(
            (wrong if self._random.random() < ORACLE_ERRORS else answer)[place] for place in places
        )


class Greedy:
    """One precision's comparisons; what they share is computed when the first one asks for it."""

    HEADING = (
        "precision  drafter              identical  all but equal  wrong  tokens/step  accepted"
    )

    def __init__(self, source: str, dtype: str, count: int, trained: Sequence[str] = ()) -> None:
        self._source = source
        self._dtype = dtype
        self._count = count
        self._trained = trained

    def comparisons(self) -> Iterator[Comparison]:
        """One for each drafter, alone and in trees."""
        for name, load in self._drafters().items():
            yield f"{self._dtype:9}  {name:19}", partial(self._compared, load)

    def _compared(self, load: Callable[[], Drafter]) -> Outcome:
        found, figures = answers(self._target, load(), self._asked, self._params)
        exactly = self._dtype != "float32"
        near, wrong = differences(self._target, self._plain, found, self._known, exactly=exactly)
        same = sum(found[each] == self._plain[each] for each in self._asked)
        line = f"{same:9}  {len(near):13}  {len(wrong):5}  {figures}"
        return Outcome("\n    ".join([line, *near, *wrong]), good=not wrong)

    def _drafters(self) -> dict[str, Callable[[], Drafter]]:
        in_chains: dict[str, Callable[[], Drafter]] = {
            "random": lambda: random_drafter(
                self._target, layers=2, block_size=REAL_BLOCK, taps=3, markov_rank=64
            ),
            "prompt lookup": partial(self._load, "prompt-lookup"),
            "layer skipping": lambda: LayerSkipDrafter(self._target, EARLY_LAYERS, block_size=3),
            "draft model": lambda: DraftModel(
                first_layers(self._target, EARLY_LAYERS), self._target, block_size=3
            ),
        }
        for number, folder in enumerate(self._trained, 1):
            in_chains[f"trained {number}"] = partial(self._load, folder)
        in_trees = {f"{name}, tree": partial(self._tree, load) for name, load in in_chains.items()}
        adversary, oracle = (lambda: Adversary(self._known)), (lambda: Oracle(self._known))
        return {"adversary": adversary, "oracle": oracle, **in_chains, **in_trees}

    def _load(self, name: str) -> Drafter:
        return load_drafter(name, self._target)

    @staticmethod
    def _tree(load: Callable[[], Drafter]) -> Drafter:
        return branched(load(), TREE)

    @cached_property
    def _target(self) -> Target:
        return load_target(self._source, dtype=self._dtype)

    @cached_property
    def _asked(self) -> list[tuple[int, ...]]:
        return prompts(self._target, self._count)

    @cached_property
    def _params(self) -> SamplingParams:
        # Without stop tokens all answers have the same length.
        bias = dict.fromkeys(self._target.stop_token_ids, -math.inf)
        return SamplingParams(max_new_tokens=NEW_TOKENS, logit_bias=bias)

    @cached_property
    def _plain(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return answers(self._target, None, self._asked, self._params)[0]

    @cached_property
    def _known(self) -> Known:
        return look_up(self._target, self._plain)


def first_layers(target: Target, layers: int) -> Target:
    """The target cut short, as a model of its own."""
    return Target(target.folder, target.decoder.first_layers(layers), target.threads)


def answers(
    target: Target,
    drafter: Drafter | None,
    asked: Sequence[tuple[int, ...]],
    params: SamplingParams,
) -> tuple[dict[tuple[int, ...], tuple[int, ...]], str]:
    """Each prompt's answer, and in a few figures how they came."""
    with Engine(
        target,
        drafter,
        slots=SLOTS,
        context_tokens=CONTEXT_TOKENS,
        max_queue=len(asked),
    ) as engine:
        generations = {prompt: engine.submit(prompt, params) for prompt in asked}
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        decoded = 0
        for prompt, generation in generations.items():
            steps = list(generation)
            decoded += len(steps)
            found[prompt] = tuple(token for step in steps for token in step.committed)
        counts = engine.metrics
    share = counts.tokens_accepted / max(1, counts.tokens_scheduled)
    return found, f"{counts.tokens_committed / decoded:11.2f}  {share:8.1%}"


def look_up(target: Target, plain: Mapping[tuple[int, ...], tuple[int, ...]]) -> Known:
    """Computes every prompt with its answer in one piece, and looks at the two best tokens."""
    runners_up, margins = {}, {}
    for prompt, answer in plain.items():
        span = Span(0, 0, [*prompt, *answer[:-1]], len(answer))
        with torch.inference_mode():
            logits = target.forward([span], target.new_cache(1, span.stop)).logits[0].clone()
            logits[:, list(target.stop_token_ids)] = -math.inf
            best = logits.topk(2)
        # In float32 the piece may differ from the steps where two are all but equal.
        pairs = zip(best.indices.tolist(), answer, strict=True)
        runners_up[prompt] = tuple(
            first if first != said else second for (first, second), said in pairs
        )
        margins[prompt] = tuple((best.values[:, 0] - best.values[:, 1]).tolist())
    return Known(plain, runners_up, margins)


def differences(
    target: Target,
    plain: Mapping[tuple[int, ...], tuple[int, ...]],
    found: Mapping[tuple[int, ...], tuple[int, ...]],
    known: Known,
    *,
    exactly: bool,
) -> tuple[list[str], list[str]]:
    """Where answers part from plain ones: at all but equal logits, or wrongly."""
    near: list[str] = []
    wrong: list[str] = []
    for number, (prompt, expected) in enumerate(plain.items(), 1):
        pairs = zip(expected, found[prompt], strict=False)
        place = next((i for i, (left, right) in enumerate(pairs) if left != right), None)
        if place is None and len(found[prompt]) == len(expected):
            continue
        place = min(len(found[prompt]), len(expected)) if place is None else place
        margin = known.margins[prompt][min(place, len(expected) - 1)]
        said = [
            target.tokenizer.decode(each[place : place + 1]) for each in (expected, found[prompt])
        ]
        line = f"prompt {number}, token {place + 1}: {said[0]!r} or {said[1]!r}, {margin:.2e} apart"
        (wrong if exactly or margin > ALL_BUT_EQUAL else near).append(line)
    return near, wrong
