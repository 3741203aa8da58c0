import pytest

from plimsoll.planners.ground.errors import UnknownName
from plimsoll.planners.stacks.profile import load_profile, profiles_to_search, stack_names, stack_table


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_names_its_sources_and_an_honest_band(name: str):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.sources
    assert profile.band.low < 1.0 < profile.band.high
    assert profile.band.reason


@pytest.mark.parametrize("name", stack_names())
def test_profiles_without_measurements_answer_with_a_wider_band(name: str):
    profile = load_profile(name)
    widest_measured = max(each.band.high for each in map(load_profile, stack_names()) if each.measured)
    assert profile.measured or profile.band.high > widest_measured


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


def test_profile_files_hold_no_key_twice_and_no_unknown_one():
    own = {"variants", "fp8", "run_ahead", "zero"}
    keys = {name: set(stack_table(name, "stack.toml")) - own for name in stack_names()}
    assert len({frozenset(names) for names in keys.values()}) == 1


def test_a_variant_changes_what_its_table_names_and_nothing_else():
    plain, foak = load_profile("accelerate"), load_profile("accelerate", "foak")
    assert (plain.loss.logits_bytes, foak.loss.logits_bytes) == (12, 8)
    assert plain.kernels == foak.kernels


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


def test_megatron_s_compiled_cross_entropy_holds_more_of_the_logits():
    plain, compiled = load_profile("megatron"), load_profile("megatron", "compiled")
    # bf16 logits and the fp32 copy that is worked in: core/tensor_parallel/cross_entropy.py.
    assert (plain.loss.logits_bytes, compiled.loss.logits_bytes) == (2 + 4, 8)
