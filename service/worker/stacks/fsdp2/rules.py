"""Which jobs with products in fp8, which are torchao's, are not traced of torchtitan."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.service.worker.jobs.job import FP8_MIXED
from plimsoll.service.worker.jobs.rule import Asked, Rule

# torchtitan, components/quantization/utils.py: what fp8's tensor cores need of both lengths of a matrix.
MULTIPLE = 16


def _in_fp8(asked: Asked) -> bool:
    return asked.job.precision == FP8_MIXED


def _lengths_of_a_rank(asked: Asked) -> Iterator[int]:
    """Yield the lengths of a rank's part of a layer's matrices."""
    config, ranks = asked.job.config, asked.job.tensor_parallel
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    yield config["hidden_size"]
    yield config["intermediate_size"] // ranks
    yield heads * head_dim // ranks
    yield (config.get("num_key_value_heads") or heads) * head_dim // ranks


def _splits_odd_lengths(asked: Asked) -> bool:
    is_split = _in_fp8(asked) and asked.job.tensor_parallel > 1 and not asked.job.has_experts
    return is_split and any(length % MULTIPLE for length in _lengths_of_a_rank(asked))


SPLIT_PRODUCTS_HAVE_WHOLE_MULTIPLES = Rule(
    broken=_splits_odd_lengths,
    pointer="/layout/tensor_parallel",
    words=(
        f"Products in fp8 over tensor-parallel ranks need every matrix of a rank to have lengths of whole multiples of "
        f"{MULTIPLE}: torchao's styles take no others (float8/float8_tensor_parallel.py)."
    ),
)
PRODUCTS_ARE_NOT_EXPERTS = Rule(
    broken=lambda asked: _in_fp8(asked) and asked.job.has_experts,
    pointer="/training/precision",
    words="Products in fp8 are not traced in mixtures: torchtitan casts their experts by another way.",
)
RULES_OF_PRODUCTS = (SPLIT_PRODUCTS_HAVE_WHOLE_MULTIPLES, PRODUCTS_ARE_NOT_EXPERTS)
