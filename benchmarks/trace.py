"""Trace one rank of well-known training jobs: seconds, memory and the peaks found.

Run `python -m benchmarks.trace`, with names of jobs to run only those; `--json FILE`
writes every figure. `--grid` compares the planner with the trace instead, over many
plans of small depth (`benchmarks/agreement.py`).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.agreement import run_grid
from plimsoll.planners.catalogue import catalogue
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob

GIB = 1 << 30

# Source: https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json (and -70B)
LLAMA_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
# Source: https://huggingface.co/meta-llama/Llama-3.1-405B/blob/main/config.json
LLAMA_405B = LLAMA_8B | {
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
}
DEEPSEEK_V3 = dict(catalogue().model("deepseek-ai/DeepSeek-V3").config)


def job(config: dict[str, Any], **changes: Any) -> TraceJob:
    """Return a job of full bf16-mixed training with AdamW on eight ranks of FSDP2."""
    values: dict[str, Any] = {
        "model_name": "benchmark",
        "config": config,
        "framework": "fsdp2",
        "sequence_length": 8192,
        "micro_batch_size": 1,
        "accumulation_steps": 1,
        "precision": "bf16-mixed",
        "optimizer": "adamw",
        "attention": "flash",
        "recompute": "full",
        "recompute_layers": None,
        "fused_cross_entropy": False,
        "data_parallel": 8,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "sequence_parallel": False,
        "zero_stage": 3,
    }
    values |= changes
    values.setdefault("shard_group", values["data_parallel"])
    return TraceJob(**values)


# The first of two stages decides: it has the embedding, and the more micro-batches in flight.
FIRST_OF_TWO_STAGES = PipelineStage(number=0, stages=2, first_layer=0, last_layer=39)
TP2_DP4 = {"data_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True}
JOBS = {
    "8b-fsdp2-8192-none": job(LLAMA_8B, recompute="none"),
    "8b-fsdp2-8192-selective": job(LLAMA_8B, recompute="selective"),
    "8b-fsdp2-8192-full": job(LLAMA_8B),
    "8b-fsdp2-4096-none": job(LLAMA_8B, recompute="none", sequence_length=4096),
    "8b-fsdp2-4096-selective": job(LLAMA_8B, recompute="selective", sequence_length=4096),
    "8b-fsdp2-4096-full": job(LLAMA_8B, sequence_length=4096),
    "8b-fsdp2-tp2-dp4-none": job(LLAMA_8B, recompute="none", **TP2_DP4),
    "8b-fsdp2-tp2-dp4-selective": job(LLAMA_8B, recompute="selective", **TP2_DP4),
    "8b-fsdp2-tp2-dp4-full": job(LLAMA_8B, **TP2_DP4),
    "8b-accelerate-8192-none": job(LLAMA_8B, framework="accelerate", recompute="none"),
    "8b-accelerate-8192-full": job(LLAMA_8B, framework="accelerate"),
    "70b-fsdp2-64-8192-full": job(LLAMA_70B, data_parallel=64),
    "70b-fsdp2-1024-8192-full": job(LLAMA_70B, data_parallel=1024),
    "70b-fsdp2-tp8-dp8-full": job(LLAMA_70B, data_parallel=8, tensor_parallel=8, sequence_parallel=True),
    "405b-fsdp2-tp8-dp64-full": job(LLAMA_405B, data_parallel=64, tensor_parallel=8, sequence_parallel=True),
    "671b-fsdp2-256-ep32-full": job(DEEPSEEK_V3, data_parallel=256, expert_parallel=32, sequence_length=4096),
    "70b-megatron-tp8-pp2": job(
        LLAMA_70B,
        framework="megatron",
        zero_stage=1,
        tensor_parallel=8,
        sequence_parallel=True,
        pipeline_parallel=2,
        accumulation_steps=8,
        stages=(FIRST_OF_TWO_STAGES,),
    ),
}


def measure(name: str) -> dict[str, Any]:
    """Trace one job and return its figures."""
    from plimsoll.service.worker.proofs.trace.layer_sampling import trace_stage
    from plimsoll.service.worker.recording.allocator import replay
    from plimsoll.service.worker.recording.curve import phase_peaks
    from plimsoll.service.worker.stacks.found import find_stack

    traced = JOBS[name]
    wall, processor = time.monotonic(), time.process_time()
    stage = traced.stages[0] if traced.stages else traced.deciding_stages[0]
    sampled = trace_stage(traced, find_stack(traced.framework), lambda *_progress: None, stage)
    ledger = sampled.ledger
    wall, processor = time.monotonic() - wall, time.process_time() - processor
    peak = ledger.peak()
    return {
        "name": name,
        "seconds": wall,
        "processor_seconds": processor,
        "sampled_layers": sampled.sampled_layers,
        "process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_bytes": peak.allocated_bytes,
        "reserved_bytes": replay(ledger.events).peak_reserved_bytes,
        "reserved_expandable_bytes": replay(ledger.events, expandable_segments=True).peak_reserved_bytes,
        "items": peak.bytes_by_item(),
        "phases": phase_peaks(ledger),
    }


def show(row: dict[str, Any]) -> None:
    """Print one job's figures in GiB, and its steady step phase by phase."""
    gib = {key: row[key] / GIB for key in ("peak_bytes", "reserved_bytes", "reserved_expandable_bytes")}
    print(
        f"{row['name']:28} {row['seconds']:6.1f} s ({row['processor_seconds']:.1f} s of processor), "
        f"process {row['process_bytes'] / GIB:.2f} GiB, allocated {gib['peak_bytes']:.3f}, "
        f"reserved {gib['reserved_bytes']:.3f}, expandable {gib['reserved_expandable_bytes']:.3f}, "
        f"from {row['sampled_layers'] or 'all'} layers"
    )
    last = max(phase["step"] for phase in row["phases"])
    for phase in (phase for phase in row["phases"] if phase["step"] == last):
        kinds = ", ".join(f"{kind} {held / GIB:.3f}" for kind, held in phase["kinds"].items() if held > GIB / 1024)
        print(f"    {phase['phase']:10} {phase['peak_bytes'] / GIB:8.3f}  {kinds}", flush=True)


def main() -> None:
    """Trace the named jobs, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(JOBS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--grid", action="store_true", help="compare the planner with the trace over a grid of plans")
    parser.add_argument("--only", default="", help="of the grid, only plans with this in their name")
    parser.add_argument("--every", type=int, default=1, help="of the grid, every so-manieth plan")
    parser.add_argument("--first", type=int, default=0, help="of the grid, the number of the plan to begin with")
    arguments = parser.parse_args()
    rows = []
    if arguments.grid:
        rows = run_grid(
            lambda line: print(line, flush=True), only=arguments.only, every=arguments.every, first=arguments.first
        )
    for name in arguments.names or (() if arguments.grid else JOBS):
        rows.append(measure(name))
        show(rows[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
