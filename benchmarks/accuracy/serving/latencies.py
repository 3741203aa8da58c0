"""Measured latencies, with the roofline's terms of the same deployment."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable, PlimsollError
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.degrees import Degrees, has_experts
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.serving.replica import Replica, plan_replica
from plimsoll.planners.serving.settings.settings import Settings, resolve_settings
from plimsoll.planners.serving.times.replica_work import ReplicaWork, replica_work
from plimsoll.planners.serving.traffic import Traffic
from plimsoll.planners.serving.weights.stages import replica_stages

LATENCIES = Path(__file__).parents[2] / "data" / "serving_latency.csv"
GPUS = {
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "H200": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-180gb",
    "b300_sxm": "b300-sxm-270gb",
}
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
MODELS = {"zhipuai/GLM-5": "zai-org/GLM-5"}
FORMATS = {"fp8": "fp8", "fp4": "nvfp4", "bf16": "bf16", "int4": "int4", "": "bf16"}
# Whose makers publish them in 8 bits with a scale for each block of so many features each way.
WITH_SCALE_BLOCKS, SCALE_BLOCK = ("DeepSeek", "Qwen3", "GLM"), 128
# Beyond a node of 8 the rows do not say what links the cards.
MOST_GPUS = 8
MILLISECONDS = 1e3
# Images with which the sweep (github.com/SemiAnalysisAI/InferenceX, nvidia-master.yaml at 48f302c) serves
# DeepSeek-R1 with multi-token prediction: the first always, the other with and without, and rows do not say which.
DRAFTING_IMAGE, MAYBE_DRAFTING_IMAGE = "1.2.0rc6.post3", "1.1.0rc2.post2"
# What that image drafts (the same file): 1 token where ranks divide the attention by requests, else 3.
DRAFTS, DRAFTS_OF_ATTENTION_RANKS = 3, 1
# Rows of the sweep by their id: a day in front, or a configuration's number behind.
SWEEP_ID = re.compile(r"^\d{4}_|_cfg\d+$")
DEPLOYMENT = ("engine", "version", "model", "gpu", "precision", "tp", "pp", "attn_dp", "moe_ep")
DRAFTS_TOKENS = "drafts tokens: in a table of their own"
CLIENTS = re.compile(r"_c(\d+)_")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCase:
    """One measurement; `family` groups the sizes and versions of one model that are left out together.

    `source` is the campaign that measured it. `deployment` names everything but the load. `replica` is what is planned
    of its memory, None where the cache is not described, and `places` how many requests are planned to run at once.
    """

    engine: str
    family: str
    gpu: str
    source: str
    deployment: str
    work: ReplicaWork
    question: ServingQuestion
    settings: Settings
    replica: Replica | None
    batch: float
    traffic: Traffic
    token_seconds: float
    first_token_seconds: float | None

    @property
    def places(self) -> int | None:
        """Return how many requests are planned to run at once."""
        return None if self.replica is None else self.replica.places

    @property
    def request_seconds(self) -> float:
        """Return the time from a request to its last token."""
        return (self.first_token_seconds or 0.0) + (self.traffic.output_tokens - 1) * self.token_seconds


def latency_cases() -> tuple[tuple[LatencyCase, ...], Counter[str]]:
    """Return the aggregated rows whose layout is whole, and how many others there are, by reason."""
    cases: list[LatencyCase] = []
    left_out: Counter[str] = Counter()
    with LATENCIES.open(encoding="utf-8", newline="") as file:
        for printed in csv.DictReader(file):
            row = _repaired(printed)
            reason = _reason_to_leave(row)
            if reason is None:
                try:
                    case = _case(row)
                    reason = DRAFTS_TOKENS if _image_of_drafts(row) else _reason_to_doubt(case)
                except PlimsollError as refused:
                    reason = f"refused: {refused}"
            if reason is None:
                cases.append(case)
            else:
                left_out[reason] += 1
    return tuple(cases), left_out


def drafting_cases() -> tuple[LatencyCase, ...]:
    """Return the rows whose image drafts tokens, with how many; what part of them was accepted is not printed."""
    with LATENCIES.open(encoding="utf-8", newline="") as file:
        rows = [_repaired(row) for row in csv.DictReader(file) if _image_of_drafts(row) == DRAFTING_IMAGE]
    found = []
    for case in (_case(row) for row in rows if _reason_to_leave(row) is None):
        drafts = DRAFTS_OF_ATTENTION_RANKS if case.work.attention_data_parallel > 1 else DRAFTS
        found.append(replace(case, traffic=replace(case.traffic, draft_tokens=drafts)))
    return tuple(found)


def _image_of_drafts(row: Mapping[str, str]) -> str | None:
    """Return the image of a row if it drafts tokens or may."""
    images = (DRAFTING_IMAGE, MAYBE_DRAFTING_IMAGE)
    drafts = row["engine"] == "trtllm" and row["version"] in images and "DeepSeek" in row["model"]
    return row["version"] if drafts else None


def _repaired(row: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row with the degrees and the clients that its id names.

    Rows of the sweep with experts divided both ways print tensor x expert parallelism as
    their degree and their GPUs: tp4_ep4 of an id stands beside 16. Where ids name the
    clients, some rows print them divided by the GPUs or by the ranks of attention.
    """
    name = _id(row)
    repaired = dict(row)
    found = CLIENTS.search(name)
    ranks = max(1, int(row["attn_dp"] or 1))
    repaired["clients"] = found.group(1) if found else row["concurrency_or_batch"]
    divided, dealt = int(row["moe_tp"] or 0), int(row["moe_ep"] or 0)
    degrees = int(row["tp"] or 1) * ranks
    if SWEEP_ID.search(name) and min(divided, dealt) > 1 and divided * dealt == degrees:
        degree = "tp" if ranks == 1 else "attn_dp"
        repaired.update({degree: str(divided), "gpus": str(divided), "moe_tp": str(divided // dealt)})
    return repaired


def _id(row: Mapping[str, str]) -> str:
    return row["source"].partition(" id=")[2]


def _reason_to_leave(row: Mapping[str, str]) -> str | None:
    if row["mode"] != "agg" or row["engine"] not in ENGINES or not row["tpot_ms"]:
        return "throughput only, or another mode"
    if row["gpu"] not in GPUS or int(row["gpus"]) > MOST_GPUS:
        return "more than a node, or a rack's card"
    if _image_of_drafts(row) == MAYBE_DRAFTING_IMAGE:
        return "may draft tokens: the row does not say"
    degrees = [max(1, int(row[name] or 1)) for name in ("tp", "pp", "attn_dp")]
    if degrees[0] * degrees[1] * degrees[2] != int(row["gpus"]):
        return "degrees do not multiply to the GPUs"
    expert_ranks = int(row["moe_tp"] or 0) * int(row["moe_ep"] or 0)
    if expert_ranks > 1 and expert_ranks != degrees[0] * degrees[2]:
        return "experts are divided over other ranks than the layers"
    return None


def _reason_to_doubt(case: LatencyCase) -> str | None:
    """Return why a measurement is not of what its row prints."""
    if case.places is not None and case.batch > case.places:
        return "more requests at once than the cache is planned to hold"
    if _prompts_seconds(case) > case.request_seconds:
        return "faster than its prompts' operators alone: prompts were cached, or fewer requests ran"
    return None


def _prompts_seconds(case: LatencyCase) -> float:
    """Return what the operators of the prompts take that a rank's requests send in the time of one."""
    requests = max(1.0, case.batch / case.work.attention_data_parallel)
    return requests * case.work.prompt_pass_seconds(case.traffic.input_tokens)


def _replica(question: ServingQuestion, settings: Settings, degrees: Degrees) -> Replica | None:
    """Return what is planned of a replica, None where an engine's cache for the model is not described."""
    try:
        return plan_replica(question, settings, degrees)
    except NotYetAvailable:
        return None


def _case(row: Mapping[str, str]) -> LatencyCase:
    spec = _model(row["model"])
    gpus = int(row["gpus"])
    degrees = Degrees(
        tensor_parallel=int(row["tp"] or 1),
        pipeline_parallel=int(row["pp"] or 1),
        attention_data_parallel=max(1, int(row["attn_dp"] or 1)),
        expert_parallel=max(1, int(row["moe_ep"] or 1)) if has_experts(spec) else 1,
    )
    hardware = Hardware(
        gpu=catalogue().gpu(GPUS[row["gpu"]]), gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=MOST_GPUS
    )
    sequence = int(row["isl"]) + int(row["osl"])
    weights = _weights(row)
    question = ServingQuestion(
        model=spec,
        hardware=hardware,
        weights=weights,
        scale_block=SCALE_BLOCK if weights == "fp8" and _has_scale_blocks(row["model"]) else None,
        engine=ENGINES[row["engine"]],
        engine_version=_release(row),
        max_model_len=sequence,
        input_tokens=int(row["isl"]),
        output_tokens=int(row["osl"]),
    )
    settings = resolve_settings(question)
    stages = replica_stages(spec, settings.weights, degrees, engine=ENGINES["vllm"])
    return LatencyCase(
        engine=row["engine"],
        family=_family(row["model"]),
        gpu=row["gpu"],
        source="sweep" if SWEEP_ID.search(_id(row)) else "NVIDIA",
        deployment="|".join(row[name] for name in DEPLOYMENT),
        work=replica_work(spec, settings, hardware, stages, degrees, has_scale_blocks=question.scale_block is not None),
        question=question,
        settings=settings,
        replica=_replica(question, settings, degrees),
        batch=float(row["clients"]),
        traffic=Traffic(input_tokens=int(row["isl"]), output_tokens=int(row["osl"])),
        token_seconds=float(row["tpot_ms"]) / MILLISECONDS,
        first_token_seconds=float(row["ttft_ms"]) / MILLISECONDS if row["ttft_ms"] else None,
    )


def _release(row: Mapping[str, str]) -> str | None:
    """Return the release that a row names if it is known, else None for the newest."""
    try:
        return engine_profile(ENGINES[row["engine"]], row["version"] or None).version
    except InvalidQuestion:
        return None


def _has_scale_blocks(name: str) -> bool:
    """Return whether a model's checkpoints in 8 bits have scales by blocks; Llama's have not."""
    return any(part in name for part in WITH_SCALE_BLOCKS)


def _model(name: str) -> ModelSpec:
    found = catalogue().model(MODELS.get(name, name))
    return describe_config(found.config, name=found.id)


def _weights(row: Mapping[str, str]) -> str:
    if "gpt-oss" in row["model"]:
        return "mxfp4"
    is_fp8 = not row["precision"] and ("FP8" in row["model"] or "DeepSeek" in row["model"])
    return "fp8" if is_fp8 else FORMATS[row["precision"]]


def _family(name: str) -> str:
    short = name.split("/")[-1]
    for suffix in ("-Instruct", "-FP8", "-NVFP4"):
        short = short.replace(suffix, "")
    # R1 and V3.1 have V3's shapes.
    return "DeepSeek-V3" if short.startswith("DeepSeek") else short
