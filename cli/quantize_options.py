"""Which option sets which field of `POST /quantize`; what has none is set by `--file` or `--set`."""

from __future__ import annotations

from plimsoll.cli.options import RequestOption
from plimsoll.cli.request_options import MODEL, choices, option

QUANTIZE: tuple[RequestOption, ...] = (
    *MODEL,
    option(
        "--scheme",
        "scheme",
        "int8, int8-channel, int8-group, nf4, fp4, fp8, fp8-channel, int4 or mxfp4.",
        complete=choices("Scheme"),
    ),
    option("--double-quantization/--no-double-quantization", "double_quantization", "The scales quantized too.", bool),
    option("--block-size", "block_size", "Elements that share a scale.", int),
    option("--weights", "weights.path", "A safetensors checkpoint; absent: random weights."),
    option("--seed", "seed", "Of the random weights.", int),
    option("--output", "output", "A folder that does not exist yet, for the quantized checkpoint."),
)
