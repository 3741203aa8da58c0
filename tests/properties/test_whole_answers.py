"""What a person reads or pastes is whole, in the answer as JSON, as text and in its launch files, and its parts add up.

Each question goes the way of a request: from its JSON to the answer's, launch files included.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from plimsoll.cli.asking import NoAnswer
from plimsoll.cli.local import Local
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.stacks.profile import stack_names
from plimsoll.service.artifacts.saved_files import file_name
from plimsoll.service.text.answers import plan_text
from tests.properties.laws import law

LOCAL = Local()
MODELS = tuple(entry.id for entry in catalogue().models)
GPUS = tuple(gpu.id for gpu in catalogue().gpus)
COUNTS = (1, 2, 3, 5, 7, 8, 16, 24, 48, 96, 512, 1000, 1024, 4096, 16_384)
# What a template leaves where a part is missing: a hole, a doubled or a lonely mark, a value of the program's own.
BROKEN = re.compile(r"\{\w*\}|\bNone\b(?! of\b)|\b(nan|inf|True|False)\b|  | [,;:](?!\w)| \.(?![\w.])|[,;:]\.|,,|\(\)")
GAPS = r"\{\}|\bNone\b|\b(nan|NaN)\b|<[a-z_]+>"
# A sum that is said in words: "12.5 + 3.1 = 15.6".
SUMS = re.compile(r"(\d[\d,.]*(?: GiB)?(?: \+ \d[\d,.]*(?: GiB)?)+) = (\d[\d,.]*\d|\d)")
SAID = ("summary", "assumptions", "advice", "comparisons", "stacks", "missing_artifacts")
ROUNDING = 1e-9


@st.composite
def hardware(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.sampled_from(COUNTS))
    gpus = draw(st.sampled_from((count, count, None, {"min": draw(st.integers(1, count)), "max": count})))
    price = draw(st.sampled_from((None, 2.5)))
    asked = {"gpu": draw(st.sampled_from(GPUS)), "gpus": gpus, "usd_per_gpu_hour": price}
    return {name: value for name, value in asked.items() if value is not None}


@st.composite
def trainings(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.sampled_from(COUNTS))
    return {
        "model": draw(st.sampled_from(MODELS)),
        "hardware": draw(hardware()),
        "training": {
            "sequence_length": draw(st.sampled_from((512, 3072, 8192))),
            "global_batch_size": draw(st.sampled_from((1, 3, 5, 7, 105, 480, 2048, count, 3 * count))),
            "method": draw(st.sampled_from(("full", "full", "lora", "qlora"))),
            "precision": draw(st.sampled_from(("bf16-mixed", "bf16-mixed", "bf16"))),
            "tokens": draw(st.sampled_from((None, 10_000_000_000))),
        },
        "objective": draw(st.sampled_from(("throughput", "cost", "fewest_gpus"))),
        "framework": draw(st.sampled_from(("any", "any", *stack_names()))),
        "compare": draw(st.sampled_from(([], [{"tensor_parallel": 2}], [{"zero_stage": 3, "offload": "optimizer"}]))),
    }


@st.composite
def deployments(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "model": draw(st.sampled_from(MODELS)),
        "hardware": draw(hardware()),
        "serving": {
            "engine": draw(st.sampled_from(("vllm", "sglang", "tensorrt-llm", "transformers"))),
            "weights": draw(st.sampled_from(("bf16", "bf16", "fp8", ["bf16", "fp8"], "int4"))),
            "max_model_len": draw(st.sampled_from((2_048, 32_768))),
            "input_tokens": 1_024,
            "output_tokens": 512,
            "concurrency": draw(st.sampled_from((None, 1, 64, 3_000))),
            "slo": draw(st.sampled_from((None, {"ttft_seconds": 0.5, "tpot_seconds": 0.02}))),
        },
        "objective": draw(st.sampled_from(("throughput", "cost", "fewest_gpus", "latency"))),
    }


def answered(kind: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = LOCAL.plan(kind, request, lambda *_: None)
    except NoAnswer as refusal:
        details = [detail for _, detail in refusal.fields]
        if isinstance(refusal.__cause__, PlimsollError):
            details.append(refusal.__cause__.detail)
        for sentence in (refusal.message, *details):
            check_sentence(sentence)
        assume(False)
    return answer


def sentences(value: Any) -> Iterator[str]:
    """Yield every text of several words."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from sentences(each)
    elif isinstance(value, str) and " " in value:
        yield value


def check_sentence(sentence: str) -> None:
    assert sentence[0].isalnum() or sentence[0] in "'\"`$+-", sentence
    assert sentence.rstrip(")\"'`").endswith((".", "?")), sentence
    assert not BROKEN.search(sentence), sentence
    assert sentence.count("(") == sentence.count(")"), sentence
    for parts, total in SUMS.findall(sentence):
        terms = [float(term.replace(",", "").removesuffix(" GiB")) for term in parts.split(" + ")]
        assert math.isclose(sum(terms), float(total.replace(",", "")), abs_tol=1e-6), sentence


def check_whole(body: dict[str, Any]) -> None:
    """Whatever is said is whole where it is said and on the page, and every launch file can be read."""
    assert body["omitted"] == []
    page = "".join(plan_text(body).split())
    assert body["plan_id"] in page
    for part in SAID:
        for sentence in sentences(body.get(part, [])):
            check_sentence(sentence)
    for sentence in (body["summary"], *body["assumptions"]):
        assert "".join(sentence.split()) in page
    for name, file in body["artifacts"].items():
        # A null of JSON or a None of Python is a value that its program takes; in other text it is a gap.
        text = file if isinstance(file, str) else json.dumps(file)
        gaps = r"\{\}|\b(nan|NaN)\b|<[a-z_]+>" if file_name(name, file).endswith(".py") else GAPS
        assert not re.search(gaps, text), name
        check_file(file)


def check_file(file: Any) -> None:
    if not isinstance(file, str):
        json.dumps(file)
    elif "apiVersion:" in file:
        assert all(isinstance(each, dict) for each in yaml.safe_load_all(file))
    elif file.startswith("#!"):
        subprocess.run(["/bin/bash", "-n"], input=file, text=True, check=True)
    elif "\n" not in file:
        assert shlex.split(file)


# What needs the least of all layouts, and still too much, keeps its states in host memory.
TOO_LARGE_OFFLOADED = {
    "model": "01-ai/Yi-1.5-34B",
    "hardware": {"gpu": "a10-24gb", "gpus": 3},
    "training": {"sequence_length": 512, "global_batch_size": 1, "method": "full"},
}


@law(few=6, many=1000)
@given(request=trainings())
@example(request=TOO_LARGE_OFFLOADED)
def test_a_training_answer_is_whole_and_its_parts_add_up(request: dict[str, Any]):
    body = answered("train", request)
    check_whole(body)
    plan = body["plan"]
    memory, step, layout = plan["memory"], plan["step"], plan["layout"]
    assert sum(memory["items"].values()) == memory["peak_bytes"]
    assert memory["peak_bytes"] + memory["margin_bytes"] == memory["limit_bytes"]
    assert math.isclose(sum(step["parts"].values()), step["seconds"], rel_tol=ROUNDING)
    degrees = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")
    assert math.prod(layout[degree] for degree in degrees) == layout["gpus"]
    batch = layout["data_parallel"] * layout["micro_batch_size"] * layout["gradient_accumulation_steps"]
    assert batch == request["training"]["global_batch_size"]
    assert step["low_seconds"] <= step["seconds"] <= step["high_seconds"]


@law(few=6, many=1000)
@given(request=deployments())
def test_a_serving_answer_is_whole_and_its_parts_add_up(request: dict[str, Any]):
    body = answered("infer", request)
    check_whole(body)
    plan = body["plan"]
    memory, layout = plan["memory"], plan["layout"]
    assert sum(memory["items"].values()) == memory["peak_bytes"]
    assert memory["peak_bytes"] + memory["margin_bytes"] == memory["limit_bytes"]
    degrees = ("data_parallel", "attention_data_parallel", "tensor_parallel", "pipeline_parallel")
    assert math.prod(layout[degree] for degree in degrees) == layout["gpus"]
