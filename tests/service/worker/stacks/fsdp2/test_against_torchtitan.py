"""What is ours after torchtitan's code held against torchtitan's own, on fake tensors."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh

from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.recording.repeated_layers import event_sign
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD, StorageTracker
from plimsoll.service.worker.stacks.found import find_stack
from plimsoll.service.worker.training.building import traced_model
from plimsoll.service.worker.training.own_code import own_code_of
from plimsoll.service.worker.training.rank import process_group_of
from plimsoll.service.worker.training.recompute import recompute_activations
from plimsoll.service.worker.training.step import trace_steps
from tests.service.worker.cases import config, job
from tests.service.worker.stacks.fsdp2.titan import even_splits, torchtitan, traced_by_torchtitan

# What FSDP2 makes: by it and not by the model's layers.
SHARDING = {
    Kind.PARAMETER,
    Kind.GATHERED_PARAMETER,
    Kind.UNREDUCED_GRADIENT,
    Kind.COMMUNICATION,
}


@pytest.fixture(scope="module")
def load():
    with torchtitan() as load:
        yield load


def wanted(**changes):
    return job(**({"framework": "fsdp2", "config": config(vocab_size=256)} | changes))


def of_sharding(ledger):
    """Return the events of FSDP2's buffers, by kind, bytes and stream."""
    pieces = (event for event in ledger.events if event.piece.kind in SHARDING)
    return [(event.is_release, event.piece.kind, event.piece.requested_bytes, event.piece.stream) for event in pieces]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recompute": "full"},
        {"recompute": "selective"},
        {"shard_group": 2},
        {"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True},
    ],
    ids=str,
)
def test_units_are_gathered_freed_and_reduced_as_torchtitan_s_are(load, changes):
    asked = wanted(**changes)
    ours = trace_steps(asked, find_stack("fsdp2"), lambda *_progress: None)
    assert of_sharding(ours) == of_sharding(traced_by_torchtitan(load, asked))


def recorded(run):
    """Return what a function does to memory on fake tensors; it is handed what says which pass begins."""
    ledger = Ledger()
    with traceable_torch() as clock, process_group_of(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
        with FakeTensorMode(allow_non_fake_inputs=True):
            tracker = StorageTracker(ledger, clock, logit_shapes=frozenset())
            with tracker.watching():
                run(tracker.begin_phase, mesh)
                return ledger.so_far()


@pytest.mark.parametrize(
    ("mode", "precision"), [("full", "bf16-mixed"), ("selective", "bf16-mixed"), ("selective", "fp8-mixed")]
)
def test_layers_throw_away_what_torchtitan_s_checkpoints_do(load, mode, precision):
    asked = wanted(recompute=mode, precision=precision)
    checkpoints = load("torchtitan.distributed.activation_checkpoint")
    kept = load("torchtitan.models.llama3.infra.parallelize")._op_sac_save_list
    settings = load("torchtitan.config.job_config").ActivationCheckpoint(
        mode=mode, selective_ac_option="op", preserve_rng_state=False
    )

    def wrap_as_ours(model):
        recompute_activations(model, asked, find_stack("fsdp2"))

    def wrap_as_theirs(model):
        checkpoints.apply_ac(model.model, settings, op_sac_save_list=kept)

    def steps(wrap):
        def run(begin_phase, _mesh):
            model = traced_model(asked, find_stack("fsdp2"))
            own_code_of(find_stack("fsdp2")).cast_products(model, asked)
            wrap(model)
            begin_phase(0, FORWARD)
            loss = model(input_ids=torch.zeros((2, 32), dtype=torch.int64)).logits.float().sum()
            begin_phase(0, BACKWARD)
            loss.backward()

        return recorded(run)

    ours, theirs = steps(wrap_as_ours), steps(wrap_as_theirs)
    assert [event_sign(event) for event in ours.events] == [event_sign(event) for event in theirs.events]


# Tokens and features of the first of four ranks, which has two of eight experts, and what a row of tokens takes.
ROUTED, FEATURES, INNER = 1024, 64, 48
ROW_BYTES = 2 * FEATURES
# torchtitan rounds each expert's tokens up to 8, and as much again: at most so many rows in each of its copies.
PADDED_ROWS = 2 * 8


def test_tokens_are_sent_and_brought_back_as_by_torchtitan(load):
    experts_of, dealt = load("torchtitan.models.moe.moe").GroupedExperts, load("torchtitan.distributed.expert_parallel")

    def theirs(begin_phase, mesh):
        torch.set_default_dtype(torch.bfloat16)
        experts = experts_of(dim=FEATURES, hidden_dim=INNER, num_experts=8, use_grouped_mm=True)
        torch.set_default_dtype(torch.float32)
        dealt.ExpertParallel()._apply(experts, mesh)
        tokens = torch.empty(ROUTED, FEATURES, dtype=torch.bfloat16, requires_grad=True)
        counts = torch.zeros(8, dtype=torch.int64)
        begin_phase(0, FORWARD)
        with even_splits(ROUTED):
            output = experts(tokens, counts)
        begin_phase(0, BACKWARD)
        output.sum().backward()

    def ours(begin_phase, mesh):
        experts = _Experts()
        tokens = torch.empty(ROUTED, FEATURES, dtype=torch.bfloat16, requires_grad=True)
        ends = torch.zeros(2, dtype=torch.int32)
        begin_phase(0, FORWARD)
        received, places = module._received(tokens, mesh.get_group())
        output = module._returned(module._outputs(experts, received, ends), places, mesh.get_group())
        del received
        begin_phase(0, BACKWARD)
        output.sum().backward()

    from plimsoll.service.worker.stacks.fsdp2 import experts as module

    for phase in (FORWARD, BACKWARD):
        peaks = [peak_of(recorded(run), phase) for run in (ours, theirs)]
        assert peaks[0] == pytest.approx(peaks[1], abs=6 * PADDED_ROWS * ROW_BYTES), phase


class _Experts(nn.Module):
    """Two experts as transformers holds them."""

    is_transposed = has_bias = False

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(2, 2 * INNER, FEATURES, dtype=torch.bfloat16))
        self.down_proj = nn.Parameter(torch.empty(2, FEATURES, INNER, dtype=torch.bfloat16))

    def _apply_gate(self, inner):
        gate, up = inner.chunk(2, dim=-1)
        return nn.functional.silu(gate) * up


def peak_of(ledger, phase):
    ((start, end),) = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == phase]
    return ledger.peak(start, end).allocated_bytes
