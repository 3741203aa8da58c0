"""The formats of weights that a proof serves, by name; free of torch."""

from __future__ import annotations

FP8, INT8, INT4, NF4, MXFP4 = "fp8", "int8", "int4", "nf4", "mxfp4"
NARROW_WEIGHTS = (FP8, INT8)
PACKED_WEIGHTS = (INT4, NF4, MXFP4)
SERVED_WEIGHTS = ("fp32", "bf16", "fp16", *NARROW_WEIGHTS, *PACKED_WEIGHTS)
