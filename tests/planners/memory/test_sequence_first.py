"""A small Llama's layer: 4 heads and 2 of keys and values, 16 features each."""

from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.memory.sequence_first import copied_output_bytes, exchanged_output_bytes, unrotated_bytes
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import hardware, small_llama
from tests.planners.sharding.models import DEEPSEEK
from tests.planners.training_cases import job, one_layout

KERNELS = load_profile("megatron").kernels
LAYER = small_llama().layers[0]
SIZES = {"attention": "flash", "element_bytes": 2}


def test_the_output_of_four_heads_is_copied():
    assert copied_output_bytes(LAYER, KERNELS, **SIZES) == 2 * 4 * 16


def test_queries_and_keys_are_one_product_with_the_values():
    assert unrotated_bytes(LAYER, KERNELS, **SIZES) == 2 * (4 + 2) * 16


def test_latent_attention_has_products_of_their_own():
    latent = describe_config(DEEPSEEK, name="latent").layers[0]
    assert unrotated_bytes(latent, KERNELS, **SIZES) == 0
    # cuDNN's kernel takes them sequence first, and leaves the output so.
    assert copied_output_bytes(latent, KERNELS, **SIZES) == 0


def test_nothing_is_held_twice_without_the_kernel_or_without_transformer_engine():
    eager = SIZES | {"attention": "eager"}
    other = load_profile("fsdp2").kernels
    for held in (copied_output_bytes, unrotated_bytes):
        assert held(LAYER, KERNELS, **eager) == held(LAYER, other, **SIZES) == 0


def test_the_output_is_kept_twice_where_ranks_exchange_heads_unless_it_is_not_kept():
    assert exchanged_output_bytes(LAYER, KERNELS, element_bytes=2) == 2 * 4 * 16
    again = frozenset({"attention_context"})
    assert exchanged_output_bytes(LAYER, KERNELS, element_bytes=2, without=again) == 0
    assert exchanged_output_bytes(LAYER, load_profile("fsdp2").kernels, element_bytes=2) == 0


def test_of_several_sequences_the_copy_sequence_first_is_the_second_one():
    # Llama 3 8B: 32 layers of 1,024 tokens a rank and sequence, 4,096 features in 2 bytes.
    own = job("megatron")

    def activations(**layout):
        return memory_of(one_layout(context_parallel=8, **layout), 0, own, hardware(8)).items.activations

    one = activations(context_all_to_all=4) - activations()
    several = activations(context_all_to_all=4, micro_batch_size=2) - activations(micro_batch_size=2)
    assert (one, several) == (32 * 1024 * 4096 * 2, 0)
