"""An engine's start-up log: what it says of memory, cache and settings, read from its text.

A log may come from anyone. Each line is cut, each pattern runs once over it with
bounded repeats, and a number out of range is refused: the time is linear in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.figures import figure as written_out
from plimsoll.planners.serving.engine import GIB, minor_version

LOG_POINTER = "/log"
# A start prints some hundred lines; its longest, the engine's settings, some 6,000 characters.
MOST_LINES = 50_000
MOST_LINE_CHARACTERS = 20_000
# Beyond any card and any cache.
MOST_GIB = 2**20
MOST_COUNT = 2**50
# Colours, and the carriage returns of progress bars.
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]{0,16}m|\r", re.ASCII)

NUMBER = r"(-?\d{1,12}(?:\.\d{1,12})?)"
GIB_NUMBER = NUMBER + r" ?Gi?B"
COUNT = r"(\d[\d,]{0,19})"

Reduce: TypeAlias = Callable[[Sequence[float]], float]


def last(values: Sequence[float]) -> float:
    """Return what was printed last."""
    return values[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that an engine prints: a part that every such line has, the number in it, and which of several counts.

    Workers print one each: the fullest one's weights and the emptiest one's cache decide.
    Where `sums` is given, the numbers of one line are added up.
    """

    figure: str
    has: str
    pattern: re.Pattern[str]
    unit: float = 1.0
    of_several: Reduce = last
    sums: bool = False


def gib_line(figure: str, has: str, pattern: str, of_several: Reduce = max) -> Line:
    """Return a line with an amount of memory; engines that print GB divide by 2^30 as well."""
    return Line(
        figure=figure, has=has, pattern=re.compile(pattern, re.ASCII | re.I), unit=float(GIB), of_several=of_several
    )


def count_line(figure: str, has: str, pattern: str, of_several: Reduce = last) -> Line:
    """Return a line with a number of things, or with a plain ratio."""
    return Line(figure=figure, has=has, pattern=re.compile(pattern, re.ASCII | re.I), of_several=of_several)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupLog:
    """What a log says, None where it does not. Memory is that of one GPU.

    `weights_bytes`, `activations_bytes`, `runtime_bytes` (outside torch) and
    `cuda_graphs_bytes` are of the fullest worker, `kv_available_bytes` of the
    emptiest. `free_before_bytes` was free before the weights were loaded.
    `model` is as the command named it: a name or a folder. `has_attention_data_parallel`
    says that `data_parallel` ranks of attention share the `tensor_parallel` ones (SGLang).
    """

    engine: str
    engine_version: str | None = None
    model: str | None = None
    weight_dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    weights_bytes: int | None = None
    activations_bytes: int | None = None
    runtime_bytes: int | None = None
    cuda_graphs_bytes: int | None = None
    free_before_bytes: int | None = None
    kv_available_bytes: int | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    kv_max_concurrency: float | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    decode_context_parallel: int | None = None
    has_attention_data_parallel: bool = False


COUNTS = frozenset(
    {
        "kv_tokens", "kv_blocks", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "tensor_parallel",
        "pipeline_parallel", "data_parallel", "decode_context_parallel",
    }
)  # fmt: skip
MEMORY = frozenset(
    {"weights_bytes", "activations_bytes", "runtime_bytes", "cuda_graphs_bytes", "free_before_bytes",
     "kv_available_bytes"}
)  # fmt: skip
MEASURED = MEMORY | {"kv_tokens", "kv_blocks", "kv_max_concurrency"}

# vllm/v1/worker/gpu_worker.py, v1/worker/gpu_model_runner.py, v1/core/kv_cache_utils.py, utils/mem_utils.py; before
# 0.8 vllm/worker/worker.py and executor/executor_base.py.
VLLM_LINES = (
    gib_line("weights_bytes", "oading", r"(?:model loading|loading model weights) took " + GIB_NUMBER),
    gib_line("weights_bytes", "model weights take", r"model weights take " + GIB_NUMBER),
    gib_line("weights_bytes", "weights memory:", r"weights memory: " + GIB_NUMBER),
    gib_line("activations_bytes", "torch peak memory increase", r"torch peak memory increase: " + GIB_NUMBER),
    gib_line("activations_bytes", "activation peak memory", r"activation peak memory takes " + GIB_NUMBER),
    gib_line("runtime_bytes", "non-torch forward", r"non-torch forward increase memory: " + GIB_NUMBER),
    gib_line("runtime_bytes", "non_torch_memory", r"non_torch_memory takes " + GIB_NUMBER),
    gib_line("cuda_graphs_bytes", "Graph captur", r"graph capturing finished in .{1,40}? took " + GIB_NUMBER),
    gib_line("kv_available_bytes", "Available KV cache memory", r"available kv cache memory: " + GIB_NUMBER, min),
    gib_line("kv_available_bytes", "reserved for KV Cache", r"reserved for kv cache is " + GIB_NUMBER, min),
    count_line("kv_tokens", "KV cache size", r"kv cache size: " + COUNT + r" tokens", min),
    count_line("kv_blocks", " blocks:", r"# (?:gpu|cuda) blocks: " + COUNT, min),
    count_line("kv_max_concurrency", "Maximum concurrency", r"tokens per request: " + NUMBER + "x", min),
    count_line("max_model_len", "Maximum concurrency", r"concurrency for " + COUNT + " tokens"),
    count_line("max_num_batched_tokens", "max_num_batched_tokens=", r"max_num_batched_tokens=" + COUNT),
    count_line("max_num_batched_tokens", "max_num_batched_tokens'", r"'max_num_batched_tokens': " + COUNT),
    count_line("max_num_seqs", "max_num_seqs'", r"'max_num_seqs': " + COUNT),
    count_line("gpu_memory_utilization", "gpu_memory_utilization", r"gpu_memory_utilization'?(?: \(|: |=)" + NUMBER),
    count_line("gpu_memory_utilization", "Requested memory", r"requested memory: " + NUMBER + r" \(util\)"),
    count_line("max_model_len", "max_seq_len=", r"max_seq_len=" + COUNT),
    count_line("tensor_parallel", "tensor_parallel_size=", r"tensor_parallel_size=" + COUNT),
    count_line("pipeline_parallel", "pipeline_parallel_size=", r"pipeline_parallel_size=" + COUNT),
    count_line("data_parallel", "data_parallel_size=", r"[ ,]data_parallel_size=" + COUNT),
    count_line("decode_context_parallel", "decode_context_parallel_size=", r"decode_context_parallel_size=" + COUNT),
)
# sglang/srt/model_executor/model_runner.py, mem_cache/memory_pool.py, managers/scheduler.py; GiB are printed as GB.
SGLANG_LINES = (
    gib_line("free_before_bytes", "Load weight begin", r"load weight begin\. avail mem=" + GIB_NUMBER, min),
    gib_line("weights_bytes", "Load weight end", r"mem usage=" + GIB_NUMBER),
    Line(
        figure="kv_available_bytes",
        has="KV Cache is allocated",
        pattern=re.compile(r"\b(?:K|V|KV) size: " + GIB_NUMBER, re.ASCII),
        unit=float(GIB),
        of_several=max,
        sums=True,
    ),
    gib_line("cuda_graphs_bytes", "apture cuda graph end", r"mem usage=" + GIB_NUMBER),
    count_line("kv_tokens", "KV Cache is allocated", r"#tokens: " + COUNT, max),
    count_line("kv_tokens", "max_total_num_tokens=", r"max_total_num_tokens=" + COUNT, max),
    count_line("max_model_len", "context_len=", r"context_len=" + COUNT),
    count_line("max_num_batched_tokens", "chunked_prefill_size=", r"chunked_prefill_size=" + COUNT),
    count_line("gpu_memory_utilization", "mem_fraction_static=", r"mem_fraction_static=" + NUMBER),
    count_line("tensor_parallel", "tp_size=", r"\btp_size=" + COUNT),
    count_line("pipeline_parallel", "pp_size=", r"\bpp_size=" + COUNT),
    count_line("data_parallel", "dp_size=", r"\bdp_size=" + COUNT),
)
NAME = r"'([^']{1,200})'"
WORD = r"'?([\w./:+-]{1,80})'?"
# The lines that state the engine's settings, and words in them.
SETTINGS_OF: Mapping[str, str] = {"vllm": "LLM engine (v", "sglang": "server_args="}
WORDS: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    "vllm": {
        "model": re.compile(r"\bmodel=" + NAME, re.ASCII),
        "weight_dtype": re.compile(r"[ ,]dtype=(?:torch\.)?(\w{1,20})", re.ASCII),
        "quantization": re.compile(r"[ ,]quantization=" + WORD, re.ASCII),
        "kv_cache_dtype": re.compile(r"\bkv_cache_dtype=" + WORD, re.ASCII),
    },
    "sglang": {
        "model": re.compile(r"\bmodel_path=" + NAME, re.ASCII),
        "weight_dtype": re.compile(r"[ ,(]dtype=" + WORD, re.ASCII),
        "quantization": re.compile(r"[ ,(]quantization=" + WORD, re.ASCII),
        "kv_cache_dtype": re.compile(r"\bkv_cache_dtype=" + WORD, re.ASCII),
    },
}
DP_ATTENTION = "enable_dp_attention=True"
NOTHING_SAID = frozenset({"None", "none", "auto", ""})
LINES: Mapping[str, tuple[Line, ...]] = {"vllm": VLLM_LINES, "sglang": SGLANG_LINES}
VERSIONS = (
    re.compile(r"LLM engine \(v(\d[\w.+-]{0,60})\)", re.ASCII),
    re.compile(r"vLLM API server version (\d[\w.+-]{0,60})", re.ASCII),
    re.compile(r"sglang(?: version|==|/)\s?v?(\d[\w.+-]{0,60})", re.ASCII | re.I),
)


def read_startup_log(text: str) -> StartupLog:
    """Return what the last start in a log says; raise `InvalidQuestion` where it is no log of vLLM or SGLang.

    A log with several starts is read from the last one that got as far as a figure.
    """
    lines = _lines(text)
    starts = {engine: _last_start(lines, engine) for engine in LINES}
    found = {engine: _figures(starts[engine], LINES[engine]) for engine in LINES}
    engine = max(found, key=lambda name: len(MEASURED & found[name].keys()))
    if not MEASURED & found[engine].keys():
        raise InvalidQuestion(
            "No figure of a start-up of vLLM or SGLang is in this text: it prints what loading the model took, the "
            "memory and the tokens of its cache.",
            pointer=LOG_POINTER,
        )
    said: dict[str, Any] = {name: _checked(name, value) for name, value in found[engine].items()}
    return StartupLog(engine=engine, engine_version=_version(lines), **said, **_words(starts[engine], engine))


def _lines(text: str) -> tuple[str, ...]:
    lines = text.split("\n", MOST_LINES)
    if len(lines) > MOST_LINES:
        raise InvalidQuestion(
            f"A start-up log has at most {MOST_LINES:,} lines; send what was printed until the server was ready.",
            pointer=LOG_POINTER,
        )
    return tuple(TERMINAL_CODES.sub("", line[:MOST_LINE_CHARACTERS]) for line in lines)


def _last_start(lines: Sequence[str], engine: str) -> Sequence[str]:
    """Return the lines of the last start that measured something, from the last figure of the start before it on."""
    needles = tuple({line.has for line in LINES[engine] if line.figure in MEASURED})
    measuring = [number for number, line in enumerate(lines) if any(needle in line for needle in needles)]
    begins = [number for number, line in enumerate(lines) if SETTINGS_OF[engine] in line]
    if not measuring:
        return lines
    begin = begins[bisect_right(begins, measuring[-1]) - 1] if begins and begins[0] <= measuring[-1] else 0
    before = bisect_left(measuring, begin)
    after = bisect_right(begins, measuring[-1])
    first = measuring[before - 1] + 1 if before else 0
    return lines[first : begins[after] if after < len(begins) else len(lines)]


def _figures(lines: Iterable[str], known: Sequence[Line]) -> dict[str, float]:
    """Return every figure found, several of one kind reduced to one."""
    seen: dict[str, list[float]] = {}
    reduces: dict[str, Reduce] = {}
    for text in lines:
        for line in known:
            if line.has not in text:
                continue
            values = [_number(value) * line.unit for value in _values(line, text)]
            if values:
                seen.setdefault(line.figure, []).append(sum(values) if line.sums else values[0])
                reduces[line.figure] = line.of_several
    return {figure: reduces[figure](values) for figure, values in seen.items()}


def _values(line: Line, text: str) -> Iterator[str]:
    for match in line.pattern.finditer(text):
        yield match.group(1)
        if not line.sums:
            return


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _checked(figure: str, value: float) -> int | float:
    """Return a figure in its own type; raise where no start can have it."""
    most = MOST_GIB * GIB if figure in MEMORY else MOST_COUNT
    if figure in MEMORY and value <= 0 and figure != "cuda_graphs_bytes":
        raise InvalidQuestion(
            f"The log says {figure} {value / GIB:.2f} GiB: this start failed and measured nothing.",
            pointer=LOG_POINTER,
        )
    least = 1.0 if figure in COUNTS else 0.0
    if not least <= value <= most:
        raise InvalidQuestion(f"The log says {figure} {written_out(value)}, which no engine has.", pointer=LOG_POINTER)
    if figure == "gpu_memory_utilization" and not 0 < value <= 1:
        raise InvalidQuestion(
            f"The log says {figure} {written_out(value)}; it must be above 0 and at most 1.", pointer=LOG_POINTER
        )
    return round(value) if figure in MEMORY or figure in COUNTS else value


def _words(lines: Iterable[str], engine: str) -> dict[str, Any]:
    """Return the settings that are words, from the line that states them."""
    stated = next((line for line in lines if SETTINGS_OF[engine] in line), "")
    found = {name: pattern.search(stated) for name, pattern in WORDS[engine].items()}
    words = {name: match.group(1) for name, match in found.items() if match and match.group(1) not in NOTHING_SAID}
    return {**words, "has_attention_data_parallel": DP_ATTENTION in stated}


def _version(lines: Sequence[str]) -> str | None:
    """Return the engine's version as minor, None where the log does not say."""
    for pattern in VERSIONS:
        for line in lines:
            match = pattern.search(line)
            if match:
                return minor_version(match.group(1))
    return None
