"""What a user would pick instead, as contenders: transformers and llama.cpp."""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.bench.contenders import Answer, Unavailable

PROMPT_LOOKUP_TOKENS = 5


class _TokenTimes:
    """A streamer for transformers that notes when tokens came and how many at once."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.token_ids: list[int] = []
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.times.append(time.perf_counter())
        self.token_ids += value.flatten().tolist()

    def end(self) -> None:
        pass


class Transformers:
    """`generate` of Hugging Face transformers, as its documentation shows it."""

    extra_bytes = None

    def __init__(
        self,
        folder: Path,
        device: str,
        dtype: str,
        threads: int,
        stop_token_ids: Collection[int],
        *,
        prompt_lookup: bool = False,
    ) -> None:
        import transformers

        transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        torch.set_num_threads(threads)
        # The library's annotations are at odds with how its models are used.
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        )
        self._model = model.to(device).eval()
        self._stops = sorted(stop_token_ids)
        self._settings: dict[str, object] = (
            {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS} if prompt_lookup else {}
        )

    def answer(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
        """See `Loaded`."""
        token_times = _TokenTimes()
        begun = time.perf_counter()
        prompt = torch.tensor([list(prompt_ids)], device=self._model.device)
        self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=self._stops or None,
            pad_token_id=self._stops[0] if self._stops else 0,
            streamer=token_times,
            **self._settings,
        )
        ended = time.perf_counter()
        return Answer(
            *_without_stop(token_times.token_ids, self._stops),
            first_token_ms=1000 * (token_times.times[0] - begun),
            total_ms=1000 * (ended - begun),
            steps=len(token_times.times),
        )

    def close(self) -> None:
        """See `Loaded`."""
        del self._model
        gc.collect()  # its modules refer to each other in circles, and the next needs the memory


class LlamaCpp:
    """llama.cpp through its Python package, on the GGUF file itself."""

    extra_bytes = None

    def __init__(
        self,
        target: str | Path,
        threads: int,
        context_tokens: int,
        stop_token_ids: Collection[int],
    ) -> None:
        path = Path(target)
        if path.suffix != ".gguf" or not path.is_file():
            raise Unavailable("llama.cpp reads GGUF files only, and the target is none")
        try:
            import llama_cpp
        except ImportError as error:
            raise Unavailable(
                "llama.cpp is not installed: pip install 'dspark-assistant[bench]', which builds it"
            ) from error
        self._model: Any = llama_cpp.Llama(
            str(path),
            n_ctx=context_tokens,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._stops = frozenset(stop_token_ids)

    def answer(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
        """See `Loaded`."""
        times: list[float] = []
        token_ids: list[int] = []
        begun = time.perf_counter()
        for token in self._model.generate(list(prompt_ids), temp=0.0, repeat_penalty=1.0):
            times.append(time.perf_counter())
            token_ids.append(int(token))
            if token in self._stops or len(token_ids) == max_new_tokens:
                break
        return Answer(
            *_without_stop(token_ids, self._stops),
            first_token_ms=1000 * (times[0] - begun),
            total_ms=1000 * (times[-1] - begun),
            steps=len(times),
        )

    def close(self) -> None:
        """See `Loaded`."""
        self._model.close()


def _without_stop(token_ids: Sequence[int], stops: Collection[int]) -> tuple[tuple[int, ...], bool]:
    """The tokens before a stop token at the end, and whether there was one."""
    stopped = token_ids[-1] in stops
    return tuple(token_ids[:-1] if stopped else token_ids), stopped
