"""Which option sets which field of `POST /plan/infer`; what has none is set by `--file` or `--set`."""

from __future__ import annotations

from plimsoll.cli.options import RequestOption
from plimsoll.cli.request_options import HARDWARE, LAYOUT_PANEL, MODEL, RUN_PANEL, choices, option
from plimsoll.service.requests.shown import SERVING

INFER: tuple[RequestOption, ...] = (
    *MODEL,
    *HARDWARE,
    option(
        "--weights",
        "serving.weights",
        "Format of the weights; absent: as the checkpoint is stored, else bf16.",
        complete=choices("WeightFormat"),
    ),
    option(
        "--kv-cache",
        "serving.kv_cache",
        "Format of the cache; absent: as the checkpoint is stored, else bf16.",
        complete=choices("CacheFormat"),
    ),
    *(option(shown.flag, shown.field, shown.words, shown.kind) for shown in SERVING),
    option("--rope-type", "serving.rope_scaling.rope_type", "How positions are stretched: yarn, linear or dynamic."),
    option("--rope-factor", "serving.rope_scaling.factor", "By how much.", float),
    option(
        "--rope-original-positions",
        "serving.rope_scaling.original_max_position_embeddings",
        "What YaRN stretches; absent: the model's own positions.",
        int,
    ),
    option("--rope-theta", "serving.rope_scaling.rope_theta", "The wavelengths' base, for launch files.", float),
    option("--ttft-seconds", "serving.slo.ttft_seconds", "Mean time to the first token to keep.", float),
    option("--tpot-seconds", "serving.slo.tpot_seconds", "Mean time a token to keep.", float),
    option("--engine", "serving.engine", "vllm, sglang, tensorrt-llm or transformers.", complete=choices("Engine")),
    option("--engine-version", "serving.engine_version", "Absent: the newest known."),
    option(
        "--cache-implementation",
        "serving.cache_implementation",
        "Of transformers: a cache that grows, or one for the longest sequence at once.",
        complete=choices("CacheImplementation"),
    ),
    option(
        "--chunked-prefill/--no-chunked-prefill",
        "serving.chunked_prefill",
        "Prompts are cut where a step is full.",
        bool,
    ),
    option(
        "--simulate/--no-simulate", "serving.simulate", "Follow single requests under the asked load (default).", bool
    ),
    option(
        "--expert-backend",
        "serving.expert_backend",
        "Of TensorRT-LLM: what computes a mixture's experts: CUTLASS, TRTLLM, DEEPGEMM or TRITON.",
    ),
    option("--draft-tokens", "serving.speculative.tokens", "Tokens drafted at once.", int),
    option(
        "--acceptance-rate",
        "serving.speculative.acceptance_rate",
        "The part of drafted tokens that is accepted.",
        float,
    ),
    option(
        "--disaggregated/--no-disaggregated", "serving.disaggregated", "Prefill and decode on GPUs of their own.", bool
    ),
    option("--dp --data-parallel", "layout.data_parallel", "Replicas.", int, LAYOUT_PANEL),
    option("--tp --tensor-parallel", "layout.tensor_parallel", "Tensor parallel degree.", int, LAYOUT_PANEL),
    option("--pp --pipeline-parallel", "layout.pipeline_parallel", "Pipeline parallel degree.", int, LAYOUT_PANEL),
    option(
        "--attention-data-parallel",
        "layout.attention_data_parallel",
        "Attention ranks within a replica.",
        int,
        LAYOUT_PANEL,
    ),
    option("--ep --expert-parallel", "layout.expert_parallel", "Expert parallel degree.", int, LAYOUT_PANEL),
    option(
        "--decode-context-parallel",
        "layout.decode_context_parallel",
        "Ranks that share a sequence's cache.",
        int,
        LAYOUT_PANEL,
    ),
    option(
        "--objective",
        "objective",
        "throughput, fewest_gpus, cost or latency.",
        panel=RUN_PANEL,
        complete=choices("ServingObjective"),
    ),
)
