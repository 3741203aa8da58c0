"""Mamba-2's kernel by shapes, held against mamba_ssm itself where it can be imported, and plans against its traces."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.planners.families import describe_config, traits
from plimsoll.planners.questions import Recompute
from plimsoll.planners.training.planning import plan_without_advice
from plimsoll.service.worker.recording.ledger import Ledger
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD, StorageTracker
from plimsoll.service.worker.training.kernels.state_space import split_conv1d_scan_combined, state_space_kernels
from tests.planners.factories import question
from tests.service.worker.cases import traced

BATCH, LENGTH, HEADS, HEAD_DIM, GROUPS, STATE, CHUNK, HIDDEN = 3, 384, 24, 16, 2, 32, 256, 96
TOKENS = BATCH * LENGTH


def given(heads=HEADS, dtype=torch.bfloat16):
    """Return what a layer hands over: what it projected, and weights, of the format of the products."""
    inner = heads * HEAD_DIM
    convolved = inner + 2 * GROUPS * STATE

    def parameter(*shape):
        return torch.empty(*shape, dtype=dtype, requires_grad=True)

    projected = torch.empty(BATCH, LENGTH, inner + convolved + heads, dtype=torch.bfloat16, requires_grad=True)
    decay = torch.empty(heads, requires_grad=True)
    return (projected, parameter(convolved, 4), parameter(convolved), parameter(heads), decay), {
        "D": parameter(heads),
        "rmsnorm_weight": parameter(inner),
        "outproj_weight": parameter(HIDDEN, inner),
        "outproj_bias": None,
    }


def events_of(scan, **changes):
    """Return what a scan does to memory in both passes: sizes of allocations, and of releases, negative."""
    ledger = Ledger()
    with traceable_torch() as clock, FakeTensorMode():
        tracker = StorageTracker(ledger, clock, logit_shapes=frozenset())
        ordered, named = given(**changes)
        sizes = {"chunk_size": CHUNK, "headdim": HEAD_DIM, "ngroups": GROUPS, "norm_before_gate": False}
        learning = [each for each in (*ordered, *named.values()) if each is not None]
        with tracker.watching():
            tracker.begin_phase(0, FORWARD)
            output = scan(*ordered, **named, **sizes)
            gradient = torch.empty_like(output)
            tracker.begin_phase(0, BACKWARD)
            torch.autograd.grad(output, learning, gradient)
            return [(-1 if event.is_release else 1) * event.piece.requested_bytes for event in ledger.so_far().events]


def held(events):
    """Return what is live after each event."""
    return [sum(events[: index + 1]) for index in range(len(events))]


# Odd numbers of heads make rows that no vector of eight channels begins.
@pytest.mark.parametrize("heads", [HEADS, 26])
def test_the_scan_makes_and_keeps_what_mamba_ssm_s_does(monkeypatch, heads):
    theirs = pytest.importorskip("mamba_ssm.ops.triton.ssd_combined", exc_type=ImportError)
    tiles = SimpleNamespace(kwargs={"BLOCK_SIZE_M": 32, "BLOCK_SIZE": 64})
    launched = "triton.runtime.jit.KernelInterface.__getitem__"
    monkeypatch.setattr(launched, lambda _kernel, _grid: lambda *_args, **_named: None)
    monkeypatch.setattr("triton.runtime.autotuner.Autotuner.best_config", tiles, raising=False)
    monkeypatch.setattr("torch.cuda.device", lambda _index: contextlib.nullcontext())
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    of_theirs = events_of(theirs.mamba_split_conv1d_scan_combined, heads=heads)
    ours = events_of(split_conv1d_scan_combined, heads=heads)
    assert sorted(size for size in ours if size > 0) == sorted(size for size in of_theirs if size > 0)
    assert held(ours)[-1] == held(of_theirs)[-1]
    assert max(held(ours)) == max(held(of_theirs))


def test_it_keeps_what_was_projected_its_output_and_the_norm_s_roots():
    with FakeTensorMode():
        ordered, named = given()
        output = split_conv1d_scan_combined(*ordered, **named, chunk_size=CHUNK, headdim=HEAD_DIM, ngroups=GROUPS)
        kept = [each.nbytes for each in output.grad_fn.saved_tensors if each is not None and not each.requires_grad]
    inner = HEADS * HEAD_DIM
    # The scan's output in 16 bits, and a root in fp32 for each token and group; the rest are the function's inputs.
    assert kept == [2 * TOKENS * inner, 4 * TOKENS * GROUPS]
    assert output.shape == (BATCH, LENGTH, HIDDEN)


def test_weights_have_gradients_of_their_own_format():
    with FakeTensorMode(), torch.autocast("cpu", dtype=torch.bfloat16):
        ordered, named = given(dtype=torch.float32)
        output = split_conv1d_scan_combined(*ordered, **named, chunk_size=CHUNK, headdim=HEAD_DIM, ngroups=GROUPS)
        learning = [each for each in (*ordered, *named.values()) if each is not None]
        gradients = torch.autograd.grad(output, learning, torch.empty_like(output))
    assert output.dtype == torch.bfloat16
    assert [(each.shape, each.dtype) for each in gradients] == [(each.shape, each.dtype) for each in learning]


def test_transformers_code_calls_it_within_a_trace_alone():
    from transformers.models.granitemoehybrid import modeling_granitemoehybrid as modeling

    in_operations = modeling.mamba2_split_conv1d_scan_combined
    with state_space_kernels(traits("granitemoehybrid").tracing):
        assert modeling.mamba2_split_conv1d_scan_combined is split_conv1d_scan_combined
    with state_space_kernels(traits("llama").tracing):
        assert modeling.mamba2_split_conv1d_scan_combined is in_operations


# Odd numbers of tokens, of which 1,536 are no whole number of chunks of 500, and of heads.
HYBRIDS = {
    "granitemoehybrid": {
        "vocab_size": 1000, "hidden_size": 320, "intermediate_size": 512, "shared_intermediate_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "num_local_experts": 0,
        "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 10, "mamba_d_head": 64, "mamba_n_groups": 1,
        "mamba_d_state": 128, "mamba_chunk_size": 500, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    },
    "bamba": {
        "vocab_size": 1000, "hidden_size": 320, "intermediate_size": 1024, "num_hidden_layers": 3,
        "num_attention_heads": 5, "num_key_value_heads": 5, "attn_layer_indices": [1], "mamba_n_heads": 10,
        "mamba_d_head": 64, "mamba_n_groups": 2, "mamba_d_state": 128, "max_position_embeddings": 2048,
    },
    "nemotron_h": {
        "vocab_size": 1000, "hidden_size": 320, "intermediate_size": 1024, "hybrid_override_pattern": "M-M*",
        "num_hidden_layers": 4, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 64,
        "mamba_num_heads": 10, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 128, "chunk_size": 128,
        "max_position_embeddings": 2048,
    },
}  # fmt: skip


def planned_and_traced(model_type, **changes):
    """Return a plan's bytes and its trace's, of three sequences of 1,536 tokens on each of seven ranks."""
    config = {"model_type": model_type, **HYBRIDS[model_type]}
    asked = question(
        framework=changes["framework"],
        model=describe_config(config, name=model_type),
        gpus=7,
        recompute=Recompute(mode=changes["recompute"]),
        precision=changes.get("precision", "bf16-mixed"),
        layout={"zero_stage": changes["zero_stage"]},
        sequence_length=1536,
        global_batch_size=21,
        micro_batch_size=3,
    )
    wanted = {"config": config, "sequence_length": 1536, "micro_batch_size": 3, "data_parallel": 7} | changes
    planned = plan_without_advice(asked).plan.memory.allocated_bytes
    return planned, traced(**wanted).peak().allocated_bytes


@pytest.mark.parametrize("model_type", sorted(HYBRIDS))
@pytest.mark.parametrize(
    "way",
    [
        {"framework": "ddp", "zero_stage": 0, "recompute": "full"},
        {"framework": "ddp", "zero_stage": 0, "recompute": "none", "precision": "bf16"},
        {"framework": "accelerate", "zero_stage": 3, "recompute": "full"},
    ],
    ids=lambda way: f"{way['framework']}-{way['recompute']}",
)
def test_a_plan_is_what_its_trace_comes_to(model_type, way):
    planned, traced_bytes = planned_and_traced(model_type, **way)
    assert planned == pytest.approx(traced_bytes, rel=0.001)
