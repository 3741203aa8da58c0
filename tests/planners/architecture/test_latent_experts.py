"""Experts without a gate, and experts that work in a latent."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.architecture.mixture_of_experts import (
    MixtureOfExperts,
    expert_weights,
    mixture_operations,
    mixture_tensors,
)

# Two of six experts of 20 features without a gate, and 28 features for every token.
PLAIN = MixtureOfExperts(
    hidden_size=64,
    intermediate_size=20,
    experts=6,
    experts_per_token=2,
    shared_intermediate_size=28,
    is_gated=False,
)
LATENT = dataclasses.replace(PLAIN, latent_size=16)


def flops(size: MixtureOfExperts) -> dict[str, float]:
    return {op.name: op.forward_flops_per_token(1.0) for op in mixture_operations(size) if op.matmul_shape}


def test_an_expert_without_a_gate_has_two_matrices() -> None:
    names = [weight.name for weight in expert_weights("x.{expert}", PLAIN, names=("up_proj", "down_proj"))]
    assert names == ["x.{expert}.up_proj.weight", "x.{expert}.down_proj.weight"]
    assert flops(PLAIN) == {
        "router": 768,  # 2 x 64 x 6
        "expert_inner_projection": 5120,  # 2 x 64 x 20 for each of two experts
        "expert_down_projection": 5120,
        "shared_inner_projection": 3584,  # 2 x 64 x 28
        "shared_down_projection": 3584,
    }


def test_in_a_latent_the_experts_are_narrow_and_the_shared_one_is_not() -> None:
    assert flops(LATENT) == {
        "router": 768,
        "latent_down": 2048,  # 2 x 64 x 16
        "expert_inner_projection": 1280,  # 2 x 16 x 20 for each of two experts
        "expert_down_projection": 1280,
        "latent_up": 2048,
        "shared_inner_projection": 3584,
        "shared_down_projection": 3584,
    }
    shapes = [weight.shape for weight in expert_weights("x.{expert}", LATENT, names=("up_proj", "down_proj"))]
    assert shapes == [(20, 16), (16, 20)]


def test_what_is_sent_to_the_experts_is_as_wide_as_the_latent() -> None:
    widths = {tensor.name: tensor.width for tensor in mixture_tensors(LATENT)}
    assert widths["dispatched"] == widths["expert_output"] == 32  # two experts x 16
    assert widths["expert_latent"] == widths["combined_latent"] == 16
    assert widths["feed_forward_output"] == 64


def test_every_tensor_that_an_operation_reads_or_writes_is_listed() -> None:
    for size in (PLAIN, LATENT):
        touched = {name for op in mixture_operations(size) for name in (*op.inputs, op.output)}
        assert touched == {tensor.name for tensor in mixture_tensors(size)}
