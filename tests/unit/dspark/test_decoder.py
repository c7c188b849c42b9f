"""The one decoder computes what transformers computes, for each family and each of its options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from dspark import Target, load_target
from dspark.target import Span

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("Llama", {}),
    "llama with untied heads and biases": (
        "Llama",
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with all heads its own": ("Llama", {"num_key_value_heads": 4}),
    "llama 3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama with linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 with another rope base": (
        "Qwen3",
        {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
}
TOKENS = [(7 * i * i + 3 * i) % 96 for i in range(120)]
TOLERANCE = 2e-5  # float32, sums in another order


# torch's type of a module is not transformers', and the tests need only a few of its methods
def reference_model(name: str) -> torch.nn.Module:
    family, options = MODELS[name]
    torch.manual_seed(11)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **options})
    model: torch.nn.Module = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # fresh norms and biases are ones and zeros
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(params=MODELS)
def models(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[torch.nn.Module, Target]:
    reference = reference_model(request.param)
    reference.save_pretrained(tmp_path)
    return reference, load_target(tmp_path)


def test_logits_and_tapped_layers_are_those_of_transformers(
    models: tuple[torch.nn.Module, Target],
) -> None:
    reference, target = models
    taps = (-1, 0, 1)
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS]), output_hidden_states=True)
        found = target.forward(
            [Span(0, 0, TOKENS, len(TOKENS))], target.new_cache(1, len(TOKENS)), taps
        )
    torch.testing.assert_close(found.logits[0], expected.logits[0], atol=TOLERANCE, rtol=TOLERANCE)
    assert found.features is not None
    hidden = torch.cat([expected.hidden_states[tap + 1][0] for tap in taps], -1)
    torch.testing.assert_close(found.features[0], hidden, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_prompt_in_pieces_beside_another_sequence_gives_the_same_logits(
    models: tuple[torch.nn.Module, Target],
) -> None:
    _, target = models
    other = TOKENS[40:60]
    with torch.inference_mode():
        whole = target.forward([Span(0, 0, TOKENS[:50], 50)], target.new_cache(1, 64)).logits[0]
        cache = target.new_cache(2, 64)
        pieces = [
            target.forward([Span(1, 0, TOKENS[:17], 17), Span(0, 0, other)], cache).logits[0],
            target.forward([Span(0, 20, [3]), Span(1, 17, TOKENS[17:18])], cache).logits[1],
            target.forward([Span(1, 18, TOKENS[18:50], 32)], cache).logits[0],
        ]
    torch.testing.assert_close(torch.cat(pieces), whole, atol=TOLERANCE, rtol=TOLERANCE)


def test_old_and_new_spellings_of_rope_are_the_same(tmp_path: Path) -> None:
    from dspark.decoder import Rope

    old = {"rope_theta": 500_000.0, "rope_scaling": {**LLAMA3_ROPE, "type": "llama3"}}
    assert Rope.from_config(old) == Rope.from_config({"rope_parameters": LLAMA3_ROPE})
    assert Rope.from_config({"rope_theta": 1e6}).theta == 1e6


def test_bfloat16_is_the_same_model_less_precisely(tmp_path: Path) -> None:
    reference_model("llama").save_pretrained(tmp_path)
    spans = [Span(0, 0, TOKENS[:40], 40)]
    with torch.inference_mode():
        exact, rough = (
            target.forward(spans, target.new_cache(1, 64)).logits[0].softmax(-1)
            for target in (load_target(tmp_path), load_target(tmp_path, dtype="bfloat16"))
        )
    bfloat16_step = 2**-8
    assert (exact - rough).abs().max() < 4 * bfloat16_step
    assert rough.dtype == torch.float32


@pytest.mark.parametrize(("dtype", "bits"), [("int8", 8), ("int4", 4)])
def test_integers_are_the_same_model_less_precisely(dtype: str, bits: int, tmp_path: Path) -> None:
    reference_model("qwen2").save_pretrained(tmp_path)
    spans = [Span(0, 0, TOKENS[:40], 40)]
    with torch.inference_mode():
        exact, rough = (
            target.forward(spans, target.new_cache(1, 64)).logits[0].softmax(-1)
            for target in (load_target(tmp_path), load_target(tmp_path, dtype=dtype))
        )
    step = 2 ** (1 - bits)
    assert (exact - rough).abs().max() < step


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "llama with all heads its own", "qwen2, tied", "qwen3"])
def test_integer_logits_are_the_same_bits_in_any_company(
    name: str, dtype: str, tmp_path: Path
) -> None:
    reference_model(name).save_pretrained(tmp_path)
    target = load_target(tmp_path, dtype=dtype)

    def in_pieces(*sizes: int) -> torch.Tensor:
        """The logits of all tokens, computed so many at a time beside another sequence."""
        cache = target.new_cache(2, 128)
        pieces = []
        start = 0
        for index, size in enumerate(sizes):
            span = Span(0, start, TOKENS[start : start + size], size)
            other = Span(1, index, TOKENS[50 : 50 + size % 3 + 1])
            pieces.append(target.forward([span, other], cache).logits[0])
            start += size
        return torch.cat(pieces)

    with torch.inference_mode():
        one_by_one = in_pieces(*[1] * 80)
        assert torch.equal(one_by_one, in_pieces(8, 1, 5, 2, 30, 8, 26))
        assert torch.equal(one_by_one, in_pieces(80))
