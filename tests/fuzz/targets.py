"""What is fuzzed: for each reader of foreign input what it is given, and what it may do with it.

A reader answers or raises the one error that it declares; whatever else it raises is a finding.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from plimsoll.api.strict_json import MalformedBody, strict_json
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import known_model_types
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import InvalidReview, answered, read_review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.catalogue.pages import CataloguePages
from plimsoll.service.checkpoints.headers import INDEX_FILE, SINGLE_FILE, read_checkpoint, read_header
from plimsoll.service.ground.errors import InvalidCheckpoint, PathNotAllowed, PlanNotFound
from plimsoll.service.ground.settings import Settings
from plimsoll.service.ground.untrusted_files import UnusableFile
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.requests.models import DescribeRequest
from plimsoll.service.workloads.commands.shell import MOST_COMMANDS, programs
from plimsoll.service.workloads.objects.annotations import PLAN, PLAN_ID
from plimsoll.service.workloads.objects.object_parts import ObjectNotRead
from tests.fuzz.strategies import spoiled, values
from tests.service.admission.reviews import KINDS, a_container, a_plain_container, a_review, an_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One reader."""

    examples: st.SearchStrategy[Any]
    check: Callable[[Any], None]


# config.json


@cache
def _pages() -> CataloguePages:
    known = catalogue()
    return CataloguePages(known, ModelResolver(known, Settings()))


def _configs() -> list[dict[str, Any]]:
    return [dict(model.config) for model in catalogue().models]


@st.composite
def _config_of_any_family(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a real model's config, at times under the name of another family."""
    config = draw(st.sampled_from(_configs()))
    if draw(st.integers(0, 3)) == 0:
        config = {**config, "model_type": draw(st.sampled_from(known_model_types()))}
    return config


def check_config(config: Any) -> None:
    """Describe a model: either it is refused, or its parts add up."""
    try:
        request = DescribeRequest.model_validate({"model": {"config": config}})
    except ValidationError:
        return
    try:
        description = _pages().describe(request, sequence_length=None)
    except PlimsollError:
        return
    assert 0 <= description.parameters.active <= description.parameters.total


# safetensors


def _header(tensors: Mapping[str, tuple[str, list[int], int]]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, (dtype, shape, stored_bytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + stored_bytes]}
        begin += stored_bytes
    return header


_HEADERS = (
    _header({}),
    _header({"a": ("F32", [2, 3], 24)}),
    _header({"model.embed_tokens.weight": ("BF16", [4, 8], 64), "lm_head.weight": ("U8", [0], 0)}),
    _header({"a": ("F4", [2, 2], 2), "b": ("I64", [], 8), "c": ("BOOL", [3], 3)}),
)
_INDEX = {"metadata": {"total_size": 24}, "weight_map": {"a": SINGLE_FILE, "b": "model-00001-of-00002.safetensors"}}


@st.composite
def _safetensors_files(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """Draw a file, sound or broken anywhere, and an index beside it or none."""
    header = json.dumps(draw(spoiled(st.sampled_from(_HEADERS)))).encode()
    length = draw(st.just(len(header)) | st.integers(0, 2**64 - 1))
    content = length.to_bytes(8, "little") + header + bytes(draw(st.sampled_from((0, 13, 24, 64))))
    if draw(st.booleans()):
        cut, flipped = draw(st.integers(0, len(content))), draw(st.binary(max_size=16))
        content = content[:cut] + flipped + content[cut + len(flipped) :]
    index = draw(st.none() | spoiled(st.just(_INDEX)).map(lambda value: json.dumps(value).encode()) | st.binary())
    return content, index


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="plimsoll-fuzz-"))


def check_safetensors(files: tuple[bytes, bytes | None]) -> None:
    """Read a header, and the folder as a checkpoint: tensors that fill the file, or the declared error."""
    content, index = files
    folder = _folder()
    file = folder / "model-00001-of-00002.safetensors"
    file.write_bytes(content)
    try:
        tensors = read_header(file, name=file.name)
        assert sum(tensor.stored_bytes for tensor in tensors) <= len(content)
    except UnusableFile:
        pass
    (folder / INDEX_FILE).write_bytes(index or b"{}")
    with suppress(InvalidCheckpoint, PathNotAllowed):
        read_checkpoint(folder, [folder], pointer="/weights/path")


# admission

_ARGUMENTS = (
    "--model", "meta-llama/Llama-3.1-8B", "--tensor-parallel-size", "2", "--max-model-len=8192", "-tp", "--tp-size",
    "--gpu-memory-utilization", "0.9", "torchrun", "--nproc_per_node=8", "python", "-m", "vllm.entrypoints.openai",
    "sglang.launch_server", "--kv-cache-dtype", "fp8", "train.py", "--micro-batch-size", "--num-layers", "32",
    "trtllm-serve", "--tp_size", "--config", "/etc/o/a", "--extra_llm_api_options=/etc/o/a", "--backend", "pytorch",
    "text-generation-launcher", "--model-id", "--num-shard", "--quantize", "huggingfaceserver", "vllm", "serve",
    "accelerate", "launch", "--config_file", "--deepspeed", "deepspeed", "--model_name_or_path", "--max_seq_length",
    "/etc/o/run.sh", "bash", "-c", "cat > /etc/o/a <<EOF\na: 1\nEOF\nvllm serve m", "--enable-attention-dp",
    "&&", "|", ";", "$(echo", "`", "'", '"', "\\", "$MODEL", "${TP:-2}", "sh", "-c", "exec", "=", "--", "-", "1e400",
)  # fmt: skip


_IMAGES = (
    "vllm/vllm-openai:v0.19.0", "ghcr.io/huggingface/text-generation-inference:3.3.6", "lmsysorg/sglang:latest", "x",
    "nvcr.io/nvidia/tensorrt-llm/release:1.2.0", "a@sha256:b", "localhost:5000/vllm/vllm-openai:", "",
)  # fmt: skip
_OPTIONS = (
    "a: 1", "kv_cache_config: {dtype: fp8, max_tokens: x}\nenable_attention_dp: true", "[1, 2]", "a: [", "<<: 1", "",
    "tensor-parallel-size: {a: 1}", "model: m\nmax-model-len: 1e400", "zero_optimization: {stage: 3}",
    "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: [1]}", "#!/bin/sh\nvllm serve $MODEL",
    "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: /etc/o/a}", "? [a]\n: b", "a: 2001-01-01",
)  # fmt: skip


class _AnyConfigMap:
    """A ConfigMap of options whose text is what was drawn last."""

    text = ""

    async def get(self, namespace: str, name: str) -> dict[str, str]:
        if name != "o":
            raise ObjectNotRead("away")
        return {"a": self.text, "run.sh": self.text, "MODEL_ID": self.text, "NUM_SHARD": self.text}


@st.composite
def _reviews(draw: st.DrawFn) -> Any:
    """Draw what an API server sends, with anything in it that a cluster's users may write."""
    words = st.lists(st.sampled_from(_ARGUMENTS) | st.text(max_size=12), max_size=12)
    container = a_container(*draw(words), gpus=draw(st.integers(0, 9)))
    if draw(st.booleans()):
        container["command"] = draw(words)
    container["image"] = draw(st.sampled_from(_IMAGES))
    container["envFrom"] = [{"configMapRef": {"name": draw(st.sampled_from(("o", "none")))}}] * draw(st.integers(0, 2))
    container["volumeMounts"] = [{"name": "o", "mountPath": "/etc/o"}]
    kind = draw(st.sampled_from(sorted(KINDS)))
    volumes = [{"name": "o", "configMap": {"name": "o"}}]
    manifest = an_object(kind, container, pods=draw(st.integers(1, 3)), volumes=volumes)
    note = draw(st.sampled_from((None, PLAN_ID, PLAN)))
    if note is not None:
        text = draw(st.text(max_size=20) | values.map(json.dumps))
        manifest["metadata"]["annotations"] = {note: text}
    operation = draw(st.sampled_from(("CREATE", "UPDATE")))
    text = draw(st.sampled_from(_OPTIONS) | values.map(json.dumps) | st.text(max_size=20))
    return draw(spoiled(st.just(a_review(kind, manifest, operation=operation)))), text


class _NoPlans:
    async def get(self, plan_id: str) -> SimpleNamespace:
        raise PlanNotFound(plan_id)


@cache
def _judge() -> AdmissionService:
    known = catalogue()
    sizer = Sizer(ModelResolver(known, Settings()), known)
    return AdmissionService(
        answers=sizer, plans=_NoPlans(), catalogue=known, policies=Policies(None), config_maps=_CONFIG_MAPS
    )


_CONFIG_MAPS = _AnyConfigMap()


def check_admission(drawn: tuple[Any, str]) -> None:
    """Review a workload: the answer is one that an API server can read, and no accident inside nor a silent consent."""
    body, _CONFIG_MAPS.text = drawn
    try:
        review = read_review(body)
    except InvalidReview:
        return
    answer = asyncio.run(_judge().review(review))
    assert not any("failed to judge" in warning for warning in answer.warnings)
    assert answer.is_judged or answer.warnings
    json.dumps(answered(review.uid, answer), allow_nan=False).encode()


# shell text

_SHELL = (
    "vllm", "serve", "e", " ", " ", " ", "\n", ";", "&&", "||", "|", "&", "(", ")", "((", "))", "{ ", "}", "$(", "${",
    "$((", "`", '"', "'", "\\", "$A", "${A:-", "${A[@]}", '"$@"', "$1", "A=", "A+=(", "A=1 B=2", "export ", "f() { ",
    "f", "if ", "then ", "elif ", "else ", "fi", "for i in ", "while ", "do ", "done", "case a in ", "a) ", ";;",
    "esac", "[ x ]", "[[ ", "]]", "exec ", "exit", "eval ", "bash -c ", "cat > /f <<E\n", "E\n", "<<", "<<<", ">",
    "2>&1", "<(", "set -- ", "shift", "local ", "read A", "$'", "#", "é", "\0", "\u202e", "--tp", "2", "=", "*", "~",
    "!",
)  # fmt: skip
MOST_LETTERS = 1_000_000


def check_shell(text: str) -> None:
    """Read a text as a container's script: a hundred programs at most, of words that are no longer than allowed."""
    container = a_plain_container(command=("bash", "-c", text), args=("script", "a b"), env={"A": "1 2"})
    found = list(programs(container))
    assert len(found) <= MOST_COMMANDS
    assert all(program.words for program in found)
    assert sum(len(word) for program in found for word in program.words) <= MOST_LETTERS


# JSON itself

_FRAGMENTS = (
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\u0000", b"\\ud800", b"\\u", b"NaN", b"Infinity", b"-", b"1e999",
    b"1" * 40, b"null", b"true", b'{"a": 1, "a": 2}', b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\0", b" ", b"//",
    b"[" * 2_000, b"9" * 5_000,
)  # fmt: skip
_bodies = st.one_of(
    st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map(b"".join),
    values.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
)


def check_json(body: bytes) -> None:
    """Read a body: what is taken is finite, and is text that the database stores."""
    try:
        value = strict_json(body)
    except MalformedBody as error:
        json.dumps(error.detail)
        return
    assert "\\u0000" not in json.dumps(value, allow_nan=False)


# engines' start-up logs

_LOG_LINES = (
    "INFO 11-02 10:11:12 [core.py:58] Initializing a V1 LLM engine (v0.19.0) with config: model='m'",
    "INFO gpu_model_runner.py:1892] Model loading took 14.99 GiB and 3.5 seconds",
    "INFO gpu_worker.py:227] Available KV cache memory: 56.08 GiB",
    "INFO kv_cache_utils.py:716] GPU KV cache size: 459,376 tokens",
    "INFO kv_cache_utils.py:720] Maximum concurrency for 32,768 tokens per request: 14.02x",
    "[2025-11-02 10:11:12] max_total_num_tokens=423456, chunked_prefill_size=8192, context_len=32768",
    "\x1b[32mINFO\x1b[0m 1e999 GiB, -5 GiB, ,,,, tokens, 99999999999999999999 tokens\r",
)
_logs = st.lists(st.sampled_from(_LOG_LINES) | st.text(max_size=60), max_size=20).map("\n".join)


def check_log(text: str) -> None:
    """Read a log: its figures, or that it is none that can be read."""
    from plimsoll.planners.serving.startup_log import read_startup_log

    with suppress(PlimsollError):
        read_startup_log(text)


TARGETS: Mapping[str, Target] = {
    "config": Target(examples=spoiled(_config_of_any_family()), check=check_config),
    "safetensors": Target(examples=_safetensors_files(), check=check_safetensors),
    "admission": Target(examples=_reviews(), check=check_admission),
    "shell": Target(examples=st.lists(st.sampled_from(_SHELL) | st.text(max_size=6)).map("".join), check=check_shell),
    "json": Target(examples=_bodies, check=check_json),
    **({"log": Target(examples=_logs, check=check_log)} if find_spec("plimsoll.planners.serving.startup_log") else {}),
}
