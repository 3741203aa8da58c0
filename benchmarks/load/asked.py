"""What the load consists of."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.load.driver import get, post

SERVING: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
    "layout": {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1},
}
SEARCHED: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
}
QUANTIZATION = {"model": "meta-llama/Llama-3.1-8B", "scheme": "nf4"}
NO_OP = get("/healthz")


def fresh(number: int, *, key: str | None = None) -> bytes:
    """Return a serving request of one layout that nobody sent before with this number."""
    return _numbered(SERVING, number, key)


def searched(number: int) -> bytes:
    """Return a serving request, of eight GPUs and no layout, that nobody sent before with this number."""
    return _numbered(SEARCHED, number, None)


def _numbered(asked: dict[str, Any], number: int, key: str | None) -> bytes:
    serving = {"max_model_len": 1_024 + number, "input_tokens": 256, "output_tokens": 64, "concurrency": 8}
    return post("/plan/infer", json.dumps({**asked, "serving": serving}).encode(), key=key)
