import sys

import pytest
from torch import nn

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import FORWARD
from plimsoll.service.worker.stacks.fsdp2.eight_bit import cast_products
from tests.service.worker.cases import config, traced


def test_matrices_of_whole_multiples_of_sixteen_have_their_products_cast():
    model = nn.ModuleDict(
        {"cast": nn.Linear(16, 32, bias=False), "odd": nn.Linear(16, 30, bias=False), "norm": nn.LayerNorm(16)}
    )
    cast_products(model)
    assert [type(module).__name__ for module in model.values()] == ["Float8Linear", "Linear", "LayerNorm"]


def test_a_worker_without_torchao_refuses_and_names_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(NotYetAvailable, match=r"plimsoll\[fp8\]"):
        cast_products(nn.Linear(16, 16))


def kept_bytes(**changes):
    """Return what the forward pass of a layer over two tensor-parallel ranks has made and not let go of."""
    layout = {"framework": "fsdp2", "tensor_parallel": 2, "sequence_parallel": True}
    ledger = traced(config=config(intermediate_size=128), **layout, **changes)
    (start, end) = next((first, last) for mark, first, last in ledger.phase_ranges() if mark.phase == FORWARD)
    live = {}
    for event in ledger.events[start:end]:
        live.pop(event.piece.number, None) if event.is_release else live.update({event.piece.number: event.piece})
    return sum(piece.requested_bytes for piece in live.values() if piece.kind is Kind.FORWARD_ACTIVATION)


def test_ranks_of_a_split_layer_keep_the_inputs_of_their_products_in_fp8():
    # 64 tokens: of each of two layers the input of both halves, whole, and of the last matrix, 128 / 2 features, in
    # one byte and not in two; and the attention's output, 64 / 2, in one byte beside that in two.
    fp8, half = kept_bytes(precision="fp8-mixed"), kept_bytes(precision="bf16-mixed")
    assert fp8 - half == pytest.approx(2 * 64 * (-64 - 64 - 64 + 32), abs=256)
