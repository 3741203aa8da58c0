"""What follows from stored plans, and requests that store something and are asked one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.same_answers.candidates.parts import Candidate

GPU = "a40-48gb"
TRAIN: dict[str, Any] = {
    "model": "Qwen/Qwen2.5-1.5B",
    "hardware": {"gpu": GPU, "gpus": 4},
    "framework": "fsdp2",
    "training": {"sequence_length": 2048, "global_batch_size": 32},
    "layout": {"data_parallel": 4, "zero_stage": 3},
}
INFER: dict[str, Any] = {
    "model": "Qwen/Qwen2.5-1.5B",
    "hardware": {"gpu": GPU, "gpus": 1},
    "serving": {"max_model_len": 2048, "concurrency": 8, "input_tokens": 500, "output_tokens": 100},
}
MEASURED = {
    "framework": "fsdp2",
    "model": "Qwen/Qwen2.5-1.5B",
    "training": TRAIN["training"],
    "layout": TRAIN["layout"],
    "gpus": 4,
}
CALIBRATION = {
    "microbenchmarks": [
        {"kind": "matmul", "rows": 8192, "inputs": 8192, "outputs": 8192, "flops_per_second": 9e13},
        {"kind": "memory", "bytes_per_second": 5.5e11},
        {"kind": "attention", "flops_per_second": 5e13},
        {"kind": "all_reduce", "message_bytes": 2**30, "ranks": 4, "seconds": 0.06},
    ],
    "measurements": [{"run": MEASURED, "step_seconds": 6.5, "peak_bytes": 20_000_000_000}],
    "serving": [
        {
            "deployment": {"model": "Qwen/Qwen2.5-1.5B", "serving": INFER["serving"], "gpus": 1},
            "tpot_seconds": 0.009,
            "ttft_seconds": 0.08,
        }
    ],
}
# The newest engine whose log is learned from, and what it printed at its start.
STARTED = {**INFER, "serving": {**INFER["serving"], "engine_version": "0.19"}}
LOG = (
    "INFO [utils.py:233] non-default args: {'gpu_memory_utilization': 0.9, 'max_num_seqs': 1024}\n"
    "INFO [scheduler.py:238] Chunked prefill is enabled with max_num_batched_tokens=8192.\n"
    "INFO [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen2.5-1.5B', "
    "dtype=torch.bfloat16, tensor_parallel_size=1, max_seq_len=2048, kv_cache_dtype=auto\n"
    "INFO [gpu_model_runner.py:4700] Model loading took 2.89 GiB memory and 3.2 seconds\n"
    "INFO [gpu_worker.py:391] Available KV cache memory: 35.11 GiB\n"
    "INFO [kv_cache_utils.py:1307] GPU KV cache size: 1,314,800 tokens\n"
)
SCHEMES = ("int8", "int8-channel", "int8-group", "nf4", "fp4", "fp8", "fp8-channel", "int4", "mxfp4", "int3")


def of_plan(plan: Candidate) -> Iterator[Candidate]:
    """Yield what can be asked of any stored plan."""
    for path in ("", "/question", "/artifacts/nothing"):
        yield {"kind": f"plan{path}", "method": "GET", "path": f"/plans/{{plan_id}}{path}", "after": plan}
    yield {"kind": "plan as text", "method": "GET", "path": "/plans/{plan_id}?format=text", "after": plan}


def of_artifact(plan: Candidate, name: str, *, in_queue: bool) -> Candidate:
    """Return the question for a plan's launch file, as it is or with a queue that its workload waits in."""
    path = f"/plans/{{plan_id}}/artifacts/{name}{'?queue=team-a' if in_queue else ''}"
    return {"kind": f"launch file {name}", "method": "GET", "path": path, "after": plan}


def in_order() -> Iterator[Candidate]:
    """Yield what stores something, each after the one before."""
    for question in _stored():
        question |= {"kind": "in order", "in_order": True}
        yield question


def _stored() -> Iterator[Candidate]:
    for scheme in SCHEMES:
        for more in ({}, {"double_quantization": True, "block_size": 128}):
            for model in ("meta-llama/Llama-3.2-1B", "openai/gpt-oss-20b"):
                yield _post("/quantize", {"model": model, "scheme": scheme, **more})
    yield _get("/jobs?limit=3")
    plan = _post("/plan/train", TRAIN)
    served = _post("/plan/infer", INFER)
    yield plan
    yield served
    for planned in (plan, served):
        for level in ("count", "trace", "device", "all"):
            job = {**_post("/plans/{plan_id}/validate", {"level": level}), "after": planned}
            yield job
            if level == "count":
                for path in ("/jobs/{job_id}", "/jobs/{job_id}?format=text"):
                    yield {**_get(path), "after": job}
                yield {**_post("/jobs/{job_id}/cancel", None), "after": job}
                yield {**_get("/jobs/{job_id}"), "after": job}
    yield _get(f"/plans?gpu={GPU}&limit=5")
    yield _get(f"/plans?gpu={GPU}&kind=train&format=text")
    yield from _measured(plan, served)
    yield from _calibrated()


def _measured(plan: Candidate, served: Candidate) -> Iterator[Candidate]:
    told: dict[str, Any] = {"plan_id": "{plan_id}", "peak_bytes": 21_000_000_000, "step_seconds": 6.2}
    yield {**_post("/measurements", told), "after": plan}
    yield {
        **_post("/measurements", {"plan_id": "{plan_id}", "tpot_seconds": 0.008, "kv_tokens": 1_200_000}),
        "after": served,
    }
    yield _post("/plan/infer", STARTED)
    yield _post("/measurements", {"gpu": GPU, "log": LOG})
    yield _post("/plan/infer", STARTED)
    yield _post("/measurements", {"gpu": GPU, "log": "nothing of use"})
    yield _post("/measurements", {"peak_bytes": 5})
    yield _post(
        "/measurements", {"framework": "fsdp2", "gpu": GPU, "model": "Qwen/Qwen2.5-1.5B", "tokens_per_second": 9e3}
    )
    yield _get("/accuracy")
    yield {**_get("/accuracy"), "headers": {"accept": "text/csv"}}
    yield _post("/plan/infer", INFER)
    yield _post("/plan/train", TRAIN)
    yield {"method": "DELETE", "path": "/measurements/3"}
    yield {"method": "DELETE", "path": "/measurements/99"}
    yield _post("/plan/infer", INFER)


def _calibrated() -> Iterator[Candidate]:
    path = f"/hardware/{GPU}/calibration"
    yield _get(path)
    yield {**_post(path, CALIBRATION), "method": "PUT"}
    yield _get(path)
    yield _post("/plan/train", TRAIN)
    yield _post("/plan/infer", INFER)
    yield {**_post(path, {"from_record": True}), "method": "PUT"}
    yield {**_post(path, {}), "method": "PUT"}
    yield {**_post(path, {"microbenchmarks": [{"kind": "sort"}]}), "method": "PUT"}
    yield {"method": "DELETE", "path": path}
    yield _post("/plan/train", TRAIN)


def _get(path: str) -> Candidate:
    return {"method": "GET", "path": path}


def _post(path: str, body: Any) -> Candidate:
    return {"method": "POST", "path": path, **({} if body is None else {"body": body})}
