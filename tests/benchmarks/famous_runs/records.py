"""Records and answers to test with, without a service."""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy.asking import Refused
from benchmarks.famous_runs.asking import Answer, AskedRun, Planned
from benchmarks.famous_runs.record import FamousRun, Published

GIB = 2**30
LAYOUT: dict[str, Any] = {
    "framework": "megatron", "gpus": 8, "data_parallel": 2, "tensor_parallel": 4, "pipeline_parallel": 1,
    "virtual_pipeline": 1, "context_parallel": 1, "expert_parallel": 1, "sequence_parallel": True, "zero_stage": 1,
    "shard_group": 2, "offload": "none", "micro_batch_size": 1, "recompute": "none",
}  # fmt: skip


def a_run(**changes: Any) -> FamousRun:
    """Return a run of 4 sequences of 1,000 tokens on 8 GPUs."""
    request: dict[str, Any] = {
        "model": "meta-llama/Llama-3.1-8B",
        "framework": "megatron",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
        "training": {"precision": "bf16-mixed", "sequence_length": 1000, "global_batch_size": 4, "recompute": "none"},
        "layout": {"data_parallel": 2, "tensor_parallel": 4, "pipeline_parallel": 1, "zero_stage": 1},
    }
    facts: dict[str, Any] = {
        "slug": "a-run", "name": "A run, 8 GPUs", "source": "A paper, table 1", "url": "https://example.org/paper",
        "known_from": "read", "ran_with": "Megatron-LM", "published": Published(words="2 s", seconds=2.0),
        "request": request,
    }  # fmt: skip
    return FamousRun(**{**facts, **changes})


def planned(step_seconds: float = 2.5, **changes: Any) -> Planned:
    """Return an answer with a band of four fifths to 1.6 times."""
    layout = {**LAYOUT, **changes.pop("layout", {})}
    facts: dict[str, Any] = {
        "fits": True, "verdict": "fits", "layout": layout, "step_seconds": step_seconds,
        "low_seconds": 0.8 * step_seconds, "high_seconds": 1.6 * step_seconds, "utilization_fraction": 0.4,
        "peak_bytes": 40 * GIB, "peak_low_bytes": 32 * GIB, "peak_high_bytes": 60 * GIB, "limit_bytes": 80 * GIB,
        "allocated_bytes": 30 * GIB, "reserved_bytes": 38 * GIB,
        "item_bytes": {"parameters": 4 * GIB, "gradients": 6 * GIB}, "why_no_launch_file": (),
    }  # fmt: skip
    return Planned(**{**facts, **changes})


REFUSED = Refused(code="invalid-request", reasons=("one is no field", "another is too large", "a third"))


def asked(as_ran: Answer | None = None, own: Answer | None = None, **changes: Any) -> AskedRun:
    """Return a run with its answers, the planner's own under both frameworks."""
    own = own or planned(1.25, layout={"tensor_parallel": 2, "data_parallel": 4})
    facts: dict[str, Any] = {"run": a_run(), "published_seconds": 2.0, **changes}
    return AskedRun(as_ran=as_ran or planned(), open_layout=own, open_framework=own, **facts)
