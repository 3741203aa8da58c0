"""Which jobs with products in fp8, which are torchao's, are not traced of torchtitan."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import FP8_MIXED
from plimsoll.service.worker.jobs.rule import Asked, Rule


def _in_fp8(asked: Asked) -> bool:
    return asked.job.precision == FP8_MIXED


PRODUCTS_ARE_NOT_SPLIT = Rule(
    broken=lambda asked: _in_fp8(asked) and asked.job.tensor_parallel > 1,
    pointer="/layout/tensor_parallel",
    words="Products in fp8 are traced without tensor parallelism, whose gathers torchao sends in fp8.",
)
PRODUCTS_ARE_NOT_EXPERTS = Rule(
    broken=lambda asked: _in_fp8(asked) and asked.job.has_experts,
    pointer="/training/precision",
    words="Products in fp8 are not traced in mixtures: torchtitan casts their experts by another way.",
)
RULES_OF_PRODUCTS = (PRODUCTS_ARE_NOT_SPLIT, PRODUCTS_ARE_NOT_EXPERTS)
