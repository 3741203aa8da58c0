"""An engine's start-up log: what it says of memory, cache and settings, read from its text.

A log may come from anyone. Each line is cut, each pattern runs once over it with
bounded repeats, and a number out of range is refused: the time is linear in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.figures import figure as written_out
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.log_lines import Line, LogLines, Reduce
from plimsoll.planners.serving.releases.profile import minor_version
from plimsoll.planners.serving.releases.tables import known_engines, read_table

LOG_POINTER = "/log"
# A start prints some hundred lines; its longest, the engine's settings, some 6,000 characters.
MOST_LINES = 50_000
MOST_LINE_CHARACTERS = 20_000
# Beyond any card and any cache.
MOST_GIB = 2**20
MOST_COUNT = 2**50
# Colours, and the carriage returns of progress bars.
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]{0,16}m|\r", re.ASCII)


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

NOTHING_SAID = frozenset({"None", "none", "auto", ""})


def read_startup_log(text: str) -> StartupLog:
    """Return what the last start in a log says; raise `InvalidQuestion` where it is no log of a known engine.

    A log with several starts is read from the last one that got as far as a figure.
    """
    lines, readers = _lines(text), _readers()
    starts = {engine: _last_start(lines, reader) for engine, reader in readers.items()}
    found = {engine: _figures(starts[engine], reader.lines) for engine, reader in readers.items()}
    engine = max(found, key=lambda name: len(MEASURED & found[name].keys()))
    if not MEASURED & found[engine].keys():
        titles = " or ".join(read_table(name)["title"] for name in readers)
        raise InvalidQuestion(
            f"No figure of a start-up of {titles} is in this text: it prints what loading the model took, the memory "
            "and the tokens of its cache.",
            pointer=LOG_POINTER,
        )
    said: dict[str, Any] = {name: _checked(name, value) for name, value in found[engine].items()}
    return StartupLog(engine=engine, engine_version=_version(lines), **said, **_words(starts[engine], readers[engine]))


def _readers() -> dict[str, LogLines]:
    readers = {name: engine_named(name).startup_log for name in known_engines()}
    return {name: reader for name, reader in readers.items() if reader is not None}


def _lines(text: str) -> tuple[str, ...]:
    lines = text.split("\n", MOST_LINES)
    if len(lines) > MOST_LINES:
        raise InvalidQuestion(
            f"A start-up log has at most {MOST_LINES:,} lines; send what was printed until the server was ready.",
            pointer=LOG_POINTER,
        )
    return tuple(TERMINAL_CODES.sub("", line[:MOST_LINE_CHARACTERS]) for line in lines)


def _last_start(lines: Sequence[str], reader: LogLines) -> Sequence[str]:
    """Return the lines of the last start that measured something, from the last figure of the start before it on."""
    needles = tuple({line.has for line in reader.lines if line.figure in MEASURED})
    measuring = [number for number, line in enumerate(lines) if any(needle in line for needle in needles)]
    begins = [number for number, line in enumerate(lines) if reader.settings in line]
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


def _words(lines: Iterable[str], reader: LogLines) -> dict[str, Any]:
    """Return the settings that are words, from the line that states them."""
    stated = next((line for line in lines if reader.settings in line), "")
    found = {name: pattern.search(stated) for name, pattern in reader.words.items()}
    words = {name: match.group(1) for name, match in found.items() if match and match.group(1) not in NOTHING_SAID}
    shared = reader.attention_data_parallel
    return {**words, "has_attention_data_parallel": shared is not None and shared in stated}


def _version(lines: Sequence[str]) -> str | None:
    """Return the engine's version as minor, None where the log does not say."""
    for pattern in (pattern for reader in _readers().values() for pattern in reader.versions):
        for line in lines:
            match = pattern.search(line)
            if match:
                return minor_version(match.group(1))
    return None
