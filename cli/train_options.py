"""Which option sets which field of `POST /plan/train`; what has none is set by `--file` or `--set`."""

from __future__ import annotations

from plimsoll.cli.options import RequestOption
from plimsoll.cli.request_options import HARDWARE, LAYOUT_PANEL, MODEL, RUN_PANEL, choices, option
from plimsoll.service.requests.defaults import GLOBAL_BATCH_SIZE, SEQUENCE_LENGTH

RECOMPUTE_FORMS = {"full": "full_layers", "every": "every"}


def _recompute(text: str) -> str | dict[str, int]:
    """Return `full:12` as full recompute of twelve layers of a stage, `every:2` as of every second, else the mode."""
    form, colon, layers = text.partition(":")
    if colon and form in RECOMPUTE_FORMS and layers.isdigit():
        return {RECOMPUTE_FORMS[form]: int(layers)}
    return text


def _number_or_word(text: str) -> float | str:
    """Return the number that a text says, else the text: a name that the contract knows or refuses."""
    try:
        return float(text)
    except ValueError:
        return text


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


TRAIN: tuple[RequestOption, ...] = (
    *MODEL,
    *HARDWARE,
    option("--method", "training.method", "full, lora or qlora.", complete=choices("Method")),
    option(
        "--seq --sequence-length",
        "training.sequence_length",
        f"Tokens of a sequence. [default: {SEQUENCE_LENGTH}]",
        int,
    ),
    option(
        "--batch --global-batch-size",
        "training.global_batch_size",
        f"Sequences of a step, over all GPUs. [default: {GLOBAL_BATCH_SIZE}]",
        int,
    ),
    option("--tokens", "training.tokens", "Tokens of the whole run, as 1.5e12; gives its length and cost.", float),
    option(
        "--precision",
        "training.precision",
        "fp32, tf32, fp16-mixed, bf16-mixed, bf16 or fp8-mixed.",
        complete=choices("Precision"),
    ),
    option(
        "--optimizer",
        "training.optimizer",
        "adamw, adamw-8bit, sgd, adafactor, lion, muon …",
        complete=choices("Optimizer"),
    ),
    option("--framework", "framework", "The stack: any, fsdp2, deepspeed, megatron …", complete=choices("Framework")),
    option("--lora-rank", "training.lora.rank", "Rank of the adapters.", int),
    option("--lora-modules", "training.lora.target_modules", "Matrices with adapters, between commas.", read=_list),
    option("--lora-save", "training.lora.modules_to_save", "Modules trained whole, between commas.", read=_list),
    option("--lora-base-dtype", "training.lora.base_dtype", "What the frozen base is held in."),
    option("--lora-dropout", "training.lora.dropout", "How many of an adapter's inputs are dropped, 0 to 1.", float),
    option(
        "--double-quantization/--no-double-quantization",
        "training.lora.double_quantization",
        "QLoRA's scales quantized too.",
        bool,
    ),
    option(
        "--micro-batch --micro-batch-size",
        "training.micro_batch_size",
        "Sequences a rank takes at once; searched where absent.",
        int,
    ),
    option(
        "--recompute",
        "training.recompute",
        "none, selective, full, full:N for N layers of each stage, or every:N; searched where absent.",
        read=_recompute,
        complete=choices("RecomputeMode"),
    ),
    option(
        "--activation-offload/--no-activation-offload",
        "training.activation_offload",
        "Activations in host memory.",
        bool,
    ),
    option(
        "--fused-cross-entropy/--no-fused-cross-entropy",
        "training.fused_cross_entropy",
        "Logits never whole in memory.",
        bool,
    ),
    option("--attention", "training.attention", "flash or eager."),
    option(
        "--kernels",
        "training.kernels",
        "eager, fused, compiled or foak; absent: as the framework does.",
        complete=choices("KernelKind"),
    ),
    option(
        "--gradient-dtype", "training.gradient_dtype", "Absent: as the framework does.", complete=choices("StateDtype")
    ),
    option(
        "--optimizer-state-dtype",
        "training.optimizer_state_dtype",
        "Absent: as the framework does.",
        complete=choices("StateDtype"),
    ),
    option(
        "--expert-imbalance",
        "training.expert_imbalance",
        "How many times the mean the busiest rank's tokens are.",
        float,
    ),
    option(
        "--multi-token-prediction",
        "training.multi_token_prediction",
        "Layers that predict tokens behind the next one.",
        int,
    ),
    option("--dp --data-parallel", "layout.data_parallel", "Data parallel degree.", int, LAYOUT_PANEL),
    option("--tp --tensor-parallel", "layout.tensor_parallel", "Tensor parallel degree.", int, LAYOUT_PANEL),
    option("--pp --pipeline-parallel", "layout.pipeline_parallel", "Pipeline parallel degree.", int, LAYOUT_PANEL),
    option("--virtual-pipeline", "layout.virtual_pipeline", "Stages that one GPU holds.", int, LAYOUT_PANEL),
    option("--cp --context-parallel", "layout.context_parallel", "Context parallel degree.", int, LAYOUT_PANEL),
    option("--ep --expert-parallel", "layout.expert_parallel", "Expert parallel degree.", int, LAYOUT_PANEL),
    option(
        "--sequence-parallel/--no-sequence-parallel",
        "layout.sequence_parallel",
        "Norms split along the sequence.",
        bool,
        LAYOUT_PANEL,
    ),
    option(
        "--overlap-gradients/--no-overlap-gradients",
        "layout.overlap.gradients",
        "Their reduction behind the backward pass.",
        bool,
        LAYOUT_PANEL,
    ),
    option(
        "--overlap-parameters/--no-overlap-parameters",
        "layout.overlap.parameters",
        "Gathering updated parameters behind the forward pass.",
        bool,
        LAYOUT_PANEL,
    ),
    option(
        "--overlap-tensor-parallel/--no-overlap-tensor-parallel",
        "layout.overlap.tensor_parallel",
        "Tensor-parallel traffic behind products.",
        bool,
        LAYOUT_PANEL,
    ),
    option(
        "--overlap-expert-parallel/--no-overlap-expert-parallel",
        "layout.overlap.expert_parallel",
        "The exchange with experts behind another micro-batch.",
        bool,
        LAYOUT_PANEL,
    ),
    option("--zero --zero-stage", "layout.zero_stage", "ZeRO stage, 0 to 3.", int, LAYOUT_PANEL),
    option("--shard-group", "layout.shard_group", "Ranks that share one copy.", int, LAYOUT_PANEL),
    option(
        "--context-all-to-all",
        "layout.context_all_to_all",
        "Context ranks that exchange heads for tokens, 1 for a ring alone.",
        int,
        LAYOUT_PANEL,
    ),
    option(
        "--secondary-shard-group",
        "layout.secondary_shard_group",
        "Ranks that share a second copy of the weights, 1 for none.",
        int,
        LAYOUT_PANEL,
    ),
    option("--offload", "layout.offload", "none, optimizer or optimizer+parameters.", panel=LAYOUT_PANEL),
    option("--offload-target", "layout.offload_target", "cpu or nvme.", panel=LAYOUT_PANEL),
    option(
        "--pipeline-layout",
        "layout.pipeline_layout",
        "even, account-for-embedding-and-loss, first=N,last=M or a list such as 'Et*7|(t*8|)*14t*7L'.",
        panel=LAYOUT_PANEL,
    ),
    option("--pipeline-schedule", "layout.pipeline_schedule", "1f1b, gpipe or pipedream.", panel=LAYOUT_PANEL),
    option(
        "--gradient-compression",
        "training.gradient_compression",
        "bf16, fp16 or powersgd on ddp, 1-bit on deepspeed.",
    ),
    option(
        "--objective",
        "objective",
        "throughput, fewest_gpus, cost or deadline.",
        panel=RUN_PANEL,
        complete=choices("TrainingObjective"),
    ),
    option("--deadline-seconds", "deadline_seconds", "With objective deadline.", float, RUN_PANEL),
    option(
        "--gpu-failures-per-month",
        "resilience.gpu_failures_per_month",
        "The part of the GPUs that fails in a month, or pessimistic.",
        panel=RUN_PANEL,
        read=_number_or_word,
    ),
    option(
        "--restart-seconds", "resilience.restart_seconds", "From a failure until processes run again.", float, RUN_PANEL
    ),
    option(
        "--warm-up-seconds",
        "resilience.warm_up_seconds",
        "After a restart, until steps are as fast as before.",
        float,
        RUN_PANEL,
    ),
    option(
        "--checkpoint-bytes-per-second",
        "resilience.checkpoint_bytes_per_second",
        "What one GPU writes of a checkpoint.",
        float,
        RUN_PANEL,
    ),
    option(
        "--target-availability",
        "resilience.target_availability",
        "The part of the time for which enough nodes are to be up.",
        float,
        RUN_PANEL,
    ),
    option("--repair-seconds", "resilience.repair_seconds", "Until a failed node is back.", float, RUN_PANEL),
    option(
        "--validate",
        "validate",
        "Prove the plan at once: none, count or trace.",
        panel=RUN_PANEL,
        complete=choices("ValidationLevel"),
    ),
)
