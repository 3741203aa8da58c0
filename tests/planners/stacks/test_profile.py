import dataclasses
import tomllib
from pathlib import Path

import pytest

from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.jobs.optimizers import OPTIMIZERS
from plimsoll.planners.quantization.stacks import QUANTIZED_STACKS
from plimsoll.planners.sharding.cuts import EachTensorFlat, FlatBuffers
from plimsoll.planners.stacks import folders
from plimsoll.planners.stacks.profile import load_profile, profiles_to_search, stack_names, textbook


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_names_its_sources_and_an_honest_band(name: str):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.sources
    assert profile.band.low < 1.0 < profile.band.high
    assert profile.band.reason


def of_kin(name: str) -> str | None:
    """Return the stack that another is like, None where it is like none."""
    path = Path(folders.__file__).parent / name.replace("-", "_") / "stack.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")).get("like")


@pytest.mark.parametrize("name", stack_names())
def test_profiles_without_measurements_answer_with_a_wider_band(name: str):
    # One that runs another stack's code is wider than that one, and any other wider than all.
    profile, kin = load_profile(name), of_kin(name)
    measured = [each for each in map(load_profile, stack_names()) if each.measured]
    beside = [each for each in measured if each.name == kin] or measured
    assert profile.measured or all(profile.band.high > each.band.high for each in beside)


@pytest.mark.parametrize(
    ("name", "precision", "bytes_a_parameter"),
    # p + g + wider g + copy + two moments: 2+2+0+4+8, 2+2+0+0+4, 2+4+0+4+8, 4+4+0+0+8, 2+2+4+4+8, 2+2+0+0+4.
    [
        ("reference", "bf16-mixed", 16),
        ("reference", "bf16", 8),
        ("megatron", "bf16-mixed", 18),
        ("fsdp2", "bf16-mixed", 16),
        ("deepspeed", "bf16-mixed", 16),
        ("accelerate", "bf16", 8),
    ],
)
def test_bytes_a_parameter_are_the_stack_s_own(name: str, precision: str, bytes_a_parameter: int):
    states = load_profile(name).states[precision]
    total = states.parameter + states.gradient + states.accumulator + states.master + 2 * states.moment
    assert total == bytes_a_parameter


def test_an_unknown_framework_lists_the_near_ones():
    with pytest.raises(UnknownName, match="megatron"):
        load_profile("megatorn")


def test_any_means_every_stack_but_the_textbook_and_the_measured_ones_first():
    stacks = profiles_to_search("any")
    measured = [profile.name for profile in stacks if profile.measured]
    assert set(measured) == {"accelerate", "fsdp2", "litgpt", "megatron", "nanotron"}
    assert [profile.name for profile in stacks[: len(measured)]] == measured
    assert {profile.name for profile in stacks} == set(stack_names()) - {"reference"}


def test_a_named_framework_is_searched_alone():
    assert [profile.name for profile in profiles_to_search("ddp")] == ["ddp"]


@pytest.mark.parametrize("name", stack_names())
def test_what_stacks_name_is_known_and_no_alias_is_another_stack(name: str):
    profile = load_profile(name)
    assert profile.frozen_base.quantized_as in QUANTIZED_STACKS
    assert {*profile.can.optimizers, *profile.can.undivided_optimizers} <= set(OPTIMIZERS)
    assert set(profile.aliases).isdisjoint(stack_names())


@pytest.mark.parametrize("name", stack_names())
def test_whoever_trains_adapters_says_how_the_frozen_base_is_held(name: str):
    profile = load_profile(name)
    assert ("lora" in profile.can.methods) == (profile.frozen_base.reason != "nothing is frozen")


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_says_how_weights_lie_in_each_stage_that_it_can_do(name: str):
    profile = load_profile(name)
    assert {str(stage) for stage in profile.can.zero_stages} <= set(profile.weights.gathering)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_cuts_tensors_by_themselves_from_stage_3(stage: int):
    cut = load_profile("deepspeed").sharding_policy(stage).cut
    # stage_1_and_2.py: NCCL's start on 4 bytes, two elements in 16 bits; partition_parameters.py.
    assert cut == FlatBuffers(rank_multiple=2) if stage < 3 else isinstance(cut, EachTensorFlat)


def test_a_stage_that_a_stack_cannot_do_is_cut_as_the_nearest_below():
    policies = load_profile("accelerate").placement.policies
    assert 1 not in load_profile("accelerate").can.zero_stages
    assert policies[1] is policies[0]


def test_there_is_one_textbook():
    assert [name for name in stack_names() if load_profile(name).is_textbook] == [textbook().name] == ["reference"]


def test_a_variant_changes_what_its_table_names_and_nothing_else():
    plain, foak = load_profile("accelerate"), load_profile("accelerate", "foak")
    assert (plain.loss.logits_bytes, foak.loss.logits_bytes) == (12, 8)
    assert dataclasses.replace(plain.kernels, experts_in_turn=True) == foak.kernels


def test_liger_s_loss_holds_logits_their_fp32_copy_and_nothing_else():
    # 16 bits and 32; of a loss fused with the head one buffer in 16 bits.
    fused = load_profile("accelerate", "fused").loss
    assert (fused.logits_bytes, fused.fused_chunk_bytes) == (2 + 4, 2)


def test_bare_replicas_have_a_fused_loss_with_liger_s_kernels_alone():
    assert not load_profile("ddp").can.fused_cross_entropy
    assert load_profile("ddp", "fused").can.fused_cross_entropy


def test_compiled_casts_to_fp8_make_nothing_but_fp8():
    # Scaled and clamped in fp32, 4 bytes each, and the byte.
    eager, compiled = (load_profile("fsdp2", kernels).kernels.fp8_cast_bytes for kernels in (None, "compiled"))
    assert (eager, compiled) == (4 + 4 + 1, 1)


def test_megatron_s_cross_entropy_holds_no_logits_in_fp32_where_transformer_engine_fuses_it():
    plain, compiled, fused = (load_profile("megatron", kernels) for kernels in (None, "compiled", "fused"))
    # bf16 logits and the fp32 copy that is worked in: core/tensor_parallel/cross_entropy.py, and in
    # core/fusions/fused_cross_entropy.py `calculate_logits_max`.
    assert plain.loss.logits_bytes == compiled.loss.logits_bytes == 2 + 4
    # By Transformer Engine, as measured: one more tensor of 16 bits.
    assert fused.loss.logits_bytes == 2 + 2


def test_megatron_deepspeed_can_nothing_that_only_megatron_core_has_options_for():
    # deepspeedai/Megatron-DeepSpeed 4efb479: arguments.py has no --offload-modules, --recompute-modules or
    # --cp-comm-type, and gpt_model.py says that "deepspeed's pipeline doesn't support the block recompute method".
    can = load_profile("megatron-deepspeed").can
    assert (can.activation_offload, can.context_all_to_all) == ("none", False)
    assert set(can.recompute) == {"none", "selective", "full"}
