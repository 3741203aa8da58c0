"""Measured times per token over the planned ones, with the answer's band, as an SVG of some models on some cards.

    python -m benchmarks.accuracy.serving.chart

writes `docs/images/serving-latency.svg`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.serving.latencies import LatencyCase, latency_cases
from benchmarks.accuracy.serving.report import token_seconds

IMAGE = Path(__file__).parents[3] / "docs" / "images" / "serving-latency.svg"
WIDTH, HEIGHT, COLUMNS = 370, 220, 2
LEFT, RIGHT, TOP, BOTTOM = 48, 24, 30, 40
# Requests of one rank, and measured over planned time.
REQUESTS, RATIOS = (1, 1024), (0.5, 2.0)
TICKS, RATIO_TICKS = (1, 4, 16, 64, 256, 1024), (0.5, 0.7, 1.0, 1.4, 2.0)
STYLE = (
    "text{font:11px sans-serif;fill:#333}.title{font-weight:bold}.band{fill:#4c78a8;opacity:.18}"
    ".planned{stroke:#4c78a8;stroke-width:1.5}.measured{fill:#d62728;opacity:.6}.tick{text-anchor:middle}"
    ".ratio{text-anchor:end}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """All measured deployments of a model with one engine on one card, whatever their degrees and lengths."""

    title: str
    engine: str
    family: str
    gpu: str


PANELS = (
    Panel(title="Qwen3-32B, TensorRT-LLM, H100", engine="trtllm", family="Qwen3-32B", gpu="h100_sxm"),
    Panel(title="gpt-oss-120b, vLLM, H200", engine="vllm", family="gpt-oss-120b", gpu="h200_sxm"),
    Panel(title="DeepSeek-V3, SGLang, H200", engine="sglang", family="DeepSeek-V3", gpu="h200_sxm"),
    Panel(title="Llama-3.1-8B, SGLang, H200", engine="sglang", family="Llama-3.1-8B", gpu="h200_sxm"),
)


def main() -> None:
    """Write the chart."""
    IMAGE.write_text(chart(latency_cases()[0]), encoding="utf-8")


def chart(cases: Sequence[LatencyCase]) -> str:
    """Return the SVG of all panels."""
    width, height = WIDTH * COLUMNS, HEIGHT * -(-len(PANELS) // COLUMNS)
    panels = "".join(
        f'<g transform="translate({number % COLUMNS * WIDTH},{number // COLUMNS * HEIGHT})">'
        f"{''.join(_panel(panel, cases))}</g>\n"
        for number, panel in enumerate(PANELS)
    )
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>\n{panels}</svg>\n'


def _panel(panel: Panel, cases: Sequence[LatencyCase]) -> Iterator[str]:
    """Yield the elements of one panel: band, the planned line, the measured points, and the axes' words."""
    shown = [case for case in cases if (case.engine, case.family, case.gpu) == (panel.engine, panel.family, panel.gpu)]
    band = shown[0].work.token_band
    left, right = _across(REQUESTS[0]), _across(REQUESTS[1])
    high, low = _up(band.high), _up(band.low)
    yield f'<text class="title" x="{LEFT}" y="16">{panel.title}</text>'
    yield f'<rect class="band" x="{left:.1f}" y="{high:.1f}" width="{right - left:.1f}" height="{low - high:.1f}"/>'
    yield f'<line class="planned" x1="{left:.1f}" x2="{right:.1f}" y1="{_up(1):.1f}" y2="{_up(1):.1f}"/>'
    for case in shown:
        requests = max(1.0, case.batch / case.work.attention_data_parallel)
        ratio = case.token_seconds / token_seconds(case)
        yield f'<circle class="measured" cx="{_across(requests):.1f}" cy="{_up(ratio):.1f}" r="2.5"/>'
    for tick in TICKS:
        yield f'<text class="tick" x="{_across(tick):.1f}" y="{HEIGHT - BOTTOM + 16}">{tick:,}</text>'
    for ratio in RATIO_TICKS:
        yield f'<text class="ratio" x="{LEFT - 6}" y="{_up(ratio) + 4:.1f}">{ratio:g}</text>'
    yield f'<text class="tick" x="{(left + right) / 2:.1f}" y="{HEIGHT - 4}">requests at once on a rank</text>'


def _across(requests: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * _part(requests, REQUESTS)


def _up(ratio: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - _part(ratio, RATIOS))


def _part(value: float, ends: tuple[float, float]) -> float:
    """Return where a value lies between two ends on a logarithmic scale, within them."""
    low, high = ends
    return math.log(min(max(value, low), high) / low) / math.log(high / low)


if __name__ == "__main__":
    main()
