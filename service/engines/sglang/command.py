"""Commands that start SGLang.

Source: sglang/srt/server_args.py.
"""

from __future__ import annotations

import re

from plimsoll.planners.serving.weights.scale_blocks import SCALE_BLOCKS
from plimsoll.service.engines.command import EngineCommand, named_degrees, with_attention_ranks
from plimsoll.service.engines.sglang.flags import FLAGS
from plimsoll.service.engines.sglang.launch import MODULE
from plimsoll.service.engines.sglang.rules import at_odds, node_rules, ranks_of_node
from plimsoll.service.workloads.commands.flags import Arguments

# Options that spread whole experts over all ranks without a degree.
EXPERTS_SPREAD = re.compile(r"^--(?:moe[-_]a2a[-_]backend|enable[-_](?:ep|deepep)[-_]moe)$")


def _layout(read: Arguments) -> dict[str, int]:
    """Return the degrees of a command, whose tensor ranks count those of attention's data parallelism.

    Without an option that says so experts are divided as all else is, whatever degree would be better.
    """
    layout = named_degrees(read)
    attention = int(read.values.get("attention_data_parallel", 1))
    if read.values.get("is_attention_data_parallel"):
        attention = layout.pop("data_parallel", 1)
    layout = with_attention_ranks(layout, attention)
    if "expert_ranks" in read.values:
        layout["expert_parallel"] = int(read.values["expert_ranks"])
    elif not any(EXPERTS_SPREAD.search(name) for name in read.others):
        layout["expert_parallel"] = 1
    return layout


SGLANG = EngineCommand(
    program="sglang",
    engine="sglang",
    flags=FLAGS,
    uncounted=frozenset({
        "--speculative-algorithm", "--speculative-draft-model-path", "--disaggregation-mode", "--max-total-tokens",
        "--lora-paths",
    }),
    overriding=frozenset({
        "--offload-group-size", "--offload-mode", "--json-model-override-args", "--torchao-config",
        "--kt-weight-path", "--kt-method", "--kt-num-gpu-experts",
    }),
    multi_node=frozenset({"--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"}),
    memory_saving=frozenset({
        "--disable-cuda-graph", "--cuda-graph-max-bs", "--cuda-graph-bs", "--disable-piecewise-cuda-graph",
        "--max-total-tokens",
    }),
    cache_dtypes={"auto": None, "bf16": "bf16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"},
    layout=_layout,
    starts=(("sglang", "serve"),),
    modules=frozenset({MODULE}),
    images=frozenset({"lmsysorg/sglang"}),
    is_on_one_node=True,
    ranks_of_node=ranks_of_node,
    at_odds=at_odds,
    node_rules=node_rules,
    # Dense layers are divided by a degree of their own then.
    waived_rules={"--moe-dense-tp-size": SCALE_BLOCKS},
)  # fmt: skip
