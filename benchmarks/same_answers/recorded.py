"""A pytest plugin that writes down what tests ask, for `draw`: `pytest -p benchmarks.same_answers.recorded tests/api`.

Requests are taken where httpx sends them, configs where they are described, reviews where admission reads them, and
launch commands become the container of a pod. The lines go to the end of the file in `SAME_ANSWERS_RECORDED`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

FILE = "SAME_ANSWERS_RECORDED"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
# Tests of single words name a model "m" and a program "e"; here they are to be judged.
MODEL_WORD = re.compile(r"(?<![\w\-./'\"$])m(?=\s|$)")
PROGRAM_WORD = re.compile(rf"(?<![\w\-./])e (?={MODEL})")
REVIEWS = ("service.admission.review", "read_review")
CONFIGS = ("planners.huggingface", "describe_config")
COMMANDS = (
    ("service.admission.serving_commands", "serving_launch"),
    ("service.admission.training_commands", "training_launch"),
    ("service.admission.shell", "programs"),
)


def pytest_configure() -> None:
    """Listen to all of it, before a test module imports what is listened to."""
    for client in (httpx.Client, httpx.AsyncClient):
        _listen(client, "send", lambda _, request, *__, **___: _write_request(request))
    module, name = REVIEWS
    _listen(importlib.import_module(module), name, lambda review, *_, **__: _write_review(review))
    module, name = CONFIGS
    _listen(importlib.import_module(module), name, lambda config, *_, **__: _write_config(config))
    for module, name in COMMANDS:
        _listen(importlib.import_module(module), name, _write_command)


def _listen(owner: Any, name: str, told: Callable[..., None]) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def listened(*arguments: Any, **named: Any) -> Any:
        told(*arguments, **named)
        return function(*arguments, **named)

    setattr(owner, name, listened)


def _write(**question: Any) -> None:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0].rpartition("/")[2]
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": f"asked by {test}", **question}) + "\n")


def _write_request(request: httpx.Request) -> None:
    try:
        text = request.content.decode()
    except (httpx.RequestNotRead, UnicodeDecodeError):
        return
    headers = {name: request.headers[name] for name in ("accept", "content-type") if name in request.headers}
    _write(method=request.method, path=request.url.raw_path.decode(), text=text, headers=headers)


def _write_review(review: Any) -> None:
    _write(method="POST", path="/admission/validate", text=json.dumps(review), headers={})


def _write_config(config: Any) -> None:
    _write(method="POST", path="/models/describe", text=json.dumps({"model": {"config": config}}), headers={})


def _write_command(*arguments: Any, gpus: int = 8, **_: Any) -> None:
    """Write a pod whose container starts a command; the arguments are words, a container and perhaps a number."""
    (container,) = (each for each in arguments if hasattr(each, "image"))
    words = next((list(each) for each in arguments if isinstance(each, tuple)), list(container.command))
    manifest = {
        "name": "main",
        "image": container.image,
        "command": [_real(word) for word in words],
        "args": [_real(word) for word in container.args],
        "env": [{"name": name, "value": value} for name, value in container.env.items()],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    pod = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "containers": [manifest]}
    _write_review(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "name": "chat",
                "namespace": "serving",
                "operation": "CREATE",
                "object": {"metadata": {"name": "chat"}, "spec": pod},
            },
        }
    )


def _real(word: str) -> str:
    return PROGRAM_WORD.sub("vllm serve ", MODEL_WORD.sub(MODEL, word))
