"""What cannot run, told apart from what is not read or not planned here: the one place that decides.

A planner's error names the rules that every run as asked would break. Only what the program itself checks, and refuses
to start over, is refused here; another rule may be the planner's own, so that the workload stays unjudged.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.ground.errors import ImpossibleLayout, PlimsollError
from plimsoll.service.workloads.commands.launches import Launch

LONG_POSITIONS = "length-within-positions"
CARD_FORMAT = "card-computes-format"
SCALE_BLOCKS = "scale-blocks-divide"
# By rule, the programs that check it. vllm 0.33.0: config/model.py (verify_with_parallel_config,
# _verify_with_expert_parallelism, _get_and_verify_max_len), distributed/utils.py (divide), platforms/cuda.py
# (check_if_supports_dtype), layers/quantization/fp8.py (create_weights). sglang 0.5.23: the same of its fp8.py; the
# asserts of heads and KV heads in srt/models (llama.py, qwen2.py, deepseek_v2.py ...), srt/runtime_context.py (tp =
# moe_ep x moe_dp x moe_tp), srt/configs/model_config.py (_derive_context_length), srt/utils/common.py (make_layers);
# its padding of the vocabulary takes any degree (srt/layers/vocab_parallel_embedding.py), and it falls back to fp16
# by itself. tensorrt_llm: _torch/modules/attention.py (heads), _torch/models/modeling_utils.py (duplicate_kv_weight:
# KV heads), mapping.py (tp = moe_tp x moe_ep x cluster, pp_layers). text-generation-inference 3.3.7: "must be
# divisible by `num_shards`" in server/text_generation_server/models/custom_modeling/flash_*_modeling.py.
CHECKED_BY: Mapping[str, frozenset[str]] = {
    "tensor-parallel-divides": frozenset({"vllm", "sglang", "tensorrt-llm", "transformers"}),
    "vocabulary-divides": frozenset({"vllm"}),
    SCALE_BLOCKS: frozenset({"vllm", "sglang"}),
    "experts-needed": frozenset({"vllm"}),
    "expert-parallel-divides": frozenset({"sglang", "tensorrt-llm"}),
    "context-parallel-divides": frozenset({"vllm"}),
    "pipeline-needs-layers": frozenset({"sglang", "tensorrt-llm"}),
    LONG_POSITIONS: frozenset({"vllm", "sglang"}),
    CARD_FORMAT: frozenset({"vllm"}),
}
# The annotation's own arithmetic, which no program can mend.
CHECKED_OF_PLANS = frozenset({"degrees_multiply_to_gpus", "degrees_are_positive", "gpus-product", "batch_divides"})
# What this service does not plan, whether or not it can run.
UNPLANNED = frozenset({"framework", "engine-has-degree"})


def is_impossible(error: PlimsollError, launch: Launch) -> bool:
    """Return whether the program of a command would refuse what a planner's error says of it."""
    return any(launch.engine in CHECKED_BY.get(rule, ()) and rule not in launch.unchecked for rule in error.rules)


def is_impossible_plan(error: PlimsollError) -> bool:
    """Return whether the planning request of an annotation contradicts itself."""
    return not CHECKED_OF_PLANS.isdisjoint(error.rules)


def is_doubtful(error: PlimsollError) -> bool:
    """Return whether no plan of what was asked exists, by rules that its program is not known to check."""
    return isinstance(error, ImpossibleLayout) and UNPLANNED.isdisjoint(error.rules)


def divisors_text(number: int) -> str:
    """Return the divisors of a number, as a person lists them: "1, 2, 4, 7, 14 or 28"."""
    divisors = [str(degree) for degree in range(1, number + 1) if number % degree == 0]
    return " or ".join(filter(None, (", ".join(divisors[:-1]), divisors[-1])))
