"""Liger's kernels where their values are computed: those of separate operations; and of what they allocate."""

import pytest
import torch

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.found import find_stack
from plimsoll.service.worker.training.kernels.liger_kernels import (
    LigerGatedActivation,
    LigerRmsNorm,
    LigerRotation,
    liger_loss,
)
from plimsoll.service.worker.training.kernels.rms_norm import EPSILON
from plimsoll.service.worker.training.step import trace_steps
from tests.service.worker.cases import job, requested_bytes


def check(outputs, expected, inputs):
    torch.testing.assert_close(outputs, expected)
    weights = torch.linspace(-1, 1, outputs.numel()).view_as(outputs)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs)
    found = torch.autograd.grad((outputs * weights).sum(), inputs)
    for gradient, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, other)


def traced(**changes):
    wanted: TraceJob = job(**changes)
    return trace_steps(wanted, find_stack(wanted.framework, "fused"), lambda *_progress: None)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_scales_by_its_weight_and_the_offset(offset):
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    expected = torch.nn.functional.rms_norm(hidden, (8,), weight + offset, EPSILON)
    check(LigerRmsNorm.apply(hidden, weight, offset, True), expected, (hidden, weight))


def test_a_norm_s_frozen_weight_has_no_gradient():
    hidden, weight = torch.randn(2, 8, requires_grad=True), torch.randn(8)
    LigerRmsNorm.apply(hidden, weight, 0.0, True).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


@pytest.mark.parametrize("is_silu", [True, False])
def test_a_gate_s_activation_multiplies_the_other_half(is_silu):
    torch.manual_seed(0)
    gate, up = torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 5, 8, requires_grad=True)
    activated = torch.nn.functional.silu(gate) if is_silu else torch.nn.functional.gelu(gate, approximate="tanh")
    check(LigerGatedActivation.apply(gate, up, is_silu), activated * up, (gate, up))


@pytest.mark.parametrize("rotated", [8, 4])
def test_a_rotation_is_transformers_and_leaves_the_features_beyond_its_angles(rotated):
    torch.manual_seed(0)
    leaf, angles = torch.randn(1, 3, 2, 8, requires_grad=True), torch.randn(1, 3, rotated // 2)
    cosine, sine = (torch.cat([turn, turn], dim=-1) for turn in (angles.cos(), angles.sin()))
    query = leaf.transpose(1, 2)
    first, second, rest = query.split([rotated // 2, rotated // 2, 8 - rotated], dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    expected = torch.cat([query[..., :rotated] * cosine[:, None] + turned * sine[:, None], rest], dim=-1)
    moved = (leaf * 1.0).transpose(1, 2)
    outputs, _ = LigerRotation.apply(moved, (leaf * 1.0).transpose(1, 2), cosine, sine)
    assert outputs.data_ptr() == moved.data_ptr()  # where it lay
    check(outputs, expected, (leaf,))


def test_the_loss_is_that_of_each_token_s_next():
    logits, labels = torch.zeros(1, 3, 4, requires_grad=True), torch.tensor([[0, 1, 2]])
    # Four words alike: log 4 of every token.
    assert liger_loss(logits * 1.0, labels).item() == pytest.approx(torch.tensor(4.0).log().item())


def test_a_layer_keeps_no_copies_in_fp32_and_one_product_of_its_gate():
    # Of 64 tokens: two norms kept 64 x (4 + 2) bytes a token of separate operations, now 64 x 2 and a statistic of 4;
    # the gate's activation was 176 x 2 more. The last norm is outside the layers. Two layers and that norm.
    separate = trace_steps(job(), find_stack("accelerate"), lambda *_progress: None)
    kept = [requested_bytes(ledger, Kind.FORWARD_ACTIVATION, phase="forward") for ledger in (separate, traced())]
    assert kept[0] - kept[1] > 2 * 64 * (2 * 64 * 4 + 176 * 2 - 2 * 4)


def test_a_fused_loss_holds_one_buffer_of_logits_in_sixteen_bits():
    # 101 words of 64 features: two parts, 64 tokens in chunks of 32, of which a buffer holds 32 x 101 logits.
    ledger = traced(fused_cross_entropy=True)
    logits = [event.piece for event in ledger.events if event.piece.kind is Kind.LOGITS and not event.is_release]
    assert {piece.requested_bytes for piece in logits} == {32 * 101 * 2}
