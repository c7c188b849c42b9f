"""Which tensors Muon moves and how, and that a stopped run goes on as it would have."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.training.optimizer import Optimizer, is_map

SHAPES = {
    "fc.weight": (8, 24),
    "layers.0.mlp.down_proj.weight": (8, 16),
    "layers.0.input_layernorm.weight": (8,),
    "markov_head.markov_w1.weight": (32, 4),
    "confidence_head.proj.weight": (1, 12),
}


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape).requires_grad_() for name, shape in SHAPES.items()}


def advance(
    optimizer: Optimizer, live: dict[str, Tensor], steps: range, rate: float = 0.01
) -> None:
    for step in steps:
        torch.manual_seed(step)
        for tensor in live.values():
            tensor.grad = torch.randn(tensor.shape)
        optimizer.step(rate)


def test_only_the_maps_between_hidden_states_are_muons() -> None:
    maps = [name for name, tensor in tensors().items() if is_map(name, tensor)]
    assert maps == ["fc.weight", "layers.0.mlp.down_proj.weight"]


def test_a_matrix_moves_in_all_directions_alike_and_as_far_as_adam_would() -> None:
    live = tensors()
    before = {name: tensor.detach().clone() for name, tensor in live.items()}
    advance(Optimizer(live), live, range(1))
    moved = {name: tensor.detach() - before[name] for name, tensor in live.items()}

    for name in ("fc.weight", "layers.0.mlp.down_proj.weight"):
        lengths = torch.linalg.svdvals(moved[name])
        assert lengths.max() < 2 * lengths.min()
        assert 0.1 < moved[name].square().mean().sqrt() / 0.01 < 0.3  # Adam's, in a long run
    # Adam's first step is as long as the rate for every element, whatever the gradient.
    torch.testing.assert_close(
        moved["markov_head.markov_w1.weight"].abs(), torch.full((32, 4), 0.01), rtol=1e-3, atol=0
    )


def test_gradients_are_dropped_and_a_rate_of_zero_moves_nothing() -> None:
    live = tensors()
    before = {name: tensor.detach().clone() for name, tensor in live.items()}
    advance(Optimizer(live), live, range(1), rate=0.0)
    assert all(tensor.grad is None for tensor in live.values())
    assert all(torch.equal(tensor, before[name]) for name, tensor in live.items())


def test_a_stopped_run_goes_on_as_it_would_have() -> None:
    whole = tensors()
    advance(Optimizer(whole), whole, range(6))

    stopped = tensors()
    first = Optimizer(stopped)
    advance(first, stopped, range(3))
    second = Optimizer(stopped)
    second.load_state_dict(first.state_dict())
    advance(second, stopped, range(3, 6))
    assert all(torch.equal(whole[name], stopped[name]) for name in SHAPES)
