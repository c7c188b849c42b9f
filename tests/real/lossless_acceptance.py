"""Shows that speculation changes no answer: greedy ones token by token, sampled ones in number.

    python -m tests.real.lossless_acceptance [--target NAME|PATH] [--only greedy|sampled]

Greedy answers of the embedded model with every kind of drafter, one of them bent on being wrong,
one token after the other and in trees, are compared with plain decoding's. And the joint
distribution of three sampled tokens, for every sampling option and schedule, with trees too, is
compared with the exact one. It takes an hour or more (`--prompts` and `--draws` make it shorter),
prints a line for each comparison, and ends with status 1 if one is not as it should be.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from dspark import Engine, SamplingParams, Scheduler, StepCostTable, Target, load_target
from dspark.bench.prompts import INSTRUCTIONS, read_prompts
from dspark.cli import DEFAULT_TARGET, find_target
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
from dspark.sampling import Sampler, distribution, draw
from dspark.scheduler import SCHEDULES, DecodingStep, StepCost
from dspark.target import Span
from dspark.tree import TreeShape
from dspark.verification import verify
from tests.unit.dspark.test_tree import DRAFTS
from tests.unit.dspark.test_tree import answer as tree_answer
from tests.unit.dspark.test_verification import (
    BLOCK,
    DRAFTER,
    LENGTH,
    PROMPT,
    SETTINGS,
    TARGET,
    VOCAB,
    Tokens,
    chi_square,
    exact,
)

# --- greedy answers of a real model --------------------------------------------------------------

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


def greedy_part(source: str, count: int) -> bool:
    """Compares real answers in both precisions; prints a table and returns whether all is well."""
    print(f"\nGreedy: {count} prompts, {NEW_TOKENS} new tokens each, {SLOTS} at once")
    print("precision  drafter              identical  all but equal  wrong  tokens/step  accepted")
    good = True
    for dtype in ("int8", "float32"):
        target = load_target(source, dtype=dtype)
        asked = prompts(target, count)
        bias = dict.fromkeys(target.stop_token_ids, -math.inf)  # so that all have the same length
        params = SamplingParams(max_new_tokens=NEW_TOKENS, logit_bias=bias)
        plain, _ = answers(target, None, asked, params)
        known = look_up(target, plain)
        dspark = random_drafter(target, layers=2, block_size=REAL_BLOCK, taps=3, markov_rank=64)
        rivals = {
            "prompt lookup": load_drafter("prompt-lookup", target),
            "layer skipping": LayerSkipDrafter(target, EARLY_LAYERS, block_size=3),
            "draft model": DraftModel(first_layers(target, EARLY_LAYERS), target, block_size=3),
        }
        drafters: dict[str, Drafter] = {
            "random": dspark,
            "adversary": Adversary(known),
            "oracle": Oracle(known),
            **rivals,
            "random, tree": branched(dspark, TREE),
            **{f"{name}, tree": branched(drafter, TREE) for name, drafter in rivals.items()},
        }
        for name, drafter in drafters.items():
            found, figures = answers(target, drafter, asked, params)
            near, wrong = differences(target, plain, found, known, exactly=dtype == "int8")
            same = sum(found[each] == plain[each] for each in asked)
            good = good and not wrong
            print(
                f"{dtype:9}  {name:19}  {same:9}  {len(near):13}  {len(wrong):5}  {figures}",
                *near,
                *wrong,
                sep="\n    ",
                flush=True,
            )
    return good


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


# --- the distribution of sampled answers ---------------------------------------------------------

DRAWS = 50_000
TOGETHER = 2  # sequences that share each step
FAMILY_QUANTILE = 4.0
"""Of the normal distribution: one comparison in 30,000 goes beyond it by chance."""

# With stairs, so that schedules have something to weigh.
COSTS = StepCostTable((10.0, 10.5, 11.0, 13.5, 13.6, 13.8, 18.0, 18.2), (0.5, 0.6))


@dataclass(eq=False)
class RememberingSampler(Sampler):
    """Computes the target's distribution once for every sequence of tokens."""

    seen: dict[Tokens, torch.Tensor] = field(default_factory=dict)

    def distribution(self, logits: torch.Tensor, drafted: Sequence[int] = ()) -> torch.Tensor:
        tokens = (*self.answer, *drafted)
        if tokens not in self.seen:
            self.seen[tokens] = super().distribution(logits, drafted)
        return self.seen[tokens]


class LooksAhead:
    """What a schedule must not do: verifies a token if it is confident about the one after it."""

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        return [int(draft.confidence[1] > 0.5) for draft in step.drafts]


@cache
def confidence(previous: int, place: int) -> float:
    """Arbitrary, and dependent on the token before, as a confidence head's is."""
    return random.Random(100 * place + previous).choice((0.15, 0.4, 0.7, 0.95))


@cache
def stacked(context: Tokens, draft: Tokens) -> torch.Tensor:
    """The target's logits after the context and after each drafted token."""
    return torch.stack([TARGET([*context, *draft[:k]]) for k in range(len(draft) + 1)])


class Decoding:
    """Draws answers of three tokens as an engine does, some at a time.

    Attributes:
        scheduled: how many drafted tokens were verified.
        accepted: how many of them stood.
        steps: how many steps there were.
    """

    def __init__(self, params: SamplingParams, scheduler: Scheduler) -> None:
        self._params = params
        self._scheduler = scheduler
        self._random = random.Random(9)
        self._of_target: dict[Tokens, torch.Tensor] = {}
        self._of_drafter: dict[Tokens, torch.Tensor] = {}
        self.scheduled = self.accepted = self.steps = 0

    def answers(self, count: int) -> Iterator[Tokens]:
        """So many answers, every one that was begun."""
        begun = 0
        running: list[Sampler] = []
        while begun < count or running:
            while begun < count and len(running) < TOGETHER:
                running.append(
                    RememberingSampler(self._params, PROMPT, [], self._random, self._of_target)
                )
                begun += 1
            self._step(running)
            yield from (
                tuple(each.answer[:LENGTH]) for each in running if len(each.answer) >= LENGTH
            )
            running = [each for each in running if len(each.answer) < LENGTH]

    def _step(self, running: Sequence[Sampler]) -> None:
        drafting = self._scheduler.drafting
        drafts = [self._draft(each) if drafting else Draft() for each in running]
        lengths = self._scheduler.schedule(len(running), drafts)
        committed = 0
        for sampler, draft, length in zip(running, drafts, lengths, strict=True):
            logits = stacked(tuple(sampler.answer), draft.tokens[:length])
            verdict = verify(logits, draft, sampler)
            assert isinstance(sampler.answer, list)
            sampler.answer += [*draft.tokens[: verdict.accepted], verdict.token]
            committed += verdict.accepted + 1
            self.scheduled += length
            self.accepted += verdict.accepted
        self._scheduler.record(
            len(running),
            sequences=len(running),
            drafted=len(running) if drafting else 0,
            verified=sum(lengths),
            committed=committed,
        )
        self.steps += 1

    def _draft(self, sampler: Sampler) -> Draft:
        tokens: list[int] = []
        distributions = []
        confidences = []
        previous = [*PROMPT, *sampler.answer][-1]
        for place in range(BLOCK):
            context = (*sampler.answer, *tokens)
            if context not in self._of_drafter:
                logits = DRAFTER(context)
                self._of_drafter[context] = distribution(logits, self._params, PROMPT, context)
            confidences.append(confidence(previous, place))
            distributions.append(self._of_drafter[context])
            previous = draw(distributions[-1], self._random)
            tokens.append(previous)
        return Draft(tuple(tokens), tuple(distributions), tuple(confidences))


def deviation(statistic: float, degrees: int) -> float:
    """A chi-square statistic as a normal one, after Wilson and Hilferty."""
    spread = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5)


def sampled_part(draws: int) -> bool:
    """Compares distributions; prints a table and returns whether all is well."""
    print(f"\nSampled: {LENGTH} tokens of {VOCAB}, {draws} draws, blocks of {BLOCK}, by chi-square")
    print(
        "option           schedule            statistic  degrees       p  verified/step  accepted"
    )
    good = True
    for name, schedule in itertools.product(SETTINGS, SCHEDULES):
        scheduler = Scheduler.named(schedule, COSTS, confidence_threshold=0.3)
        good = compared(name, schedule, scheduler, draws) < FAMILY_QUANTILE and good
    for name, schedule in itertools.product(SETTINGS, SCHEDULES[1:]):
        for kind in DRAFTS:
            good = compared_trees(name, schedule, kind, draws // 5) < FAMILY_QUANTILE and good
    looked_ahead = compared("temperature 1", "(looks ahead)", Scheduler(LooksAhead()), draws)
    print(
        "The last must not be lossless, and is found out." if looked_ahead > FAMILY_QUANTILE else ""
    )
    return good and looked_ahead > FAMILY_QUANTILE


def compared(name: str, schedule: str, scheduler: Scheduler, draws: int) -> float:
    """Prints one comparison; returns by how many standard deviations it is too far off."""
    decoding = Decoding(SETTINGS[name], scheduler)
    probabilities = exact(SETTINGS[name])
    with torch.inference_mode():
        counts = Counter(decoding.answers(draws))
    statistic, degrees = chi_square(counts, probabilities)
    impossible = set(counts) - set(probabilities)
    off = math.inf if impossible else deviation(statistic, degrees)
    chance = math.erfc(off / math.sqrt(2)) / 2
    share = decoding.accepted / max(1, decoding.scheduled)
    print(
        f"{name:15}  {schedule:18}  {statistic:9.1f}  {degrees:7}  {chance:6.4f}  "
        f"{decoding.scheduled / decoding.steps:13.2f}  {share:8.1%}",
        flush=True,
    )
    return off


def compared_trees(name: str, schedule: str, kind: str, draws: int) -> float:
    """The same with trees; returns by how many standard deviations it is too far off."""
    scheduler = Scheduler.named(schedule, COSTS, confidence_threshold=0.3)
    rng = random.Random(9)
    with torch.inference_mode():
        counts = Counter(
            tree_answer(SETTINGS[name], rng, DRAFTS[kind], scheduler) for _ in range(draws)
        )
    probabilities = exact(SETTINGS[name])
    statistic, degrees = chi_square(counts, probabilities)
    impossible = set(counts) - set(probabilities)
    off = math.inf if impossible else deviation(statistic, degrees)
    chance = math.erfc(off / math.sqrt(2)) / 2
    print(
        f"{name:15}  {schedule:18}  {statistic:9.1f}  {degrees:7}  {chance:6.4f}  tree, {kind}",
        flush=True,
    )
    return off


def main() -> int:
    """Run what was asked for; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default=DEFAULT_TARGET, help="a model's name, folder or file")
    parser.add_argument("--only", choices=["greedy", "sampled"], help="half of it")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--draws", type=int, default=DRAWS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    good = True
    if arguments.only != "sampled":
        good = greedy_part(find_target(arguments.target), arguments.prompts)
    if arguments.only != "greedy":
        good = sampled_part(arguments.draws) and good
    print("\nEverything is as it should be." if good else "\nSomething is NOT as it should be.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
