"""Megatron-LM's arguments: layout, batch, recompute and precision beside the model's dimensions.

Names: Megatron-LM, `megatron/training/arguments.py`; the same, with underscores,
are fields of megatron-core's `TransformerConfig` and `ModelParallelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plimsoll.planners.formats.precision import FP8_BLOCK_MIXED, FP8_MIXED, MXFP8_MIXED, NVFP4_MIXED
from plimsoll.planners.jobs.recompute_modules import NOT_WITH_DELAYED_SCALING
from plimsoll.planners.plans import Layout
from plimsoll.service.launch.options import Value, option_lines
from plimsoll.service.launch.script import OWN_SCRIPT, Script
from plimsoll.service.launch.training import LEARNING_RATE, Target, TrainingLaunch, given_reasons
from plimsoll.service.stacks.megatron.context import context_options
from plimsoll.service.stacks.megatron.flags import FLAGS, LOSSES
from plimsoll.service.stacks.megatron.model import model_options, why_not_plain
from plimsoll.service.stacks.megatron.pipelines import chunk_fields, division_fields
from plimsoll.service.workloads.commands.flags import named

PRECISIONS: Mapping[str, Mapping[str, Value]] = {
    "bf16-mixed": {"bf16": True},
    "fp16-mixed": {"fp16": True},
    FP8_MIXED: {"bf16": True, "fp8-format": "hybrid"},
    MXFP8_MIXED: {"bf16": True, "fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    FP8_BLOCK_MIXED: {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "blockwise"},
    NVFP4_MIXED: {"bf16": True, "fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
    "fp32": {},
}
MUON, DEALT_MUON = "muon", "dist_muon"
BLOCKWISE = "blockwise"  # each tensor-parallel rank orthogonalizes its own part of a matrix
OPTIMIZERS: Mapping[str, Mapping[str, Value]] = {
    "adamw": {"optimizer": "adam"},
    "sgd-momentum": {"optimizer": "sgd", "sgd-momentum": 0.9},
    MUON: {"optimizer": "muon", "muon-tp-mode": BLOCKWISE},
}
STATE_DTYPES = frozenset({"fp32", "fp16", "bf16", "fp8"})  # --exp-avg-dtype
MULTI_TOKEN_LOSS_FACTOR = 0.1  # the default of --mtp-loss-scaling-factor
CURRENT_SCALING = "tensorwise"  # --fp8-recipe: a scale of each tensor, as delayed scaling has, of its present values
KEEPS_WEIGHTS = "NVTE_CPU_OFFLOAD_V1=1"
GRADIENT_DTYPES = frozenset({"fp32", "bf16"})  # --main-grads-dtype


def why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return what of a plan Megatron-LM's arguments cannot say."""
    question, layout = launch.question, launch.layout
    chosen = question.gradient_dtype is not None or question.optimizer_state_dtype is not None
    return given_reasons(
        (question.precision not in PRECISIONS, f"Megatron-LM has no option for precision {question.precision}."),
        (question.optimizer not in OPTIMIZERS, f"Megatron-LM has no optimizer {question.optimizer}."),
        (
            chosen and layout.zero_stage == 0,
            "Megatron-LM's dtypes of gradients and optimizer states need its distributed optimizer (zero_stage 1).",
        ),
        (chosen and question.optimizer == MUON, "Megatron-LM's Muon has no dtypes of its gradients and states."),
        (
            question.optimizer_state_dtype not in (None, *STATE_DTYPES),
            f"--exp-avg-dtype cannot be {question.optimizer_state_dtype}.",
        ),
        (
            question.gradient_dtype not in (None, *GRADIENT_DTYPES),
            f"--main-grads-dtype cannot be {question.gradient_dtype}.",
        ),
        (
            layout.recompute_layers is not None and layout.recompute_layers % layout.virtual_pipeline != 0,
            f"{layout.recompute_layers} recomputed layers do not divide over {layout.virtual_pipeline} virtual stages.",
        ),
        (
            layout.offload != "none"
            and bool(question.low_precision_weights)
            and (question.precision != FP8_MIXED or scales_as_it_goes(launch)),
            "--optimizer-cpu-offload and --fp8-param-gather need delayed scaling of whole tensors.",
        ),
        (
            _recomputes_otherwise(launch),
            "--recompute-num-layers counts for every virtual stage, and some have too few layers for the plan.",
        ),
    ) + why_not_plain(launch.model_config)


def _recomputes_otherwise(launch: TrainingLaunch) -> bool:
    """Return whether virtual stages of unlike numbers of layers recompute fewer of them than the plan counts."""
    layers, chunks = launch.layout.recompute_layers, launch.layout.virtual_pipeline
    if layers is None or chunks == 1:
        return False
    stages = [[last - first + 1 for first, last in stage.chunks] for stage in launch.plan.sharding.stages]
    return any(sum(min(layers // chunks, count) for count in held) < min(layers, sum(held)) for held in stages)


def recompute_fields(layout: Layout) -> dict[str, Value]:
    """Return granularity, method and number of layers, as fields of Megatron-Core's config.

    `uniform` by one layer keeps every layer's input; `block` recomputes the first
    layers of each stage, or of each virtual one where a stage has several.
    """
    if layout.recompute == "none":
        return {}
    granularity: dict[str, Value] = {"recompute_granularity": layout.recompute}
    if layout.recompute == "selective":
        return granularity
    if layout.recompute_layers is None:
        return {**granularity, "recompute_method": "uniform", "recompute_num_layers": 1}
    layers = layout.recompute_layers // layout.virtual_pipeline
    return {**granularity, "recompute_method": "block", "recompute_num_layers": layers}


def recompute_options(layout: Layout) -> dict[str, Value]:
    """Return the same as arguments."""
    return {name.replace("_", "-"): value for name, value in recompute_fields(layout).items()}


def _offload_options(layout: Layout) -> dict[str, Value]:
    """Return which parts of layers send to the host what they keep, or how many layers do."""
    if not layout.activation_offload:
        return {}
    if layout.offload_layers is not None:
        return named(FLAGS, offloaded_layers=layout.offload_layers)
    return {**named(FLAGS, activation_offload=True), "offload-modules": layout.offload_modules}


def scales_as_it_goes(launch: TrainingLaunch) -> bool:
    """Return whether products in fp8 need other scaling than the delayed one that is the default."""
    modules = launch.layout.recompute_modules
    return launch.question.precision == FP8_MIXED and any(name in modules for name in NOT_WITH_DELAYED_SCALING)


def megatron_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return all arguments but those of the data; the accumulation follows from the two batch sizes."""
    question, layout = launch.question, launch.layout
    return {
        **model_options(launch),
        **_multi_token_options(launch),
        **layout_options(launch),
        **batch_options(launch),
        "train-iters": launch.steps,
        "lr": LEARNING_RATE,
        **PRECISIONS[question.precision],
        **_optimizer_options(launch),
        **_precision_options(launch),
        **_weights_options(launch),
        **recompute_options(layout),
        "recompute-modules": layout.recompute_modules or None,
        **_offload_options(layout),
        **({"fp8-recipe": CURRENT_SCALING} if scales_as_it_goes(launch) else {}),
        # Transformer Engine chooses among its kernels unless it is told.
        "attention-backend": None if question.attention == "flash" else "unfused",
        "cross-entropy-loss-fusion": question.kernels is not None,
        "cross-entropy-fusion-impl": next(
            (name for name, kernels in LOSSES.items() if kernels == question.kernels), None
        ),
        "tokenizer-type": "HuggingFaceTokenizer",
        "tokenizer-model": launch.model_path,
    }


def _weights_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return what holds weights in 8 or 4 bits alone; those of mxfp8 are gathered in 16 bits, where gradients lie."""
    question = launch.question
    if not question.low_precision_weights:
        return {}
    shared = {"reuse-grad-buf-for-mxfp8-param-ag": True} if question.precision == MXFP8_MIXED else {}
    return {**named(FLAGS, low_precision_weights=True), **shared}


def batch_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return a sequence's tokens, and the sequences of a micro-batch and of a step."""
    return named(
        FLAGS,
        sequence_length=launch.question.sequence_length,
        micro_batch_size=launch.layout.micro_batch_size,
        global_batch_size=launch.question.global_batch_size,
    )


def layout_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return the degrees, and which traffic the plan counts as hidden.

    Transformer Engine's layers hide some of the tensor-parallel traffic without an option; who asks for it by name
    means the one with buffers of its own.
    """
    layout = launch.layout
    chunks = layout.pipeline_parallel * layout.virtual_pipeline
    has_experts_apart = layout.expert_parallel > 1
    is_divided = layout.zero_stage > 0 and launch.question.optimizer != MUON
    way, layers = layout.pipeline_layout, launch.question.model.num_layers // chunks
    copies = layout.data_parallel // layout.shard_group if is_divided and launch.is_hybrid else None
    return {
        **named(
            FLAGS,
            tensor_parallel=layout.tensor_parallel,
            pipeline_parallel=layout.pipeline_parallel,
            **division_fields(way),
            **chunk_fields(way, layout.virtual_pipeline, layers),
            context_parallel=layout.context_parallel,
            **context_options(layout),
            expert_parallel=layout.expert_parallel if has_experts_apart else None,
        ),
        "expert-tensor-parallel-size": launch.expert_tensor_parallel if has_experts_apart else None,
        **named(
            FLAGS,
            sequence_parallel=layout.sequence_parallel,
            distributed_optimizer=is_divided,
            optimizer_copies=copies,
        ),
        **_overlap_options(launch),
    }


def _multi_token_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return how many layers predict tokens behind the next one, and the weight of their losses, Megatron-LM's own."""
    layers = launch.question.multi_token_prediction
    if not layers:
        return {}
    return {**named(FLAGS, multi_token_prediction=layers), "mtp-loss-scaling-factor": MULTI_TOKEN_LOSS_FACTOR}


def _overlap_options(launch: TrainingLaunch) -> dict[str, Value]:
    layout = launch.layout
    hidden, hides = layout.overlap, launch.question.optimizer != MUON
    has_replicas = layout.data_parallel * layout.context_parallel > 1
    return named(
        FLAGS,
        overlap_gradients=hidden.gradients if hidden else has_replicas and hides,
        overlap_parameters=hidden.parameters if hidden else has_replicas and layout.zero_stage > 0 and hides,
        overlap_tensor_parallel=bool(hidden and hidden.tensor_parallel) or None,
        overlap_expert_parallel=bool(hidden and hidden.expert_parallel) or None,
    )


def _optimizer_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return the optimizer; Muon that divides its states has another name."""
    is_dealt = launch.question.optimizer == MUON and launch.layout.zero_stage > 0
    return {**OPTIMIZERS[launch.question.optimizer], **({"optimizer": DEALT_MUON} if is_dealt else {})}


def _precision_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return the dtypes of the distributed optimizer where the question fixes one, and whether it is on the host.

    The option of the former is needed for the latter too (arguments.py, validate_args).
    """
    states, gradients = launch.question.optimizer_state_dtype, launch.question.gradient_dtype
    is_on_host = launch.layout.offload != "none"
    if states is None and gradients is None and not is_on_host:
        return {}
    return {
        **named(FLAGS, precision_aware=True, moment_dtype=states),
        "exp-avg-sq-dtype": states,
        **named(FLAGS, gradient_dtype=gradients, offload=is_on_host or None, offloaded=1.0 if is_on_host else None),
    }


def _text(launch: TrainingLaunch) -> str:
    return "\n".join(option_lines(megatron_options(launch)))


def _script(launch: TrainingLaunch) -> Sequence[str]:
    return OWN_SCRIPT if why_not(launch) else ("pretrain_gpt.py", *option_lines(megatron_options(launch)))


def environment(launch: TrainingLaunch) -> Sequence[str]:
    """Return what Megatron-LM insists on (arguments.py, validate_args), and threads for states on the host.

    Kernels and messages are to keep their order, and Transformer Engine from 2.10 on is to send no weights to the host.
    """
    layout = launch.layout
    variables = [KEEPS_WEIGHTS] if layout.offload_modules else []
    if layout.offload != "none":
        # torchrun gives each process one.
        variables.append(f"OMP_NUM_THREADS=$(($(nproc) / {launch.processes_per_node}))")
    if layout.overlap is not None and layout.overlap.expert_parallel:
        # Docs, user-guide/features/moe_a2a_overlap.md: more than one, so that both streams go on; recipes have 32.
        return ("CUDA_DEVICE_MAX_CONNECTIONS=32", *variables)
    in_order = layout.tensor_parallel > 1 or layout.context_parallel > 1
    return (*(("CUDA_DEVICE_MAX_CONNECTIONS=1",) if in_order else ()), *variables)


MEGATRON = Target(name="megatron", why_not=why_not, write=_text, saved_as="megatron.txt", names_recomputed_modules=True)
# It has no argument for replicas or accumulation.
SCRIPT = Script(words=_script, environment=environment, derives_replicas=lambda _launch: True)
