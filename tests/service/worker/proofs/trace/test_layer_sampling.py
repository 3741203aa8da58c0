"""A deep stage's ledger out of shallow models, against the whole model's."""

import pytest

from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.proofs.trace.layer_sampling import layer_kinds, layer_sample, sampling_notes, trace_stage
from plimsoll.service.worker.recording.curve import phase_peaks
from plimsoll.service.worker.recording.repeated_layers import added_stretches, grown_ledger
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import LATENT, config, job, traced

MIXTURE = config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)


def deep(layers, **changes):
    wanted = job(config=config(num_hidden_layers=layers, **changes.pop("model", {})), **changes)
    return wanted, find_stack(wanted.framework), wanted.deciding_stages[0]


def depths(layers, **changes):
    sample = layer_sample(*deep(layers, **changes))
    return None if sample is None else sample.depths


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"recompute": "full"},
        {"framework": "fsdp2", "tensor_parallel": 2, "sequence_parallel": True},
        {"framework": "fsdp2", "expert_parallel": 2, "model": MIXTURE},
        {"framework": "fsdp2", "expert_parallel": 2, "model": LATENT, "recompute": "full"},
    ],
)
def test_six_layers_grown_from_two_and_three_are_the_whole_trace_to_the_byte(changes):
    model = changes.get("model", config())
    rest = {name: value for name, value in changes.items() if name != "model"}
    few, more, most, whole = (traced(config=model | {"num_hidden_layers": layers}, **rest) for layers in (2, 3, 4, 6))
    grown = grown_ledger(more, added_stretches(few, more, most), repeats=3)
    assert grown.allocated_curve() == whole.allocated_curve()
    assert phase_peaks(grown) == phase_peaks(whole)


@pytest.mark.slow
def test_a_deep_stage_is_traced_by_its_sample_and_says_so():
    wanted, stack, stage = deep(24)
    result = trace_stage(wanted, stack, lambda *_progress: None, stage)
    (note,) = sampling_notes([result])
    # 24 layers of 11,552 elements a rank and 3,344 besides, in fp32; norms of 64 bytes take 512 each.
    held = sum(piece.requested_bytes for piece in result.ledger.peak().live if piece.kind == "parameter")
    assert held == 4 * (24 * 11_552 + 3_344)
    assert result.sampled_layers == (2, 3, 4)
    assert "of 24 layers is extrapolated from models of 2, 3, 4" in note


@pytest.mark.slow
def test_models_that_do_not_foretell_one_another_are_traced_whole():
    # Small models' gradient buckets hold several layers together, and their sizes follow no layer.
    wanted, stack, stage = deep(24, framework="ddp", zero_stage=0)
    result = trace_stage(wanted, stack, lambda *_progress: None, stage)
    (note,) = sampling_notes([result])
    assert (result.sampled_layers, result.samples_differed) == ((), True)
    assert "layer by layer" in note


@pytest.mark.parametrize(("layers", "wanted"), [(23, None), (24, (2, 3, 4)), (80, (2, 3, 4))])
def test_a_stage_of_many_layers_is_sampled(layers, wanted):
    assert depths(layers) == wanted


def test_every_second_layer_recomputed_makes_units_of_two():
    # 25 = 5 + 10 x 2: an odd number of layers stays odd.
    assert depths(25, recompute="full", recompute_every=2) == (5, 7, 9)
    assert depths(24, recompute="full", recompute_every=2) == (4, 6, 8)


def test_dense_layers_before_a_mixture_s_are_all_traced():
    assert depths(61, model={"first_k_dense_replace": 3}) == (5, 6, 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "deepspeed"},
        {"recompute": "full", "recompute_layers": 3},
        {"virtual_pipeline": 2},
        {"attention": "eager", "model": {"sliding_window": 16}},
        {"recompute": "full", "recompute_every": 4},  # 8 + 12 + 16 layers are more than 24
        {"model": {"layer_types": [str(index) for index in range(24)]}},
    ],
)
def test_layers_that_differ_are_all_traced(changes):
    assert depths(24, **changes) is None


def test_a_later_stage_with_a_mixture_s_dense_layers_is_traced_whole():
    wanted, stack, _ = deep(60, model={"first_k_dense_replace": 3})
    assert layer_sample(wanted, stack, PipelineStage(number=1, stages=2, first_layer=2, last_layer=29)) is None
    assert layer_sample(wanted, stack, PipelineStage(number=1, stages=2, first_layer=30, last_layer=59)) is not None


def test_layers_of_a_kind_are_told_by_transformers_fields():
    kinds = layer_kinds(config(num_hidden_layers=4, layer_types=["full", "sliding"] * 2, mlp_only_layers=[1]))
    assert kinds[0] == kinds[2]
    assert len(set(kinds)) == 3
