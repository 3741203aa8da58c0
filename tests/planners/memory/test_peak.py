import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll.planners.architecture import Part
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.jobs.job import low_precision_matrices
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import (
    FITS,
    NEAR_CAPACITY_FRACTION,
    NO,
    TIGHT,
    Needs,
    least_bytes,
    memory_of,
    peak_bytes,
    verdicts,
)
from plimsoll.planners.questions import Lora, Recompute
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import LLAMA_3_70B, gpt, gpu, hardware, llama, small_llama
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import events, held, job, memory, one_layout, taken

FULL = 2


@pytest.mark.parametrize(
    ("model", "sequence_length", "recompute", "traced_gib"),
    # Traces of one rank of 64: accelerate 1.15 over transformers' Llama, fp32 master, bf16 compute, fused AdamW.
    [("8b", 8192, FULL, 16.377), ("70b", 8192, FULL, 36.524), ("70b", 4096, 0, 142.710)],
)
def test_sharded_peaks_agree_with_traces_to_a_thousandth(model, sequence_length, recompute, traced_gib):
    spec = llama() if model == "8b" else llama(LLAMA_3_70B)
    layout = {"data_parallel": 64, "zero_stage": 3, "recompute": recompute}
    planned = memory("accelerate", model=spec, sequence_length=sequence_length, layout=layout)
    assert planned.allocated_bytes / GIB == pytest.approx(traced_gib, rel=1e-3)


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_megatron_in_fp8_keeps_two_copies_of_the_layers_matrices(tensor_parallel: int):
    # A layer has q and o of 64 x 64, k and v of 32 x 64, three matrices of 64 x 128: 36,864 elements; four layers.
    # Every second rank may be a tensor-parallel one, but ZeRO divides none of the copies.
    layout = {"data_parallel": 4, "tensor_parallel": tensor_parallel, "zero_stage": 1}
    plain, in_fp8 = (
        memory("megatron", model=small_llama(), precision=precision, layout=layout).items.parameters
        for precision in ("bf16-mixed", "fp8-mixed")
    )
    assert in_fp8 - plain == 2 * 4 * 36_864 / tensor_parallel


def test_primary_weights_in_fp8_have_no_16_bit_copy():
    # The same four layers of 36,864 elements; embedding, head and norms stay in 16 bits.
    layout = {"data_parallel": 4, "zero_stage": 1}
    beside, alone = (
        memory("megatron", precision="fp8-mixed", low_precision_weights=primary, layout=layout, model=small_llama())
        for primary in (False, True)
    )
    assert beside.items.parameters - alone.items.parameters == 2 * 4 * 36_864
    assert beside.items.optimizer == alone.items.optimizer


@pytest.mark.parametrize(
    ("precision", "copies_bytes", "may_be_alone"),
    # Both layouts of a byte, with a scale's byte for 32; without; and of half a byte with one for 16.
    [("mxfp8-mixed", 2 + 2 / 32, True), ("fp8-block-mixed", 2, True), ("nvfp4-mixed", 1 + 2 / 16, False)],
)
def test_weights_in_blocks_keep_the_scales_of_both_layouts(precision: str, copies_bytes: float, may_be_alone: bool):
    def parameters(precision: str, **asked: bool) -> float:
        layout = {"data_parallel": 4, "zero_stage": 1}
        model = small_llama()
        return memory("megatron", precision=precision, layout=layout, model=model, **asked).items.parameters

    elements, plain = 4 * 36_864, parameters("bf16-mixed")
    assert parameters(precision) - plain == copies_bytes * elements
    if may_be_alone:
        assert parameters(precision, low_precision_weights=True) - plain == (copies_bytes - 2) * elements


def test_a_frozen_base_keeps_its_copies_in_fp8_and_adapters_none():
    # The same layers' matrices, beside adapters that stay in 16 bits; alone they lie in both layouts of a byte.
    def parameters(precision: str, *, alone: bool = False) -> float:
        return memory(
            "megatron-bridge",
            precision=precision,
            method="lora",
            low_precision_weights=alone,
            layout={"data_parallel": 4, "zero_stage": 1},
            model=small_llama(),
        ).items.parameters

    plain = parameters("bf16-mixed")
    assert parameters("fp8-mixed") - plain == 2 * 4 * 36_864
    assert parameters("fp8-mixed", alone=True) == plain


def test_a_router_s_weights_stay_in_16_bits():
    # DeepSeek-V3's first mixture has 256 routers' rows of 7,168 features, which are no product in fp8.
    block = next(part for part in job("megatron", model=spec(DEEPSEEK), precision="fp8-mixed").layers[::-1])
    in_fp8 = low_precision_matrices(block).trainable
    assert not any(weight.part is Part.ROUTER for weight in in_fp8)
    assert any(weight.part is Part.EXPERT for weight in in_fp8)


def test_every_second_layer_recomputed_keeps_the_others_while_the_top_one_is_worked_on():
    # Four layers of 34 bytes a feature and token, 2 of them where recomputed (Korthikanti et al. 2022): at the top
    # layer the inputs of two, the first and the third whole, and the top one's own working set.
    model = gpt(n_layer=4, n_embd=256, n_head=4, vocab_size=8, n_positions=2048)
    layout = {"recompute": FULL, "full_layers": 2}
    asked = Recompute(mode="full", every=2)
    planned = memory("reference", model=model, sequence_length=2048, layout=layout, recompute=asked)
    assert planned.phase == "backward"
    assert planned.items.activations == (2 * 2 + 2 * 34 + 34) * 256 * 2048


def test_every_second_layer_recomputed_keeps_as_much_at_the_loss_as_half_of_them():
    every, half = (
        memory(
            "reference", model=small_llama(vocab_size=100_000), layout={"recompute": FULL, "full_layers": 2}, **asked
        )
        for asked in ({"recompute": Recompute(mode="full", every=2)}, {})
    )
    assert every.phase == "forward and loss"
    assert (every.items, every.peak_bytes) == (half.items, half.peak_bytes)


def test_pipedream_keeps_a_version_of_the_weights_for_each_micro_batch_in_flight():
    # The first of two stages has two micro-batches in flight, the last one; reference keeps 2 bytes of each parameter.
    plain = job("reference", model=small_llama(), global_batch_size=4)
    stashing = replace(plain, pipeline_schedule="pipedream")
    layout = candidates_from_rows([{"pipeline_parallel": 2}])
    once, often = (memory_of(layout, 0, each, hardware()).stages for each in (plain, stashing))
    assert [stage.items.parameters for stage in often] == [2 * once[0].items.parameters, once[1].items.parameters]


def test_selective_recompute_agrees_with_its_trace():
    # The trace of 30.36 GiB was of a first step, without optimizer states: 8 x 8.03e9 / 64 = 0.935 GiB more. It had
    # embedding, norm and head in one unit with the root. torchtitan's for the embedding (2 x 128,256 x 4,096 bytes,
    # 0.978 GiB) is not gathered at the loss, nor is the last layer ahead of its turn (2 x 218,112,000, 0.406 GiB).
    planned = memory("fsdp2", layout={"data_parallel": 64, "zero_stage": 3, "recompute": 1})
    assert planned.allocated_bytes / GIB == pytest.approx(30.36 + 0.935 - 0.978 - 0.406, rel=1e-3)


@pytest.mark.parametrize(
    ("vocabulary", "sequence_length", "layout", "traced_gib"),
    # Fake-tensor traces of Llama 3 8B cut to four layers, with units for the embedding and for norm and head. The peaks
    # are: the head's reduction; the lowest layer but one; the divided loss on two ranks and on eight.
    [
        (128256, 1024, {"data_parallel": 8}, 7.048),
        (2048, 8192, {"data_parallel": 8, "recompute": FULL}, 5.345),
        (128256, 8192, {"data_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True}, 14.479),
        (128256, 8192, {"data_parallel": 8, "tensor_parallel": 8, "sequence_parallel": True, "recompute": FULL}, 2.537),
    ],
)
def test_torchtitan_s_units_agree_with_their_traces(vocabulary, sequence_length, layout, traced_gib):
    model = llama(num_hidden_layers=4, vocab_size=vocabulary)
    planned = memory("fsdp2", model=model, sequence_length=sequence_length, layout={"zero_stage": 3, **layout})
    assert planned.allocated_bytes / GIB == pytest.approx(traced_gib, rel=1e-3)


@pytest.mark.parametrize(("gpus", "reserved_gib"), [(8, (77.0, 82.4)), (128, (62.0, 67.0))])
def test_torchtitan_s_reserved_memory_lies_in_the_band(gpus: int, reserved_gib: tuple[float, float]):
    # Llama 3.1 8B, micro-batch 2, selective: compiled and eager (torchtitan, llama3_h100_202412).
    layout = {"data_parallel": gpus, "zero_stage": 3, "recompute": 1, "micro_batch_size": 2}
    planned = memory("fsdp2", layout=layout)
    overhead = planned.items.runtime / GIB
    for measured in reserved_gib:
        assert planned.peak_low_bytes / GIB <= measured + overhead <= planned.peak_high_bytes / GIB


@given(
    data=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2, 4]),
    zero=st.integers(0, 3),
    recompute=st.integers(0, 2),
    framework=st.sampled_from(["reference", "fsdp2", "accelerate", "megatron", "deepspeed", "ddp"]),
)
@settings(max_examples=60, deadline=None)
def test_items_add_up_to_the_peak_on_every_stage(data, tensor, pipeline, zero, recompute, framework):
    layout = {
        "data_parallel": data, "tensor_parallel": tensor, "pipeline_parallel": pipeline,
        "zero_stage": zero, "recompute": recompute,
    }  # fmt: skip
    account = memory("accelerate", model=small_llama(), sequence_length=128, layout=layout)
    assert account.items.total_bytes == account.peak_bytes == max(stage.peak_bytes for stage in account.stages)
    assert all(stage.items.total_bytes == stage.peak_bytes for stage in account.stages)
    assert account.allocated_bytes + account.items.fragmentation == account.reserved_bytes
    assert account.margin_bytes == account.limit_bytes - account.peak_bytes


@given(
    framework=st.sampled_from(["reference", "fsdp2", "accelerate", "deepspeed"]),
    axis=st.sampled_from(["data_parallel", "tensor_parallel"]),
    vocabulary=st.integers(100, 3000),
)
@settings(max_examples=40, deadline=None)
def test_more_devices_never_need_more_allocated_bytes_each(framework, axis, vocabulary):
    model = small_llama(vocab_size=vocabulary, num_key_value_heads=4)
    needed = [
        memory(
            framework, model=model, sequence_length=256, layout={axis: degree, "zero_stage": 3}, global_batch_size=4
        ).allocated_bytes
        for degree in (1, 2, 4)
    ]
    # FSDP2 pads every tensor's rows to whole parts, never by more than a row of each tensor.
    padding = 0 if framework in ("reference", "deepspeed") else 40 * 128 * 12
    assert all(more <= fewer + padding for fewer, more in pairwise(needed))


def test_the_search_sees_the_same_peak_as_the_full_account():
    rows = [
        {"data_parallel": 4, "pipeline_parallel": stages, "zero_stage": 1, "recompute": mode}
        for stages in (1, 2, 3, 4)
        for mode in (0, 2)
    ]
    layouts = candidates_from_rows(rows)
    asked = job("megatron", model=small_llama(), sequence_length=128, global_batch_size=16)
    searched = peak_bytes(layouts, asked)
    full = [memory_of(layouts, index, asked, hardware(8)).peak_bytes for index in range(len(layouts))]
    assert searched.astype(np.int64).tolist() == full


@pytest.mark.parametrize("framework", ["reference", "nanotron"])
def test_layers_of_several_kinds_have_the_same_peak_in_search_and_account(framework: str):
    # 27 layers with experts lie between a dense one and the head: with as many stages neither end holds the most.
    listed = catalogue().model("deepseek-ai/deepseek-moe-16b-base")
    model = describe_config(listed.config, name=listed.id)
    layouts = candidates_from_rows([{"data_parallel": 2, "pipeline_parallel": stages} for stages in (2, 5, 9, 28)])
    asked = job(framework, model=model, sequence_length=128, global_batch_size=64)
    full = [memory_of(layouts, index, asked, hardware(64)).peak_bytes for index in range(len(layouts))]
    assert peak_bytes(layouts, asked).astype(np.int64).tolist() == full


def test_optimizer_offload_moves_its_states_and_the_gradients_to_the_host():
    layout = {"data_parallel": 8, "zero_stage": 2}
    kept = memory("reference", layout=layout)
    offloaded = memory("reference", layout={**layout, "offload": 1})
    assert kept.host_bytes == 0
    assert offloaded.host_bytes == kept.items.optimizer + kept.items.gradients
    assert offloaded.items.optimizer == 0


def test_parameter_offload_leaves_nothing_at_rest():
    offloaded = memory("reference", layout={"data_parallel": 8, "zero_stage": 3, "offload": 2})
    assert (offloaded.items.parameters, offloaded.items.optimizer) == (0, 0)
    # (2 + 2 + 4 + 8) bytes of an eighth of the parameters.
    assert offloaded.host_bytes == pytest.approx(16 * llama().parameters / 8, rel=1e-6)


def test_an_interleaved_stage_names_the_layers_of_each_chunk():
    # 8 layers on 2 stages of 2 chunks: 0-1 and 4-5 on the first stage, 2-3 and 6-7 on the other.
    model = llama(num_hidden_layers=8)
    account = memory(
        "megatron", layout={"pipeline_parallel": 2, "virtual_pipeline": 2}, model=model, global_batch_size=8
    )
    assert [stage.layers for stage in account.stages] == [(0, 3), (4, 7)]
    assert [stage.chunks for stage in account.stages] == [((0, 1), (4, 5)), ((2, 3), (6, 7))]


def test_the_head_s_logits_stand_on_the_last_stage_only():
    stages = memory("megatron", layout={"pipeline_parallel": 4}, global_batch_size=8).stages
    assert [stage.items.logits > 0 for stage in stages] == [False, False, False, stages[3].phase == "forward and loss"]


def test_a_tied_head_on_another_stage_holds_the_matrix_again():
    tied = small_llama(tie_word_embeddings=True)
    stages = memory("reference", model=tied, sequence_length=64, layout={"pipeline_parallel": 2}).stages
    free = small_llama()
    untied = memory("reference", model=free, sequence_length=64, layout={"pipeline_parallel": 2}).stages
    assert stages[1].items.parameters == untied[1].items.parameters


def on_device(peaks):
    """Needs of layouts that keep nothing on the host."""
    return Needs(peaks=peaks, node_host=np.zeros(1), gpus_on_node=np.ones(1, dtype=np.int64))


def test_verdicts_turn_at_the_cliff_and_at_the_limit():
    card, asked = hardware(8), job("reference")
    exact = replace(asked.profile, band=replace(asked.profile.band, high=1.0))
    cliff = NEAR_CAPACITY_FRACTION * card.gpu.memory_bytes
    peaks = np.array([cliff, cliff + 1, card.limit_bytes, card.limit_bytes + 1])
    assert verdicts(on_device(peaks), replace(asked, profile=exact), card).tolist() == [FITS, TIGHT, TIGHT, NO]


def test_a_high_end_over_the_limit_is_tight():
    card, asked = hardware(8), job("reference")
    at_edge = card.limit_bytes / asked.profile.band.high
    needs = on_device(np.array([at_edge * 0.999, at_edge * 1.001]))
    assert verdicts(needs, asked, card).tolist() == [FITS, TIGHT]


def test_fused_loss_needs_no_logits():
    plain = memory("accelerate", layout={"data_parallel": 8, "zero_stage": 3, "recompute": FULL})
    fused = memory(
        "accelerate",
        layout={"data_parallel": 8, "zero_stage": 3, "recompute": FULL, "fused_cross_entropy": True},
    )
    # 12 bytes x 128,256 x 8,192 tokens = 11.74 GiB of logits.
    assert plain.items.logits == 12 * 128256 * 8192
    assert fused.peak_bytes < plain.peak_bytes


def test_qlora_s_base_is_nf4_with_its_scales_and_a_bf16_rest():
    # 6,979,321,856 elements of matrices at 0.515869 B and 4 B a tensor; embedding, head and norms in 2 B.
    planned = memory("accelerate", method="qlora", layout={})
    matrices = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    rest = llama().parameters - matrices
    blocks = matrices // 64
    base = matrices // 2 + blocks + 4 * (blocks // 256) + 4 * 7 * 32
    adapters = 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)) * 32
    assert planned.items.parameters >= base + 2 * rest + 4 * adapters
    assert planned.items.parameters == pytest.approx(base + 2 * rest + (4 + 2) * adapters, rel=1e-6)


def test_foreach_makes_one_temporary_of_every_parameter():
    # Pure bf16 AdamW: 2 parameter + 2 gradient + 4 events + 2 temporary = 10 bytes, as 7.24e9 parameters in 67.46 GiB.
    layout = {"recompute": FULL, "fused_cross_entropy": True}
    planned = memory("accelerate", precision="bf16", kernels="eager", sequence_length=64, layout=layout)
    assert planned.phase == "optimizer step"
    assert planned.allocated_bytes == pytest.approx(10 * llama().parameters, rel=1e-4)


def test_the_fused_adamw_of_transformers_today_makes_none():
    # 2 parameter + 2 gradient + 4 moments = 8 bytes, beside a layer's activations of 64 tokens.
    layout = {"recompute": FULL, "fused_cross_entropy": True}
    planned = memory("accelerate", precision="bf16", sequence_length=64, layout=layout)
    assert planned.allocated_bytes == pytest.approx(8 * llama().parameters, rel=0.02)


def test_frozen_layers_under_fsdp_hold_two_tensors_each_to_the_end():
    layout = {"data_parallel": 2, "zero_stage": 3, "recompute": FULL, "fused_cross_entropy": True}
    lora = Lora(rank=16, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    asked = {"kernels": "eager", "method": "lora", "lora": lora, "precision": "bf16", "layout": layout}
    short, long = (
        held(taken(events("accelerate", sequence_length=size, **asked), "last matrix", layer=0), "activations")
        for size in (4096, 8192)
    )
    # 31 finished layers with two tensors of 8,192 bytes a token, one checkpoint, and a layer's working set of 10 h
    # (norms and adapters' input), 5 h, 6 f and 3 x 2 f + 2 h of gradients; 136 bytes of statistics, 4 x 32 between the
    # adapters' factors and 512 of cosines and sines.
    layer = 10 * 4096 + 5 * 4096 + 6 * 14336 + 6 * 14336 + 2 * 4096
    assert (long - short) / 4096 == (2 * 31 + 1) * 8192 + layer + 136 + 128 + 512


def test_whole_gradients_and_weights_stand_on_a_torchtitan_pipeline():
    layout = {"data_parallel": 2, "pipeline_parallel": 2, "zero_stage": 3, "recompute": FULL}
    planned = memory("fsdp2", sequence_length=128, global_batch_size=8, layout=layout)
    first = planned.stages[0]
    # 16 layers of 218,112,000 parameters: 2 bytes gathered and 4 summed, each whole. The embedding is the first to be
    # reduced: its weights are gone, and its gradient stands summed and in the reduction's buffer, 4 bytes each.
    assert first.phase == "root gradient reduction"
    assert first.items.communication == pytest.approx(6 * 16 * 218_112_000 + 8 * 128256 * 4096, rel=1e-3)


@pytest.mark.parametrize(
    ("vocabulary", "sequence_length", "layout", "traced_gib"),
    # Fake-tensor traces of DistributedDataParallel under autocast: Llama 3.2 1B's sizes cut to four layers, its head
    # untied. A recomputed layer's casts are gone when the loss is differentiated.
    [
        (128256, 2048, {}, 16.357),
        (128256, 2048, {"recompute": FULL}, 14.981),
        (32000, 4096, {}, 9.669),
    ],
)
def test_autocast_keeps_casts_of_weights_and_of_activations(vocabulary, sequence_length, layout, traced_gib):
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "vocab_size": vocabulary}
    layout = {"data_parallel": 8, **layout}
    planned = memory("ddp", model=llama(**sizes), sequence_length=sequence_length, layout=layout)
    assert planned.allocated_bytes / GIB == pytest.approx(traced_gib, rel=1e-3)


def test_casts_of_all_weights_live_to_the_end_of_the_forward_pass():
    # Casts of 32 recomputed layers, 2 x 218,112,000 bytes each, outweigh two bytes a logit; of two micro-batches the
    # second meets the gradients, so that this is the worst event.
    layout = {"data_parallel": 8, "recompute": FULL}
    items = memory("ddp", sequence_length=128, layout=layout, global_batch_size=16).items
    assert items.parameters == 4 * 8_030_261_248 + 2 * (32 * 218_112_000 + 128256 * 4096)
    assert items.logits == 10 * 128 * 128256


def test_divided_logits_cost_four_bytes_more_on_torchtitan():
    layout = {
        "tensor_parallel": 8,
        "sequence_parallel": True,
        "zero_stage": 3,
        "recompute": FULL,
        "micro_batch_size": 4,
    }
    planned = memory("fsdp2", layout=layout)
    # 16 bytes x 128,256 / 8 x 4 x 8,192 tokens = 7.83 GiB.
    assert planned.items.logits == 16 * 128256 // 8 * 4 * 8192


def test_litgpt_loads_whole_weights_before_it_shards_them():
    layout = {"data_parallel": 2, "zero_stage": 3, "recompute": FULL}
    planned = memory("litgpt", method="lora", precision="bf16", sequence_length=64, layout=layout)
    # Half and the whole of 2 bytes a parameter: the shard beside what it was cut from.
    assert planned.phase == "loading"
    assert planned.allocated_bytes == pytest.approx(3 * llama().parameters, rel=1e-2)


def test_litgpt_gives_a_tied_model_a_head_of_its_own():
    tied = llama(tie_word_embeddings=True)
    ours, others = (
        memory(framework, model=tied, precision="bf16", sequence_length=64).items.parameters
        for framework in ("litgpt", "accelerate")
    )
    assert ours - others == 2 * 128256 * 4096


def test_transformer_engine_keeps_one_empty_gradient_of_each_matrix():
    plain, ours = (
        max(step.items.activations for step in planned.stages[0].moments)
        for planned in (
            memory(framework, sequence_length=64, layout={"zero_stage": 1}) for framework in ("nanotron", "megatron")
        )
    )
    # 218,103,808 elements of a layer's seven matrices in 16 bits = 416 MiB; the rest differs by 64 tokens' worth.
    assert ours - plain == pytest.approx(2 * (218_103_808 + 525_336_576), rel=0.05)


@pytest.mark.parametrize("dense", [1, 2, 3, 7])
def test_the_search_finds_the_worst_of_interleaved_stages_of_unlike_layers(dense: int):
    # Four stages of layers i and i + 4: the search weighs the deciding stages alone, the account all of them.
    model = spec(DEEPSEEK, num_hidden_layers=8, first_k_dense_replace=dense)
    layout = {"pipeline_parallel": 4, "virtual_pipeline": 2, "zero_stage": 1}
    asked = {"model": model, "sequence_length": 64, "global_batch_size": 8}
    accounted = memory("megatron", layout=layout, **asked)
    assert peak_bytes(one_layout(**layout), job("megatron", **asked)).tolist() == [accounted.peak_bytes]


def test_an_interleaved_stage_of_unlike_layers_has_the_weights_of_its_chunks():
    # Layers i and i + 4 with the first three dense: stages 1 and 2 have one dense layer and one with experts, and
    # stage 3, but for head and last norm, one with experts more and a dense one less.
    model = spec(DEEPSEEK, num_hidden_layers=8, first_k_dense_replace=3)
    layout = {"pipeline_parallel": 4, "virtual_pipeline": 2}
    stages = memory(model=model, sequence_length=64, global_batch_size=8, layout=layout).stages
    parameters = [stage.items.parameters for stage in stages]
    # 2 bytes of each: the gate of 8 x 16 and its bias of 8 (`e_score_correction_bias`), eight experts and a shared
    # one of 3 x 16 x 8, less the dense 3 x 16 x 32; head and norm are 130 x 16 and 16.
    assert parameters[1] == parameters[2]
    assert parameters[3] - parameters[2] == 2 * (8 * 16 + 8 + 9 * 3 * 16 * 8 - 3 * 16 * 32 + 130 * 16 + 16)


@pytest.mark.slow
def test_every_model_of_the_catalogue_has_an_account():
    for listed in catalogue().models:
        planned = memory("accelerate", model=describe_config(listed.config, name=listed.id), layout={"recompute": FULL})
        assert planned.items.parameters > 0


def test_interleaved_stages_need_not_hold_logits_beside_the_most_that_waits():
    # The last chunk is the head alone, and small layers wait before it.
    model = small_llama(num_hidden_layers=6, vocab_size=50_257)
    through = job(
        "megatron", model=model, gpus=24, global_batch_size=120, sequence_length=2048,
        layout={"pipeline_layout": "E|(t|)*2(tt|)*2L"},
    )  # fmt: skip
    degrees = {"data_parallel": 4, "tensor_parallel": 2, "pipeline_parallel": 3, "virtual_pipeline": 2}
    layouts = one_layout(**degrees, zero_stage=1, micro_batch_size=5, sequence_parallel=True)
    assert (least_bytes(layouts, through) <= peak_bytes(layouts, through)).all()


def test_the_least_counts_no_chunks_that_the_head_s_stage_had_waiting_before_its_loss():
    # Sixty layers in sixty virtual stages of two ranks, the first and the last of one layer fewer than others: eager
    # scores of 32,768 tokens leave little else to count.
    model = describe_config(dict(catalogue().model("01-ai/Yi-1.5-34B").config), name="yi")
    asked = {"model": model, "gpus": 2, "sequence_length": 32_768, "global_batch_size": 6, "attention": "eager"}
    layouts = candidates_from_rows([{"pipeline_parallel": 2, "virtual_pipeline": 30, "zero_stage": 3}])
    own = job("fsdp2", **asked)
    assert (least_bytes(layouts, own) <= peak_bytes(layouts, own)).all()


@pytest.mark.parametrize(
    ("framework", "layout"),
    [("accelerate", {}), ("accelerate", {"data_parallel": 8, "shard_group": 8, "zero_stage": 3})],
    ids=["one pool", "pools of streams"],
)
def test_an_allocator_that_runs_short_gives_back_what_is_free(framework, layout):
    def held(limit_bytes):
        card = hardware(gpu=gpu(memory_bytes=limit_bytes))
        return memory(framework, model=small_llama(), sequence_length=4096, layout=layout, hardware=card)

    roomy = held(10**12)
    runtime, surplus = roomy.items.runtime, load_profile(framework).runtime.needed_over_allocated
    needed = math.ceil(surplus * roomy.allocated_bytes) + runtime
    assert needed < roomy.peak_bytes - 1
    enough, less, too_little = (held(limit) for limit in (roomy.peak_bytes, roomy.peak_bytes - 1, needed - 1))
    assert enough.reserved_bytes == roomy.reserved_bytes
    # It fills a device of less, and needs that much of one that has too little.
    assert less.peak_bytes == less.limit_bytes == roomy.peak_bytes - 1
    assert too_little.peak_bytes == pytest.approx(needed, abs=1)
    assert too_little.margin_bytes < 0
