"""What is read and not planned: the catalogue, pages, the contract, and requests that are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.same_answers.candidates.parts import Candidate, families, models

ADDRESSES = (
    "/",
    "/ui",
    "/ui/train",
    "/ui/serve",
    "/ui/plans",
    "/ui/jobs",
    "/ui/compare",
    "/ui/accuracy",
    "/ui/nothing",
    "/docs",
    "/openapi.json",
    "/formats",
    "/models",
    "/hardware",
    "/healthz",
    "/readyz",
    "/nothing",
    "/plan",
    "/plan/train",
    "/models?search=llama%208b",
    "/models?search=qwen",
    "/models?search=",
    "/models?serch=x",
    "/hardware?search=h100",
    "/hardware?search=dgx",
    "/models/llama-9",
    "/hardware/h1000",
    "/models/llama-3.1-8b?sequence_length=4096",
    "/models/llama-3.1-8b?sequence_length=0",
    "/models/llama-3.1-8b?sequence_length=x",
    "/plans?limit=0",
    "/plans?limit=1001",
    "/plans?cursor=x",
    "/plans?kind=x",
    "/plans?fits=maybe",
    "/plans/unknown",
    "/plans/unknown/question",
    "/plans/unknown/artifacts/vllm",
    "/jobs/unknown",
    "/jobs?state=x",
    "/assets/x/page.css",
    "/assets/x/page.js",
    "/assets/x/nothing.js",
    "/hardware/h100-sxm-80gb/calibration",
)
ELSEWHERE: dict[str, tuple[dict[str, str], ...]] = {
    "a repository": (
        {"hub": "team/tiny"},
        {"hub": "team/tiny-fp8", "revision": "v1"},
        {"hub": "team/tiny", "revision": "v1"},
        {"hub": "team/broken"},
        {"hub": "team/none"},
        {"hub": "../x"},
    ),
    "a folder": (
        {"path": "{models}/tiny"},
        {"path": "{models}/broken"},
        {"path": "{models}/none"},
        {"path": "{models}/../models/tiny"},
        {"path": "/etc"},
        {"path": "tiny"},
    ),
}
# What a request does not have, or has otherwise: fields in the words of other programs, and values that are none.
TRAINING_FIELDS: tuple[str, ...] = (
    "max_seq_length",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "learning_rate",
    "optim",
    "bf16",
    "lora_r",
    "zero_stage",
    "tensor_model_parallel_size",
    "precison",
)
TRAINING_VALUES: tuple[tuple[str, Any], ...] = (
    ("framework", "torchtitan"),
    ("framework", "FSDP2"),
    ("framework", 7),
    ("objective", "speed"),
    ("compare", {}),
    ("deadline_seconds", 5),
    ("training", {"optimizer": "adam"}),
    ("training", {"precision": "bfloat16"}),
    ("training", {"sequence_length": 1.5}),
    ("training", {"global_batch_size": -1}),
    ("training", None),
    ("training", {"method": "full", "lora": {"rank": 8}}),
    ("training", {"recompute": {"every": 0}}),
    ("training", {"recompute": {"modules": ["mpl"]}}),
    ("training", {"companions": [{"role": "critic"}]}),
    ("training", {"companions": [{"role": "reward", "model": "lama"}]}),
    ("hardware", {"gpu": "h100"}),
    ("hardware", {"gpu": "h10"}),
    ("hardware", {"fleet": []}),
    ("hardware", {"gpu": "h100-sxm", "gpus": {"min": 4, "max": 2}}),
    ("hardware", {"gpu": "h100-sxm", "gpus": 0}),
    ("hardware", {"gpu": "h100-sxm", "gpus": 10**9}),
    ("hardware", {"gpu": "h100-sxm", "cluster": "dgx-a100-640gb"}),
    ("hardware", {"gpu": "h100-sxm", "cluster": "dgx"}),
    ("model", {"path": "/srv/models/x"}),
    ("model", {"hub": "a/b"}),
    ("model", {"config": {}}),
    ("model", {"config": {"model_type": "lama"}}),
    ("model", {"config": {"model_type": "llama"}}),
    ("model", {"model_type": "llama", "hidden_size": 8}),
    ("model", 7),
    ("resilience", {"gpu_failures_per_month": "often"}),
    ("validate", "always"),
)
SERVING_FIELDS: tuple[str, ...] = (
    "quantization",
    "dtype",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "max_tokens",
    "max_batch_size",
    "tp",
)
SERVING_VALUES: tuple[tuple[str, Any], ...] = (
    ("engine", "tgi"),
    ("engine", "vLLM"),
    ("weights", "awq"),
    ("weights", []),
    ("kv_cache", "fp8_e5m2"),
    ("max_model_len", 0),
    ("gpu_memory_utilization", 1.5),
    ("input_length", {"histogram": {"lengths": [1], "counts": []}}),
    ("speculative", {"tokens": 3}),
    ("disaggregated", "yes"),
    ("slo", {"ttft_seconds": -1}),
    ("concurrency", 1e12),
)
TEXT = {"accept": "text/plain"}


def candidates() -> Iterator[Candidate]:
    """Yield requests that a plan needs nothing of."""
    for path in ADDRESSES:
        yield {"kind": f"page {path}", "method": "GET", "path": path}
    for path in ("/models", "/hardware", "/formats", "/models/llama-3.1-8b", "/hardware/a100-sxm-80gb"):
        yield {"kind": f"text of {path}", "method": "GET", "path": path, "headers": TEXT}
    for method, path in (
        ("HEAD", "/models"),
        ("DELETE", "/models"),
        ("PATCH", "/plan/train"),
        ("OPTIONS", "/plan/infer"),
    ):
        yield {"kind": f"{method} {path}", "method": method, "path": path}
    for model in models()[::12]:
        yield {"kind": f"model {model['id']}", "method": "GET", "path": f"/models/{quote(model['id'], safe='/')}"}
    for gpu in sorted(Path().glob("**/catalogue/gpus/*.toml"))[::2]:
        yield {"kind": f"gpu {gpu.stem}", "method": "GET", "path": f"/hardware/{gpu.stem}"}
    for family in families():
        kind = f"description of {family['config']['model_type']}"
        yield _described(kind, {"config": family["config"]})
    for size in (1e6, 1.5e8, 6.2e9, 7e10, 1e13, 10):
        yield _described(f"description of {size:.1e} parameters", {"parameters": size})
    for kind, models_elsewhere in ELSEWHERE.items():
        for name, model in enumerate(models_elsewhere, 1):
            yield _described(f"description of {kind} {name}", model)
            serving = {"model": model, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1}}
            yield _planned(f"plan of {kind} {name}", "infer", serving)
    yield from _foreign()


def _described(kind: str, model: Any) -> Candidate:
    return {"kind": kind, "method": "POST", "path": "/models/describe", "body": {"model": model}}


def _foreign() -> Iterator[Candidate]:
    """Yield requests in the words of other programs, and with values that are none."""
    train = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8}}
    for field in TRAINING_FIELDS:
        yield _planned(f"refused: training.{field}", "train", {**train, "training": {field: 8}})
    for field in ("dp_degree", "tp_size", "pp", "fsdp", "num_stages"):
        yield _planned(f"refused: layout.{field}", "train", {**train, "layout": {field: 2}})
    for name, value in TRAINING_VALUES:
        yield _planned(f"refused: {name}={value}"[:100], "train", {**train, name: value})
    for field in SERVING_FIELDS:
        yield _planned(f"refused: serving.{field}", "infer", {**train, "serving": {field: "fp8"}})
    for name, value in SERVING_VALUES:
        yield _planned(f"refused: serving.{name}={value}"[:100], "infer", {**train, "serving": {name: value}})
    for text in ("", "{", "[]", "null", '{"model": NaN}', '{"a":1,"a":2}', '"x"', "{}", '{"model":"\\ud800"}'):
        yield {"kind": f"refused: {text}", "method": "POST", "path": "/plan/train", "text": text}
    for query in ("?strict=true", "?format=text", "?format=xml", "?strict=perhaps", "?stict=true"):
        for kind in ("train", "infer"):
            asked = _planned(f"plan with {query}", kind, train)
            yield {**asked, "path": f"/plan/{kind}{query}"}
    small = {**train, "hardware": {"gpu": "t4-16gb", "gpus": 1}}
    for kind in ("train", "infer"):
        yield {**_planned("plan that does not fit, strictly", kind, small), "path": f"/plan/{kind}?strict=true"}
        yield {**_planned("plan as text", kind, {**train, "objective": "cost"}), "headers": TEXT}
        yield {**_planned("refused: no JSON", kind, train), "headers": {"content-type": "text/plain"}}


def _planned(kind: str, of: str, body: Any) -> Candidate:
    return {"kind": kind, "method": "POST", "path": f"/plan/{of}", "body": body}
