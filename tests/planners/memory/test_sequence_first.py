"""A small Llama's layer: 4 heads and 2 of keys and values, 16 features each."""

from plimsoll.planners.families import describe_config
from plimsoll.planners.memory.sequence_first import copied_output_bytes, unrotated_bytes
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import small_llama
from tests.planners.sharding.models import DEEPSEEK

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
