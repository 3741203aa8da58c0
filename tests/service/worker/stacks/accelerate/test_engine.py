from importlib.metadata import version

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from plimsoll.service.worker.proofs.trace.notes import step_notes, traced_with
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.recording.tracker import BACKWARD, StorageTracker
from plimsoll.service.worker.stacks.accelerate.engine import AccelerateEngine
from plimsoll.service.worker.stacks.accelerate.runnable import runnable_accelerate
from plimsoll.service.worker.stacks.accelerate.stack import STACK
from plimsoll.service.worker.training.rank import process_group_of, whole_model
from plimsoll.service.worker.training.step import training_batch
from tests.service.worker.cases import config, job, requested_bytes, traced

# Embedding and head 101 x 64 each, two layers of 46,208 (12,288, 33,792, and norms of 128), a norm of 64.
ELEMENTS = 105_408
PARAMETERS = 21
# The first of four ranks has 26 rows of both tables, and a quarter of the rest.
SHARD = 2 * 26 * 64 + (2 * 46_208 + 64) // 4
ROUNDED_BYTES = 512  # what the allocator makes of a single number


def engine_of(wanted, look):
    """Return what `look` says of a job's engine, within all that it runs in."""
    with (
        traceable_torch() as clock,
        process_group_of(wanted.world_size),
        runnable_accelerate(wanted, 0),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        return look(AccelerateEngine(wanted, whole_model(wanted, STACK)), clock)


def kept_gathered(changes):
    return {name for name, unit in units(changes).items() if unit._fsdp_param_group.post_forward_mesh_info is None}


def units(changes):
    def look(engine, _clock):
        found = {}
        for name, module in engine.model.named_modules():
            state = getattr(module, "_get_fsdp_state", None)
            group = state and state()._fsdp_param_group
            if group and group not in [each._fsdp_param_group for each in found.values()]:
                found[name] = state()
        return found

    return engine_of(job(**changes), look)


def test_embedding_and_head_with_its_norm_are_units_beside_the_layers():
    assert list(units({})) == ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"]


def test_the_unit_of_the_head_stays_gathered_to_the_backward_pass():
    assert kept_gathered({}) == {"model.norm"}


def test_a_tied_table_is_one_unit_with_the_norm():
    tied = config(tie_word_embeddings=True)
    assert list(units({"config": tied})) == ["model.embed_tokens", "model.layers.0", "model.layers.1"]


@pytest.mark.parametrize(("precision", "bits"), [("bf16-mixed", "bfloat16"), ("fp16-mixed", "float16")])
def test_mixed_precision_computes_and_reduces_in_the_same_16_bits(precision, bits):
    def look(engine, _clock):
        return engine.model._get_fsdp_state()._mp_policy

    policy = engine_of(job(precision=precision), look)
    assert str(policy.param_dtype) == str(policy.reduce_dtype) == str(policy.output_dtype) == f"torch.{bits}"


def test_shards_are_updated_and_no_whole_parameter():
    # Two moments of a rank's part of every parameter, and a counter for each.
    assert requested_bytes(traced(), Kind.OPTIMIZER_STATE) == 8 * SHARD + 4 * PARAMETERS


def test_replicas_have_buckets_of_all_gradients_beside_them():
    ledger = traced(zero_stage=0)
    # Numbers of each parameter say which took part in the pass.
    assert 0 <= requested_bytes(ledger, Kind.COMMUNICATION) - 4 * ELEMENTS <= 1024
    assert requested_bytes(ledger, Kind.GRADIENT) == 4 * ELEMENTS


def test_one_rank_is_not_wrapped():
    def look(engine, _clock):
        return isinstance(engine.model, DistributedDataParallel)

    assert engine_of(job(zero_stage=0, data_parallel=1), look) is False
    assert engine_of(job(zero_stage=0, data_parallel=2), look) is True


def test_shards_are_reduced_at_each_micro_batch():
    ledger = traced(accumulation_steps=2)
    assert requested_bytes(ledger, Kind.GRADIENT, phase="forward") == 4 * SHARD


def test_clipping_makes_a_few_numbers_for_each_parameter():
    def look(engine, clock):
        ledger = Ledger()
        tracker = StorageTracker(ledger, clock, logit_shapes=frozenset())
        with tracker.watching(), engine.attach(tracker.making):
            tracker.begin_phase(0, BACKWARD)
            batch = training_batch(wanted)
            with engine.micro_batch(is_last=True):
                engine.backward(engine.model(**batch).loss, is_last=True)
            before = tracker.live_bytes()
            tracker.begin_phase(0, "clipping")
            engine.clip(1.0)
            _, start, end = list(ledger.phase_ranges())[-1]
            return ledger.peak(start, end).allocated_bytes - before

    wanted = job()
    # A norm for each, twice while they are put together, and a few numbers made of all of them.
    assert 0 < engine_of(wanted, look) <= ROUNDED_BYTES * (2 * PARAMETERS + 10)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp16-mixed"},
        {"precision": "fp16-mixed", "zero_stage": 0},
        {"shard_group": 2},
        {"recompute": "full"},
        {"offload": "optimizer+parameters"},
        {"optimizer": "paged-adamw-8bit"},
        {"method": "qlora", "zero_stage": 2},
    ],
)
def test_what_launch_files_ask_of_accelerate_runs(changes):
    assert traced(**changes).peak().allocated_bytes > 0


@pytest.mark.parametrize(("stage", "way"), [(3, "FSDP2"), (0, "DistributedDataParallel")])
def test_a_result_says_what_wrapped_the_model(stage, way):
    wanted = job(zero_stage=stage)
    said = traced_with(wanted, STACK, on_device=False)
    assert f"{way} by accelerate {version('accelerate')}" in said
    notes = step_notes(wanted, STACK, on_device=False)
    assert STACK.notes.engine in notes
    assert not any("stand in for accelerate" in note for note in notes)
    assert any("stand in for accelerate" in note for note in step_notes(wanted, STACK, on_device=True))
