"""Plans and jobs as tables that a person reads in a terminal, a hundred columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planners.ground.figures import counted, figure
from plimsoll.planners.ground.units import GIGA, SECONDS_PER_HOUR
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.persistence.records import Job, Page, PlanSummary
from plimsoll.service.text.choices import choices_text, serving_choices_text
from plimsoll.service.text.labels import recompute_text, serving_labels, training_labels
from plimsoll.service.text.memory import memory_text, ranged, shares, spikes_text
from plimsoll.service.text.tables import (
    cell,
    gib,
    joined,
    notes,
    pairs,
    printable,
    seconds_text,
    table,
    titled,
    wrapped,
)

# An availability of 99.995 % is not 100 %.
AVAILABILITY_DIGITS = 5
# What of a stack on a GPU nobody timed; a pair that was needs no word.
UNTIMED = {"none_on_gpu": "none on this GPU", "other_stacks_on_gpu": "of other frameworks on this GPU"}
VERDICT_WORDS = {"fits": "fits", "tight": "fits tightly", "no": "does not fit"}


def plan_text(body: Mapping[str, Any]) -> str:
    """Return a plan's answer as text; `body` is the response as JSON values."""
    verdict = VERDICT_WORDS[body["verdict"]]
    if body["fits"] and body.get("meets") is False:
        verdict += ", but misses what was asked"
    sections = [f"Plan {body['plan_id']}  ({body['kind']}): {verdict}\n{wrapped(body['summary'])}"]
    sections += _training(body) if body["kind"] == "train" else _serving(body)
    sections += [
        *(choices_text(body) if body["kind"] == "train" else serving_choices_text(body)),
        _advice(body["advice"]),
        _launch(body["artifacts"]),
        notes("Launch files not made", _missing(body.get("missing_artifacts", {}))),
        notes("Assumptions", body["assumptions"]),
        notes("Left out", [f"{each['part']}: {each['reason']}" for each in body.get("omitted", [])]),
        _search(body["search"]),
    ]
    return joined(sections)


def job_text(job: Mapping[str, Any]) -> str:
    """Return a job as text, its result included."""
    progress = job["progress"] or {}
    done = f"{progress['done']} of {progress['total']} {progress['unit']}" if progress else ""
    facts = (
        ("state", job["state"]),
        ("progress", " ".join(part for part in (done, progress.get("message", "")) if part)),
        ("attempts", job["attempts"]),
        ("worker", job["worker"]),
        ("created", job["created_at"]),
        ("started", job["started_at"]),
        ("finished", job["finished_at"]),
    )
    sections = [f"Job {job['job_id']}  ({job['kind']})", pairs(facts)]
    if job["error"]:
        sections.append(wrapped(f"Error: {job['error'].get('detail', job['error'])}"))
    if job["result"]:
        sections.append(titled("Result", *_result(job["result"])))
    return joined(sections)


def plans_text(page: Page[PlanSummary]) -> str:
    """Return a list of plans as text, each with its whole id."""
    rows = [(plan.plan_id, plan.kind, plan.model, f"{plan.gpus} × {plan.gpu}", plan.verdict) for plan in page.items]
    return _list_text(table(("plan", "kind", "model", "GPUs", "verdict"), rows), page.next_cursor)


def jobs_text(page: Page[Job]) -> str:
    """Return a list of jobs as text."""
    rows = [(job.job_id, job.kind, job.state, f"{job.created_at:%Y-%m-%d %H:%M:%S}") for job in page.items]
    return _list_text(table(("job", "kind", "state", "created (UTC)"), rows), page.next_cursor)


def _list_text(listed: str, next_cursor: str | None) -> str:
    return joined([listed, f"More: cursor={next_cursor}" if next_cursor else ""])


def _training(body: Mapping[str, Any]) -> list[str]:
    plan = body["plan"]
    layout, step, run = plan["layout"], plan["step"], plan["run"]
    return [
        titled("Layout", _training_layout(layout)),
        memory_text(plan["memory"]),
        titled(
            "Step", pairs(_step_facts(step)), "", table(("part", "time", "share"), shares(step["parts"], seconds_text))
        ),
        titled("Run", pairs(_run_facts(run))),
        spikes_text(plan["memory"]),
        _training_alternatives(body),
    ]


def _on_each(layout: Mapping[str, Any]) -> str:
    """Return over how many GPUs the blocks of a sequence are dealt out, nothing where each has all of them."""
    gpus = layout["decode_context_parallel"]
    return f" on each of {gpus} GPUs" if gpus > 1 else ""


def _serving(body: Mapping[str, Any]) -> list[str]:
    plan = body["plan"]
    kv, performance = plan["kv"], plan["performance"]
    facts = (
        ("cache of one GPU", gib(kv["available_bytes"])),
        ("bytes per token", f"{kv['bytes_per_token']:,} in all, {kv['bytes_per_token_per_gpu']:,} per GPU"),
        (
            "capacity",
            f"{kv['tokens']:,} tokens in {kv['blocks']:,} blocks of {kv['block_size']}{_on_each(plan['layout'])}",
        ),
        ("requests at once", f"{kv['max_concurrency']:.2f} of the longest"),
        ("longest request", _tokens(kv["longest_context_tokens"])),
        ("meets concurrency", _yes_or_no(body["meets_concurrency"])),
        ("meets latency", _yes_or_no(body["meets_slo"])),
    )
    sections = [
        titled("Layout of one deployment", _serving_layout(plan["layout"])),
        memory_text(plan["memory"]),
        titled(f"KV cache of one {_cache_owner(plan['layout'])}", pairs(facts)),
    ]
    if performance is not None:
        sections.append(titled("Speed of the deployment", _latency(performance), "", _curve(performance)))
        if performance.get("simulated") is not None:
            sections.append(titled("Requests one by one", _simulated(performance["simulated"])))
    return [*sections, _serving_alternatives(body)]


def _step_facts(step: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    bounds = ranged(step, "low_seconds", "high_seconds", seconds_text)
    return (
        ("time", f"{seconds_text(step['seconds'])}{bounds}"),
        ("speed", f"{step['tokens_per_second']:,.0f} tokens/s, {step['tflops_per_gpu']:.0f} TFLOP/s per GPU"),
        ("utilization", f"{100 * step['model_flops_utilization']:.1f} %"),
        # Earlier versions did not say what was timed.
        ("timed runs", UNTIMED.get(step.get("timed_runs", ""))),
    )


def _run_facts(run: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    cost = run["cost_usd"]
    return (
        ("steps", None if run["steps"] is None else f"{run['steps']:,}"),
        ("time", seconds_text(run["seconds"])),
        ("GPU-hours", None if run["gpu_hours"] is None else f"{run['gpu_hours']:,.0f}"),
        ("cost", None if cost is None else f"${cost:,.0f}"),
        ("checkpoint", gib(run["checkpoint_bytes"])),
        ("checkpoint every", seconds_text(run["checkpoint_interval_daly_seconds"])),
        ("failures per day", f"{figure(run['failures_per_day'])}{_failures_range(run)}"),
        ("goodput", None if run["goodput"] is None else f"{100 * run['goodput']:.1f} %{_goodput_range(run)}"),
        *(
            (f"with {way['name']}", f"{100 * way['goodput']:.1f} %")
            for way in run["recovery"]
            if way["goodput"] is not None
        ),
        ("time with failures", seconds_text(run["expected_seconds"])),
        ("spare nodes", _spares(run["spare_nodes"])),
    )


def _failures_range(run: Mapping[str, Any]) -> str:
    """Return between which numbers of failures a run may lie; nothing where nothing bounds them."""
    # Earlier versions did not bound them.
    low, high = run.get("failures_per_day_low"), run.get("failures_per_day_high")
    return "" if low is None or high is None else f" ({figure(low)} to {figure(high)})"


def _goodput_range(run: Mapping[str, Any]) -> str:
    low, high = run.get("goodput_low"), run.get("goodput_high")
    return "" if low is None or high is None else f" ({100 * low:.1f} to {100 * high:.1f} %)"


def _spares(spare: Mapping[str, Any] | None) -> str | None:
    if spare is None:
        return None
    target = f"{figure(100 * spare['target_availability'], AVAILABILITY_DIGITS)} %"
    if spare["spares"] is None:
        return f"even {spare['nodes']} are too few for {target}"
    return (
        f"{spare['spares']} beside {spare['nodes']}, up {figure(100 * spare['availability'], AVAILABILITY_DIGITS)} % "
        "of the time"
    )


def _training_layout(layout: Mapping[str, Any]) -> str:
    degrees = " × ".join(f"{name} {layout[f'{name}_parallel']}" for name in ("data", "tensor", "pipeline", "context"))
    sequences = layout["micro_batch_size"]
    batch = f"{sequences} sequence{'' if sequences == 1 else 's'} × {layout['gradient_accumulation_steps']} accumulated"
    return pairs(
        (
            ("framework", layout["framework"]),
            ("GPUs", f"{layout['gpus']} = {degrees}"),
            ("experts over", layout["expert_parallel"] if layout["expert_parallel"] > 1 else None),
            ("overlapped", _overlapped(layout.get("overlap"))),
            ("sharding", _sharding(layout)),
            ("batch per rank", batch),
            ("recompute", recompute_text(layout)),
            ("stages per GPU", layout["virtual_pipeline"] if layout["virtual_pipeline"] > 1 else None),
            # Earlier versions did not say how stages are divided.
            ("stages divided", layout.get("pipeline_layout")),
            ("offload", None if layout["offload"] == "none" else f"{layout['offload']} to {layout['offload_target']}"),
            ("activations", _offloaded_activations(layout)),
            ("loss", "fused with the head" if layout.get("fused_cross_entropy") else None),
        )
    )


def _overlapped(hidden: Mapping[str, bool] | None) -> str | None:
    """Return that the exchange with experts hides behind computation; the rest is said under the assumptions."""
    return "exchange with experts" if hidden and hidden["expert_parallel"] else None


def _offloaded_activations(layout: Mapping[str, Any]) -> str | None:
    """Return that activations wait on the host, and of which parts of layers; earlier versions did not say those."""
    modules, layers = layout.get("offload_modules"), layout.get("offload_layers")
    of = f"of {', '.join(modules)} " if modules else f"of {layers} layers " if layers is not None else ""
    return f"{of}offloaded to the host" if layout.get("activation_offload") else None


def _sharding(layout: Mapping[str, Any]) -> str:
    """Return the ZeRO stage and how many ranks it divides over: with some stacks those of a sequence are among them."""
    stage, group, context = layout["zero_stage"], layout["shard_group"], layout["context_parallel"]
    if stage == 0:
        return "none (ZeRO stage 0)"
    if context > 1 and load_profile(layout["framework"]).sharding.over_context:
        return f"ZeRO stage {stage} over {group * context} = data {group} × context {context}"
    copy = layout.get("secondary_shard_group", 1)
    return f"ZeRO stage {stage} over {group}" + (f", a second copy of weights over {copy}" if copy > 1 else "")


def _tokens(tokens: int | None) -> str | None:
    return None if tokens is None else f"{tokens:,} tokens"


def _serving_layout(layout: Mapping[str, Any]) -> str:
    names = ("data", "attention_data", "tensor", "pipeline")
    degrees = " × ".join(f"{name.replace('_', ' ')} {layout[f'{name}_parallel']}" for name in names)
    return pairs((("GPUs", f"{layout['gpus']} = {degrees}"),))


def _cache_owner(layout: Mapping[str, Any]) -> str:
    """Return whose cache is told: each attention rank has one of its own."""
    return "attention rank" if layout["attention_data_parallel"] > 1 else "replica"


def _latency(performance: Mapping[str, Any]) -> str:
    """Return the times asked about with their bands and, at a request rate, what 99 of 100 requests stay below."""
    facts: list[tuple[str, str | None]] = []
    for label, name in (("first token", "ttft"), ("per token", "tpot")):
        bounds = ranged(performance, f"{name}_low_seconds", f"{name}_high_seconds", seconds_text)
        facts.append((label, f"{seconds_text(performance[f'{name}_seconds'])}{bounds}"))
        tail = performance[f"{name}_p99_seconds"]
        facts.append((f"{label}, 99 of 100", None if tail is None else f"within {seconds_text(tail)}"))
    return pairs(facts)


def _simulated(load: Mapping[str, Any]) -> str:
    """Return what single requests of a simulated load see: half of them, 95 and 99 of 100."""
    rows = [
        (label, *(seconds_text(load[name][f"{part}_seconds"]) for part in ("p50", "p95", "p99")))
        for label, name in (("first token", "ttft"), ("per token", "tpot"), ("whole answer", "request"))
    ]
    return table(("simulated requests", "50 of 100 within", "95", "99"), rows)


def _curve(performance: Mapping[str, Any]) -> str:
    """Return the times by how many requests are kept running; those of a rate stand at what runs on average."""
    has_bursts = (performance.get("simulated") or {}).get("burst_clears_seconds") is not None
    mark = "asked" if performance["ttft_p99_seconds"] is None else "in bursts" if has_bursts else "at the rate"
    asked = {key: value for key, value in performance.items() if key != "curve"}
    rows = {point["concurrency"]: point for point in (*performance["curve"], asked)}
    return table(
        ("requests at once", "first token", "per token", "tokens/s", ""),
        (
            (
                concurrency,
                seconds_text(point["ttft_seconds"]),
                seconds_text(point["tpot_seconds"]),
                f"{point['output_tokens_per_second']:,.0f}",
                mark if concurrency == performance["concurrency"] else "",
            )
            for concurrency, point in sorted(rows.items())
        ),
    )


def _alternatives(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    return titled("Alternatives", table(header, rows)) if rows else ""


def _training_alternatives(body: Mapping[str, Any]) -> str:
    others = body["alternatives"]
    labels = training_labels([other["layout"] for other in others], body["plan"]["layout"])
    rows = [
        (label, gib(other["peak_bytes"]), _step_text(other), other["verdict"])
        for label, other in zip(labels, others, strict=True)
    ]
    return _alternatives(rows, ("layout", "peak", "step", "verdict"))


def _step_text(alternative: Mapping[str, Any]) -> str:
    """Return an alternative's step, marked where the evidence does not tell it from the plan's."""
    # Earlier versions did not say so.
    mark = ", equal within the band" if alternative.get("equal_within_band") else ""
    return f"{seconds_text(alternative['step_seconds'])}{mark}"


def _serving_alternatives(body: Mapping[str, Any]) -> str:
    others = body["alternatives"]
    labels = serving_labels(others)
    rows = [(label, *_serving_figures(other)) for label, other in zip(labels, others, strict=True)]
    header = ("layout", "at once", "whole answer", "per token", "tokens/s", "per M tokens", "verdict")
    return _alternatives(rows, header)


def _serving_figures(other: Mapping[str, Any]) -> tuple[str, ...]:
    rate = other["output_tokens_per_second"]
    return (
        "" if other["concurrency"] is None else f"{other['concurrency']:,}",
        seconds_text(other["request_seconds"]),
        seconds_text(other["tpot_seconds"]),
        "" if rate is None else f"{rate:,.0f}",
        _cost(other),
        other["verdict"] + (", front" if other["is_on_front"] else ""),
    )


def _cost(other: Mapping[str, Any]) -> str:
    """Return what a million output tokens cost: dollars, or GPU time where there is no price."""
    dollars, seconds = other["cost_usd_per_million_output_tokens"], other["gpu_seconds_per_million_output_tokens"]
    if dollars is not None:
        return f"${figure(dollars)}"
    return "" if seconds is None else f"{figure(seconds / SECONDS_PER_HOUR)} GPU-h"


def _search(search: Mapping[str, Any]) -> str:
    return (
        f"Searched {counted(search['layouts_considered'], 'layout')} ({search['layouts_fitting']:,} shown to fit; "
        f"{search['layouts_excluded']:,} more were excluded by a rule) in {seconds_text(search['seconds'])}."
    )


def _advice(advice: Sequence[Mapping[str, Any]]) -> str:
    if not advice:
        return ""
    lines = []
    for entry in advice:
        change = ", ".join(f"{field} = {cell(value)}" for field, value in entry["change"].items())
        if "kv_tokens" in entry:
            outcome = f"{gib(entry['peak_bytes'])}, a cache of {entry['kv_tokens']:,} tokens{_latencies(entry)}"
        else:
            outcome = f"{gib(entry['peak_bytes'])}, a step of {seconds_text(entry['step_seconds'])}"
        lines.append(wrapped(f"  - {change}: {outcome}. {entry['reason']}", indent="    "))
    return titled("What would change it", "\n".join(lines))


def _latencies(entry: Mapping[str, Any]) -> str:
    """Return the latencies of an offer; nothing where none is known, as in plans of before."""
    if entry.get("tpot_seconds") is None:
        return ""
    first, token = seconds_text(entry["ttft_seconds"]), seconds_text(entry["tpot_seconds"])
    return f", {first} to the first token, {token} per token"


def _launch(artifacts: Mapping[str, Any]) -> str:
    """Return the commands whole, and the names of the files, which are fetched one by one."""
    commands = [name for name, value in artifacts.items() if isinstance(value, str) and "\n" not in value]
    files = [name for name in artifacts if name not in commands]
    # Commands are never wrapped: they are there to be copied.
    lines = [f"  {printable(artifacts[name])}" for name in commands]
    if files:
        lines.append(wrapped(f"  Files, under artifacts/NAME of the plan: {', '.join(files)}.", indent="  "))
    return titled("Launch", "\n".join(lines)) if lines else ""


def _missing(artifacts: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}: {' '.join(reasons)}" for name, reasons in artifacts.items()]


def _result(result: Mapping[str, Any]) -> list[str]:
    """Return a job's result: its plain values in two columns, each inner object below."""
    plain = [(name, _quantity(name, value)) for name, value in result.items() if not isinstance(value, dict | list)]
    inner = [(name, value) for name, value in result.items() if isinstance(value, dict) and value]
    parts = [pairs(plain)]
    for name, value in inner:
        facts = [(key, _quantity(key, item)) for key, item in value.items() if not isinstance(item, dict | list)] + [
            (f"{key}.{part}", _quantity("bytes", number))
            for key, item in value.items()
            if key == "items" and isinstance(item, dict)
            for part, number in item.items()
        ]
        if facts:
            parts.append(f"  {name}:\n" + textwrap.indent(pairs(facts), "  "))
    return parts


def _quantity(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if name.endswith("bytes_per_second"):
        return f"{figure(value / GIGA)} GB/s"
    if name.endswith("bytes"):
        return f"{gib(value)} ({value:,} bytes)"
    if name.endswith("seconds"):
        return seconds_text(value)
    if name == "relative_error":
        return f"{100 * value:+.3g} %"
    return value


def _yes_or_no(value: bool | None) -> str | None:
    return None if value is None else ("yes" if value else "no")
