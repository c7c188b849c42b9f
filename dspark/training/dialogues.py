"""The first stage: requests, partly written by the target itself, and the target's answers.

A drafter learns what its target would say, so the target says it: no data set is needed. Every
dialogue follows from the seed and its number alone, so a stage that was killed goes on as if it had
not been, but for tokens that are all but equally likely: sums are rounded by who shares a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from random import Random

from dspark.errors import InvalidRequest
from dspark.sampling import SamplingParams
from dspark.target import Target
from dspark.tokenizer import Tokenizer
from dspark.training import seeds
from dspark.training.batch_decoding import BatchDecoder, Interview, Question
from dspark.training.corpus import Corpus, Dialogue
from dspark.training.fingerprint import fingerprint

Progress = Callable[[int, int], None]
"""Told how much is done and how much there is to do."""

_REQUEST_TOKENS = 48
_REQUEST_ROOM = 256  # for the built-in requests, even where every letter is a token


@dataclass(frozen=True)
class DialogueSettings:
    """What is asked, and how the answers are drawn.

    Attributes:
        seed: every dialogue follows from it and the dialogue's number.
        instructions: the system prompt of every dialogue; the chat template's own if None.
        requests: asked in turn, again and again; without any, the built-in templates are filled.
        self_written_share: how many requests, of all, the target writes itself.
        begun_share: how many of those begin as people begin to speak (`seeds.BEGINNINGS`).
        greedy_share: how many answers take the likeliest token; the others are sampled.
        temperature: of sampled answers.
        top_k: the same.
        top_p: the same.
        repetition_penalty: of all answers.
        max_new_tokens: where an answer is cut.
    """

    seed: int = 0
    instructions: str | None = None
    requests: tuple[str, ...] = ()
    self_written_share: float = 0.25
    begun_share: float = 0.7
    greedy_share: float = 0.25
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        for name in ("self_written_share", "begun_share", "greedy_share"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise InvalidRequest(f"{name} is {share}; it must be from 0 to 1")
        self.sampling(greedy=False, seed=0)  # raises for what is out of range

    def messages(self, request: str) -> list[dict[str, str]]:
        """The dialogue that a request opens."""
        user = {"role": "user", "content": request}
        if self.instructions is None:
            return [user]
        return [{"role": "system", "content": self.instructions}, user]

    def sampling(self, *, greedy: bool, seed: int) -> SamplingParams:
        """How one answer is drawn."""
        return SamplingParams(
            temperature=0.0 if greedy else self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            max_new_tokens=self.max_new_tokens,
            seed=seed,
        )


def extend_dialogues(
    corpus: Corpus,
    target: Target,
    settings: DialogueSettings,
    wanted: int,
    *,
    slots: int = 64,
    on_progress: Progress = lambda done, total: None,
) -> None:
    """Let the corpus grow to the wanted number of dialogues.

    Raises:
        RunMismatch: it was begun with another target or other settings.
        TokenizerError: the target has no tokenizer or chat template.
        PromptTooLong: instructions and request leave no room for an answer.
    """
    corpus.begin({"target": fingerprint(target.folder), **asdict(settings)})
    on_progress(len(corpus), wanted)
    if len(corpus) >= wanted:
        return
    context = min(_longest_dialogue(target.tokenizer, settings), target.context_tokens)
    interviewer = _Interviewer(target, settings)
    decoder = BatchDecoder(target, slots, context, interviewer.user_header)
    for dialogue in decoder.hold(map(interviewer.hold, range(len(corpus), wanted))):
        corpus.append(dialogue)
        on_progress(len(corpus), wanted)


class _Interviewer:
    """Knows what to ask one target."""

    def __init__(self, target: Target, settings: DialogueSettings) -> None:
        self._settings = settings
        self._tokenizer = target.tokenizer
        self._end = _answer_end(target)
        self.user_header = user_header(self._tokenizer, settings.messages)

    def hold(self, number: int) -> Interview[Dialogue]:
        """The dialogue of that number."""
        settings = self._settings
        rng = Random(f"{settings.seed}:{number}")
        greedy = rng.random() < settings.greedy_share
        request = yield from self._request(number, rng)
        prompt = self._tokenizer.chat(settings.messages(request))
        sampling = settings.sampling(greedy=greedy, seed=rng.getrandbits(32))
        answer = yield Question(prompt, sampling)
        end = [self._end] if answer.stopped and self._end is not None else []
        return Dialogue(request, tuple(prompt), (*answer.tokens, *end), greedy)

    def _request(self, number: int, rng: Random) -> Interview[str]:
        requests = self._settings.requests
        prepared = requests[number % len(requests)] if requests else seeds.request(rng)
        if rng.random() >= self._settings.self_written_share:
            return prepared
        begun = rng.random() < self._settings.begun_share
        beginning = rng.choice(seeds.BEGINNINGS) if begun else ""
        # What it begins differs enough by itself; what it goes on with is to make sense.
        params = SamplingParams(
            temperature=0.8 if begun else 1.0,
            max_new_tokens=_REQUEST_TOKENS,
            seed=rng.getrandbits(32),
        )
        header = [*self.user_header, *self._tokenizer.encode(beginning)]
        written = yield Question(header, params)
        # Small models like to write on, to answer themselves even: the first line is the request.
        lines = (beginning + self._tokenizer.decode(written.tokens)).strip().splitlines()
        return lines[0].strip() if lines else prepared


def user_header(tokenizer: Tokenizer, messages: Callable[[str], list[dict[str, str]]]) -> list[int]:
    """A prompt that ends where the user begins to speak: what all requests have before them.

    Args:
        tokenizer: with a chat template.
        messages: the dialogue that a request opens.
    """
    one, other = (
        tokenizer.chat(messages(request), add_generation_prompt=False)
        for request in ("What", "Zero")
    )
    return [token for token, _ in takewhile(_equal, zip(one, other, strict=False))]


def _equal(pair: Sequence[int]) -> bool:
    return pair[0] == pair[1]


def _longest_dialogue(tokenizer: Tokenizer, settings: DialogueSettings) -> int:
    """How many tokens a dialogue may come to."""
    frame = len(tokenizer.chat(settings.messages("")))
    longest = max((len(tokenizer.encode(each)) for each in settings.requests), default=0)
    return frame + max(longest, _REQUEST_ROOM) + settings.max_new_tokens


def _answer_end(target: Target) -> int | None:
    """The token that ends an answer; the tokenizer's own, where a model has several."""
    return min(target.tokenizer.stop_token_ids or target.stop_token_ids, default=None)
