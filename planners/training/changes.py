"""Changes to a training job in the order practitioners try them; whether they help is for the advice to plan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import GpuCount
from plimsoll.planners.ground.terms import NVME
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.memory.host_words import is_host_sure
from plimsoll.planners.plans import Memory, TrainingAnswer
from plimsoll.planners.questions import LayoutRequest, Recompute, TrainingQuestion
from plimsoll.planners.stacks.profile import load_profile, textbook
from plimsoll.planners.training.notes import OFFLOADED

# More than eight times the GPUs is another project, not advice; small jobs may look as far as eight nodes.
MOST_TIMES_THE_GPUS = 8
LEAST_REACH_GPUS = 64
# Nobody is advised to find more GPUs than the largest training clusters have (xAI's Colossus: 100,000 to 200,000).
MOST_ADVISED_GPUS = 131_072
SHORTEST_SEQUENCE = 512
# Of a tight plan's GPUs so many times as many are tried for room, in whole nodes where there are several.
TIMES_FOR_ROOM = (Fraction(5, 4), Fraction(3, 2), 2, 3, 4, 6, 8)
# Of changes that are more and more of one thing, so many are planned before the thing is given up.
MOST_TRIES = 4
# What each of these changes of the result is said in its offer.
WIDE_PRECISIONS, MIXED_PRECISIONS = ("fp32", "tf32"), ("bf16-mixed", "fp16-mixed")
# ZeRO's stages in the order of what they cost in time, offload between them (Rajbhandari et al. 2020,
# arXiv:1910.02054; Ren et al. 2021, arXiv:2101.06840).
ZERO_STEPS = (
    (1, "none"),
    (2, "none"),
    (2, "optimizer"),
    (3, "none"),
    (3, "optimizer"),
    (3, "optimizer+parameters"),
)
# What in a model's id is its size, as in "Llama-3.1-70B", "Qwen1.5-1.8B" or "pythia-160m".
SIZE_IN_ID = re.compile(r"\d+(\.\d+)?x?\d*[bm](?![a-z])", re.IGNORECASE)
TOGETHER = "The job fits only with all these changes together."
BOTH = "The job fits with both changes, and with neither of them alone."
# So many pairs of changes are planned before all changes are made at once.
MOST_PAIRS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed question; of changes of one `kind` only the first that fits is offered."""

    kind: str
    change: Mapping[str, Any]
    question: TrainingQuestion
    reason: str


def keeping_the_result(pinned: TrainingQuestion) -> Iterator[Change]:
    """Yield what changes neither the job's result nor its GPUs; `pinned` is the question on the answer's GPUs."""
    yield from _same_step(pinned)
    yield from _recompute(pinned)
    yield from _activations(pinned)
    yield from _zero_steps(pinned)
    yield from _free_degrees(pinned)


def host_memory(pinned: TrainingQuestion, memory: Memory) -> Iterator[Change]:
    """Yield the host memory that the plan needs, in whole GiB, where nodes may have less and it lacks nothing else."""
    if is_host_sure(memory) or memory.peak_bytes > memory.limit_bytes:
        return
    needed = -(-(memory.node_host_bytes or 0) // GIB) * GIB
    yield Change(
        kind="host memory",
        change={"hardware.host_memory_bytes": needed},
        question=replace(pinned, hardware=replace(pinned.hardware, host_memory_bytes=needed)),
        reason=f"For nodes that have {needed / GIB:,.0f} GiB of host memory or more.",
    )


def changing_more(
    asked: TrainingQuestion, pinned: TrainingQuestion, answer: TrainingAnswer, *, with_drives: bool = False
) -> Iterator[Change]:
    """Yield what changes the result, and then the GPUs and the model; `asked` says how many GPUs there may be.

    States on drives, which are slower than either, come before the GPUs where nothing else left the result as it was.
    """
    yield from _narrower_states(pinned)
    yield from _adapters(pinned)
    yield from _shorter_sequences(pinned)
    yield from _other_batches(pinned)
    if with_drives:
        yield from _on_drives(pinned, answer)
    yield from _fewer_gpus(asked, answer)
    yield from _more_gpus(asked, answer)
    yield from _other_gpus(pinned, answer.plan.memory.peak_bytes)
    yield from _smaller_models(pinned)


def _same_step(question: TrainingQuestion) -> Iterator[Change]:
    """Yield what leaves the job's result as it is, the cheapest first."""
    if question.fused_cross_entropy is False:
        yield _change(question, "A fused loss never holds the full logits.", fused_cross_entropy=True)
    if question.attention == "eager":
        yield _change(question, "Flash attention never holds the score matrix.", attention="flash")
    if (question.micro_batch_size or 1) > 1:
        reason = "Smaller micro-batches with more accumulation give the same step."
        yield _change(question, reason, micro_batch_size=1)


def _narrower_states(question: TrainingQuestion) -> Iterator[Change]:
    """Yield what holds weights, gradients or optimizer states in fewer bytes; each says what it does to the result."""
    if question.precision in WIDE_PRECISIONS:
        reason = (
            "Activations in bf16 take half the bytes; weights and updates stay in fp32, and results differ slightly as "
            "matrix products are rounded to bf16."
        )
        yield _change(question, reason, precision="bf16-mixed")
    if question.precision in (*WIDE_PRECISIONS, *MIXED_PRECISIONS):
        reason = (
            "Weights, gradients and optimizer states all in bf16 take at most half the bytes of fp32; small updates "
            "are rounded away, which can cost quality."
        )
        yield _change(question, reason, precision="bf16")
    narrow = {"adamw": "adamw-8bit", "paged-adamw": "paged-adamw-8bit"}.get(question.optimizer)
    if narrow is not None:
        reason = (
            "Adam's two moments in 8 bits take a quarter of their bytes; quantizing them changes the updates slightly."
        )
        yield _change(question, reason, optimizer=narrow)
        # The stack that was named may not have it.
        if question.framework != "any":
            changed = replace(question, optimizer=narrow, framework="any", framework_version=None)
            change = {"training.optimizer": narrow, "framework": None}
            yield Change(kind="optimizer", change=change, question=changed, reason=reason)


def _change(question: TrainingQuestion, reason: str, **fields: Any) -> Change:
    ((name, value),) = fields.items()
    return Change(kind=name, change={f"training.{name}": value}, question=replace(question, **fields), reason=reason)


def _shorter_sequences(question: TrainingQuestion) -> Iterator[Change]:
    length = question.sequence_length // 2
    while length >= SHORTEST_SEQUENCE:
        yield _change(question, "A shorter sequence keeps fewer activations.", sequence_length=length)
        length //= 2


def _other_batches(question: TrainingQuestion) -> Iterator[Change]:
    """Yield the nearest batches that divide over all GPUs, where this one does not: 15,360 sequences on 1,000 GPUs."""
    gpus, batch = question.hardware.gpus.minimum, question.global_batch_size
    if batch % gpus == 0:
        return
    reason = (
        "A batch that every GPU has an equal part of leaves all layouts open; its size changes the result slightly."
    )
    multiples = {batch // gpus * gpus, -(-batch // gpus) * gpus} - {0}
    for other in sorted(multiples, key=lambda multiple: abs(multiple - batch)):
        yield _change(question, reason, global_batch_size=other)


def _zero_steps(question: TrainingQuestion) -> Iterator[Change]:
    """Yield the steps above a fixed stage or a refused offload; what nobody fixed was searched already."""
    request = question.layout
    if request.zero_stage is None and request.offload is None:
        return
    now = (request.zero_stage if request.zero_stage is not None else 0, request.offload or "none")
    for stage, offload in ZERO_STEPS:
        if (stage, offload) <= now or (offload == "none" and request.zero_stage is None):
            continue
        changed = {
            name: value
            for name, value in (("zero_stage", stage), ("offload", offload))
            if getattr(request, name) != value and not (name == "offload" and offload == "none")
        }
        words = f"ZeRO stage {stage} shards more of the states"
        yield Change(
            kind=f"zero {stage} {offload}",
            change={f"layout.{name}": value for name, value in changed.items()},
            question=replace(question, layout=replace(request, **changed)),  # type: ignore[arg-type]
            reason=f"{words}." if offload == "none" else f"{words}, and the host holds the {OFFLOADED[offload]}.",
        )


def _recompute(question: TrainingQuestion) -> Iterator[Change]:
    if question.recompute is not None and question.recompute != Recompute(mode="full"):
        reason = "Full recompute keeps only each layer's input, for about a third more computation."
        changed = replace(question, recompute=Recompute(mode="full"))
        yield Change(kind="recompute", change={"training.recompute": "full"}, question=changed, reason=reason)


def _activations(question: TrainingQuestion) -> Iterator[Change]:
    """Yield activations on the host where that was refused; what nobody fixed was searched already."""
    if question.activation_offload is False:
        reason = "Activations wait in host memory for their backward pass, for copies over PCIe."
        changed = replace(question, activation_offload=True)
        change = {"training.activation_offload": True}
        yield Change(kind="activation_offload", change=change, question=changed, reason=reason)


def _free_degrees(question: TrainingQuestion) -> Iterator[Change]:
    """Yield degrees that were fixed and are searched instead, one by one and then all."""
    request = question.layout
    for field, words in (("tensor_parallel", "divides every layer"), ("pipeline_parallel", "divides the layers")):
        if getattr(request, field) is not None:
            others: dict[str, None] = dict.fromkeys(
                ("data_parallel", "shard_group", "secondary_shard_group", "sequence_parallel", field)
            )
            freed = replace(request, **others)
            reason = f"Another {field} {words} over the GPUs; data_parallel follows from it."
            yield Change(
                kind=field, change={f"layout.{field}": None}, question=replace(question, layout=freed), reason=reason
            )
    if request.pipeline_layout is not None:
        yield Change(
            kind="pipeline_layout",
            change={"layout.pipeline_layout": None},
            question=replace(question, layout=replace(request, pipeline_layout=None)),
            reason="Stages that are divided otherwise have room.",
        )
    kept = LayoutRequest(offload=request.offload, offload_target=request.offload_target)
    if request.offload is not None and request != kept:
        fields = {"offload": request.offload, "offload_target": request.offload_target}
        shown = {name: value for name, value in fields.items() if value is not None}
        reason = "With no degree fixed, the search finds a layout that fits."
        yield Change(kind="layout", change={"layout": shown}, question=replace(question, layout=kept), reason=reason)
    if request != LayoutRequest():
        reason = "With nothing of the layout fixed, the search finds one that fits."
        changed = replace(question, layout=LayoutRequest())
        yield Change(kind="layout", change={"layout": {}}, question=changed, reason=reason)
    if question.framework != "any":
        reason = "Another framework fits this job."
        changed = replace(question, framework="any", framework_version=None)
        yield Change(kind="framework", change={"framework": "any"}, question=changed, reason=reason)


def in_pairs(pinned: TrainingQuestion) -> Iterator[Change]:
    """Yield every two changes that leave the job's result as it is, those first that cost least by themselves."""
    singles = list(keeping_the_result(pinned))
    known = [single.change for single in singles]
    for first in singles:
        for second in keeping_the_result(first.question):
            change = _with_another(first.change, second.change)
            are_steps = first.kind.startswith("zero ") and second.kind.startswith("zero ")
            if change not in known and not are_steps and not _is_within(second, first):
                known.append(change)
                reason = f"{first.reason} {second.reason} {BOTH}"
                yield Change(kind="together", change=change, question=second.question, reason=reason)


def _is_within(change: Change, other: Change) -> bool:
    """Return whether a change fixes a field of a layout that the other one frees whole."""
    return "layout" in other.change and any(field.startswith("layout.") for field in change.change)


def _with_another(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both changes; a layout that is freed whole has no other field changed."""
    frees = "layout" in second
    return {field: value for field, value in first.items() if not (frees and field.startswith("layout"))} | {**second}


def together(pinned: TrainingQuestion) -> Iterator[Change]:
    """Yield all changes that leave the job's result as it is in one, where they are several."""
    change, free = _freed(pinned)
    if len(change) > 1:
        yield Change(kind="together", change=change, question=free, reason=TOGETHER)


def _on_drives(pinned: TrainingQuestion, answer: TrainingAnswer) -> Iterator[Change]:
    """Yield states on the nodes' NVMe drives for a job that does not fit: the last that spares the GPUs of others.

    Where the request says what the drives give they were searched already, unless it says where states are to go.
    """
    asked = pinned.layout
    was_searched = pinned.hardware.nvme_bytes_per_second is not None and asked == LayoutRequest()
    if answer.fits or asked.offload_target == NVME or was_searched:
        return
    is_able = pinned.framework != "any" and NVME in load_profile(pinned.framework).can.offload_targets
    target = {"offload_target": NVME}
    change: dict[str, Any] = {"layout.offload_target": NVME} if asked == LayoutRequest() else {"layout": target}
    swapped = replace(pinned, layout=LayoutRequest(**target))
    if not is_able:
        swapped = replace(swapped, framework="any", framework_version=None)
    unknown = "" if pinned.hardware.nvme_bytes_per_second else " Set hardware.nvme_bytes_per_second to what they give."
    reason = f"For nodes with NVMe drives, which hold what the host has no memory for.{unknown}"
    yield Change(kind="nvme", change=change, question=swapped, reason=reason)


def together_with_more(asked: TrainingQuestion, pinned: TrainingQuestion, answer: TrainingAnswer) -> Iterator[Change]:
    """Yield more GPUs or adapters on top of all changes that leave the result as it is."""
    change, free = _freed(pinned)
    for more in (*_more_gpus(replace(free, hardware=asked.hardware), answer), *_adapters(free)):
        yield replace(more, kind="together", change={**change, **more.change}, reason=f"{more.reason} {TOGETHER}")


def _freed(pinned: TrainingQuestion) -> tuple[dict[str, Any], TrainingQuestion]:
    """Return all changes that leave the job's result as it is, and the question with them."""
    change: dict[str, Any] = {}
    for field in ("micro_batch_size", "recompute", "fused_cross_entropy"):
        if getattr(pinned, field) is not None:
            change[f"training.{field}"] = None
    for field, wanted in (("precision", "bf16-mixed"), ("attention", "flash")):
        if getattr(pinned, field) in ("fp32", "tf32", "eager"):
            change[f"training.{field}"] = wanted
    change |= {"layout": {}} if pinned.layout != LayoutRequest() else {}
    change |= {"framework": "any"} if pinned.framework != "any" else {}
    fields = {field.removeprefix("training."): value for field, value in change.items() if field != "layout"}
    return change, replace(pinned, **fields, framework_version=None, layout=LayoutRequest())


def _fewer_gpus(question: TrainingQuestion, answer: TrainingAnswer) -> Iterator[Change]:
    """Yield fewer GPUs of several nodes on which nothing fits: as many may divide layers and batch in no way that does.

    At least half as many are looked for first.
    """
    now, half = question.hardware.gpus.minimum, question.hardware.gpus.minimum // 2
    if answer.fits or now <= question.hardware.gpus_per_node:
        return
    layout = replace(question.layout, data_parallel=None, shard_group=None, secondary_shard_group=None)
    for least, most in ((half, now - 1), (1, half - 1)):
        if most < least:
            return
        changed = on_gpus(question, GpuCount(minimum=least, maximum=most, is_free=True))
        reason = f"The job fits on fewer GPUs: this is the smallest number tried from {least:,} on."
        changed = replace(changed, layout=layout, compare=())
        yield Change(kind="fewer gpus", change={"hardware.gpus": None}, question=changed, reason=reason)


def _more_gpus(question: TrainingQuestion, answer: TrainingAnswer) -> Iterator[Change]:
    """Yield the next larger number of GPUs on which the job fits; of a tight plan ever more of them, for room."""
    layout = replace(question.layout, data_parallel=None, shard_group=None, secondary_shard_group=None)
    now = answer.plan.layout.gpus if answer.fits else question.hardware.gpus.maximum
    reach = min(max(MOST_TIMES_THE_GPUS * now, LEAST_REACH_GPUS), MOST_ADVISED_GPUS)
    if reach <= now:
        return
    if answer.fits:
        more = dict.fromkeys(_in_nodes(now * times, question.hardware.gpus_per_node) for times in TIMES_FOR_ROOM)
        counts = [GpuCount(minimum=number, maximum=number) for number in more if now < number <= reach]
        reason = "More GPUs of this kind hold less each, which leaves room."
    else:
        counts = [GpuCount(minimum=now + 1, maximum=reach, is_free=True)]
        reason = "The next larger number of GPUs tried on which the job fits."
    for count in counts:
        changed = replace(on_gpus(question, count), layout=layout, compare=())
        yield Change(kind="gpus", change={"hardware.gpus": None}, question=changed, reason=reason)


def _in_nodes(gpus: int | Fraction, node: int) -> int:
    """Return the least number of GPUs that is no smaller, of several nodes one that fills them."""
    number = math.ceil(gpus)
    return number if number <= node else -(-number // node) * node


def _other_gpus(question: TrainingQuestion, peak_bytes: int) -> Iterator[Change]:
    """Yield as many GPUs of kinds with more memory, the least of it first that holds the peak."""
    now = question.hardware
    least = max(now.gpu.memory_bytes + 1, peak_bytes + now.reserve_bytes + now.used_bytes)
    larger = [gpu for gpu in catalogue().gpus if gpu.memory_bytes >= least]
    by_size = {gpu.memory_bytes: gpu for gpu in sorted(larger, key=lambda gpu: (gpu.memory_bytes_per_second, gpu.id))}
    for size in sorted(by_size)[:MOST_TRIES]:
        gpu = by_size[size]
        hardware = replace(now, gpu=gpu, gpus_per_node=gpu.gpus_per_node, usd_per_gpu_hour=None, site=None)
        yield Change(
            kind="gpu",
            change={"hardware.gpu": gpu.id},
            question=replace(question, hardware=hardware),
            reason=f"{gpu.name} is the smallest GPU on which the same count fits.",
        )


def _adapters(question: TrainingQuestion) -> Iterator[Change]:
    reasons = {
        "lora": "Only adapters learn: the base model needs no gradients and no optimizer states.",
        "qlora": "Only adapters learn, on top of a frozen base model in 4 bits, whose rounding can cost quality.",
    }
    for method in {"full": ("lora", "qlora"), "lora": ("qlora",)}.get(question.method, ()):
        framework = question.framework if question.framework in ("any", textbook().name) else "any"
        changed = replace(question, method=method, framework=framework, framework_version=None, layout=LayoutRequest())
        yield Change(kind=method, change={"training.method": method}, question=changed, reason=reasons[method])


def _smaller_models(question: TrainingQuestion) -> Iterator[Change]:
    """Yield the smaller models of the family, the largest of them first; a model of no known family has none."""
    name = question.model.name
    family = SIZE_IN_ID.sub("", name).lower()
    if family == name.lower():
        return
    kin = [
        model
        for model in catalogue().models
        if SIZE_IN_ID.sub("", model.id).lower() == family
        and (model.published_parameters or question.model.parameters) < question.model.parameters
    ]
    kin.sort(key=lambda model: -(model.published_parameters or 0))
    for model in kin[:MOST_TRIES]:
        changed = replace(question, model=describe_config(model.config, name=model.id))
        reason = "The largest of the smaller models of this family that fits."
        yield Change(kind="model", change={"model": model.id}, question=changed, reason=reason)


def on_gpus(question: TrainingQuestion, count: GpuCount) -> TrainingQuestion:
    """Return the question on so many GPUs, where more of them go before fewer no longer."""
    objective = "throughput" if question.objective == "fewest_gpus" else question.objective
    return replace(question, hardware=replace(question.hardware, gpus=count), objective=objective)
