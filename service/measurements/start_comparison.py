"""A start-up log beside the plan of the same start: what is compared, and what must agree for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.learned import Learned, Ranks
from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.lessons import MeasuredStart, PlannedStart
from plimsoll.planners.serving.releases.profile import engine_profile, minor_version
from plimsoll.planners.serving.startup_log import LOG_POINTER, StartupLog
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.plans.stored_bodies import plan_body

# What a log measures, under the names in which runs are reported.
QUANTITIES = (
    "weights_bytes", "activations_bytes", "runtime_bytes", "cuda_graphs_bytes", "kv_available_bytes", "kv_tokens",
    "kv_blocks", "kv_max_concurrency",
)  # fmt: skip
# A utilization is printed with two digits.
PRINTED_FRACTION = 0.005


def logged_quantities(log: StartupLog) -> dict[str, int | float]:
    """Return what a log measured, under the names in which runs are reported."""
    return {quantity: value for quantity in QUANTITIES if (value := getattr(log, quantity)) is not None}


def serving_predictions(planned: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what a serving plan predicts of one GPU: the fullest stage's items, the emptiest one's cache."""
    stages = planned["memory"]["stages"]
    performance: Mapping[str, Any] = planned["performance"] or {}

    def fullest(item: str) -> int:
        return max(int(stage["items"][item]) for stage in stages)

    return {
        "peak_bytes": planned["memory"]["peak_bytes"],
        "weights_bytes": fullest("weights"),
        "activations_bytes": fullest("activations"),
        "runtime_bytes": fullest("runtime"),
        "cuda_graphs_bytes": fullest("cuda_graphs"),
        "kv_available_bytes": min(stage["available_bytes"] for stage in stages),
        "kv_tokens": planned["kv"]["tokens"],
        "kv_blocks": planned["kv"]["blocks"],
        "kv_max_concurrency": planned["kv"]["max_concurrency"],
        **{name: performance.get(name) for name in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second")},
    }


def refuse_another_start(log: StartupLog, plan: StoredPlan) -> None:
    """Raise `InvalidQuestion` where a log is of another engine, layout or setting than the plan."""
    if plan.kind != "infer":
        raise InvalidQuestion("The plan is of a training job, and a start-up log of a server.", pointer="/plan_id")
    planned = plan_body(plan)["plan"]
    settings, layout = planned["settings"], planned["layout"]
    version = minor_version(settings["engine_version"])
    attention = layout["attention_data_parallel"]
    ranks = layout["tensor_parallel"] * (attention if log.has_attention_data_parallel else 1)
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("engine", log.engine, settings["engine"]),
        ("engine_version", log.engine_version, version),
        ("tensor_parallel", log.tensor_parallel, ranks),
        ("pipeline_parallel", log.pipeline_parallel, layout["pipeline_parallel"]),
        ("decode_context_parallel", log.decode_context_parallel, layout["decode_context_parallel"]),
        ("max_model_len", log.max_model_len, settings["max_model_len"]),
        ("max_num_batched_tokens", log.max_num_batched_tokens, settings["max_num_batched_tokens"]),
        ("max_num_seqs", log.max_num_seqs, settings["max_num_seqs"]),
    )
    for name, said, of_plan in pairs:
        if said is not None and said != of_plan:
            _refuse(name, said, of_plan)
    said, of_plan = log.gpu_memory_utilization, settings["gpu_memory_utilization"]
    if said is not None and abs(said - of_plan) > PRINTED_FRACTION:
        _refuse("gpu_memory_utilization", said, of_plan)


def _refuse(name: str, said: Any, of_plan: Any) -> None:
    raise InvalidQuestion(
        f"The log is of another start: its {name} is {said}, the plan's is {of_plan}. Plan that start and report "
        "with its plan_id, or leave plan_id away.",
        pointer=LOG_POINTER,
    )


def planned_start(plan: StoredPlan) -> PlannedStart:
    """Return what a stored serving plan says of one GPU, as the planner learns from it."""
    planned = plan_body(plan)["plan"]
    settings, memory, layout = planned["settings"], planned["memory"], planned["layout"]
    predicted = serving_predictions(planned)
    binding = next(stage for stage in memory["stages"] if stage["items"] == memory["items"])
    return PlannedStart(
        profile=engine_profile(settings["engine"], settings["engine_version"]),
        ranks=_ranks(layout),
        utilization_fraction=settings["gpu_memory_utilization"],
        card_bytes=plan_gpu(plan)["memory_bytes"],
        weights_bytes=memory["items"]["weights"],
        stage_weights_bytes=int(predicted["weights_bytes"] or 0),
        activations_bytes=memory["items"]["activations"],
        runtime_bytes=memory["items"]["runtime"],
        cuda_graphs_bytes=memory["items"]["cuda_graphs"],
        available_bytes=binding["available_bytes"],
        ttft_seconds=predicted["ttft_seconds"],
        tpot_seconds=predicted["tpot_seconds"],
        learned=None if planned["learned"] is None else Learned(**planned["learned"]),
    )


def plan_gpu(plan: StoredPlan) -> Mapping[str, Any]:
    """Return the figures of the card that a plan chose."""
    asked = plan.request["hardware"]
    chosen = next(one for one in asked.get("fleet", [asked]) if one["gpu"]["id"] == plan.gpu)
    figures: Mapping[str, Any] = chosen["gpu"]
    return figures


def measured_start(engine: str, measured: Mapping[str, int | float]) -> MeasuredStart:
    """Return what was measured, as the planner learns from it; nothing of what the engine does not tell apart."""

    def whole(name: str) -> int | None:
        return None if name not in measured else round(measured[name])

    is_apart = engine_named(engine).measures_apart
    return MeasuredStart(
        weights_bytes=whole("weights_bytes"),
        activations_bytes=whole("activations_bytes") if is_apart else None,
        runtime_bytes=whole("runtime_bytes") if is_apart else None,
        cuda_graphs_bytes=whole("cuda_graphs_bytes") if is_apart else None,
        available_bytes=whole("kv_available_bytes"),
        ttft_seconds=measured.get("ttft_seconds"),
        tpot_seconds=measured.get("tpot_seconds"),
    )


def _ranks(layout: Mapping[str, int]) -> Ranks:
    if layout["tensor_parallel"] * layout["attention_data_parallel"] > 1:
        return Ranks.TENSOR
    return Ranks.PIPELINE if layout["pipeline_parallel"] > 1 else Ranks.SINGLE
