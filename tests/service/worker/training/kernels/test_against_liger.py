"""What stands in for Liger's kernels, held against its own code: what that allocates, keeps and writes over."""

from itertools import accumulate

import pytest
import torch

from plimsoll.service.worker.training.kernels.fused_loss import FusedLinearCrossEntropy
from plimsoll.service.worker.training.kernels.in_place_loss import InPlaceCrossEntropy
from plimsoll.service.worker.training.kernels.liger_kernels import LigerGatedActivation, LigerRmsNorm, LigerRotation

pytest.importorskip("triton")
liger = pytest.importorskip("liger_kernel.ops")

from tests.service.worker.training.kernels.liger_on_fake_tensors import events_of  # noqa: E402 - which needs both

BATCH, LENGTH, HIDDEN, WORDS, HEADS, HEAD_DIM = 2, 512, 256, 8192, 4, 64
TOKENS = BATCH * LENGTH
# A number of eight bytes a token: labels, their masks and single losses, which no plan counts.
COUNTED_BYTES = 8 * TOKENS


def tensor(*shape, dtype=torch.bfloat16, learns=True):
    return torch.empty(shape, dtype=dtype, requires_grad=learns)


def curves(events):
    """Return what is live after each event of both passes that counts, beyond what was there."""
    forward, backward = ([size for size in sizes if abs(size) > COUNTED_BYTES] for sizes in events)
    kept = list(accumulate(forward, initial=0))
    return kept, list(accumulate(backward, initial=kept[-1]))


def same(stand_in, own, inputs):
    mine, theirs = curves(events_of(stand_in, inputs)), curves(events_of(own, inputs, runs_liger=True))
    for ours, lived in zip(mine, theirs, strict=True):
        assert (max(ours), ours[-1]) == (max(lived), lived[-1])


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("learns", [True, False])
def test_rms_norm(in_place, learns):
    def own(hidden, weight):
        return liger.LigerRMSNormFunction.apply(hidden * 1, weight, 1e-6, 0.0, "llama", in_place)

    def stand_in(hidden, weight):
        return LigerRmsNorm.apply(hidden * 1, weight, 0.0, in_place)

    same(stand_in, own, lambda: (tensor(BATCH, LENGTH, HIDDEN), tensor(HIDDEN, learns=learns)))


@pytest.mark.parametrize(("name", "is_silu"), [("LigerSiLUMulFunction", True), ("LigerGELUMulFunction", False)])
def test_gated_activation(name, is_silu):
    def own(gate, up):
        return getattr(liger, name).apply(gate * 1, up * 1)

    def stand_in(gate, up):
        return LigerGatedActivation.apply(gate * 1, up * 1, is_silu)

    same(stand_in, own, lambda: (tensor(BATCH, LENGTH, HIDDEN), tensor(BATCH, LENGTH, HIDDEN)))


@pytest.mark.parametrize("tokens_first", [True, False])
def test_rotation(tokens_first):
    def states(query, key):
        made = (query * 1, key * 1)
        return tuple(each.transpose(1, 2) for each in made) if tokens_first else made

    def own(query, key, cosine, sine):
        return liger.LigerRopeFunction.apply(*states(query, key), cosine, sine)

    def stand_in(query, key, cosine, sine):
        return LigerRotation.apply(*states(query, key), cosine, sine)

    shape = (BATCH, LENGTH, HEADS, HEAD_DIM) if tokens_first else (BATCH, HEADS, LENGTH, HEAD_DIM)
    angles = (1, LENGTH, HEAD_DIM)
    same(
        stand_in,
        own,
        lambda: (tensor(*shape), tensor(*shape), tensor(*angles, learns=False), tensor(*angles, learns=False)),
    )


def labels():
    return torch.zeros(TOKENS, dtype=torch.int64)


def test_cross_entropy():
    def own(hidden, weight, wanted):
        logits = (hidden @ weight.t()).float()
        return liger.LigerCrossEntropyFunction.apply(logits, wanted, None)[0]

    def stand_in(hidden, weight, wanted):
        return InPlaceCrossEntropy.apply((hidden @ weight.t()).float(), wanted)

    same(stand_in, own, lambda: (tensor(TOKENS, HIDDEN), tensor(WORDS, HIDDEN), labels()))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("learns", [True, False])
def test_fused_linear_cross_entropy(precision, learns):
    def own(hidden, weight, wanted):
        return liger.LigerFusedLinearCrossEntropyFunction.apply(hidden * 1, weight, wanted)[0]

    def stand_in(hidden, weight, wanted):
        return FusedLinearCrossEntropy.apply(hidden * 1, weight, wanted)

    def inputs():
        weight = tensor(WORDS, HIDDEN, dtype=precision, learns=learns)
        return tensor(TOKENS, HIDDEN, dtype=precision), weight, labels()

    same(stand_in, own, inputs)
