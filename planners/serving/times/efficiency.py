"""What an engine adds to the operators that it runs: terms fitted to whole deployments, and how far they miss.

The operators' times are measured (`planners/operators`) and stand as they are. What they leave out has names: the gap
from one kernel to the next, the ranks' waiting for one another at an exchange, what the host does for a step and for
each request of it, how much of other requests' prompts a token waits for; and of a first token what comes before its
prompt is computed, what the prompt takes beside its operators, how many of the prompts that came with it go before, and
how many steps pass until it is taken up. Each engine's terms are its `efficiency.toml`.

Measurements: the aggregated rows of aiconfigurator's silicon sample whose degrees multiply to their GPUs
(github.com/ai-dynamo/aiconfigurator, systems/silicon_sample.csv): rows of vLLM 0.12 to 0.18, SGLang 0.5, TensorRT-LLM
1.0 to 1.3, of Llama-3.1-8B, Qwen3-32B and -235B, gpt-oss-120b, DeepSeek-V3 and -R1, Qwen3.5-397B and GLM-5 on H100,
H200, B200 and B300; which are left out, and why: benchmarks/accuracy/serving/latencies.py.

Fit (benchmarks/accuracy/serving/fit.py): least squares of relative errors, each term drawn to a value that its meaning
suggests, first for all engines together and then from there for each engine. Bands: what nine of ten measured values
are of the estimate when their model is left out of both fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from plimsoll.planners.ground.data_files import record
from plimsoll.planners.ground.hardware import SiteEfficiency
from plimsoll.planners.serving.releases.tables import known_engines, read_efficiency

# What a site's factor multiplies, by the names that a calibration has for them: the operators of a step, other
# requests' prompts, exchanges and their gaps, what is between operators, and all of a first token.
READING, COMPUTING, COMMUNICATION, OVERHEADS, FIRST_TOKEN = FACTORS = (
    "reading",
    "computing",
    "communication",
    "overheads",
    "first_token",
)


# Measured kernels that read much reach 0.8 of a card's bandwidth and more: no site's take less of their time than this.
FASTEST = 0.8
# How many times as wide, on a logarithmic scale, the bands are of a card whose operators no one measured: with the
# tables of H100, H200, B200 and B300 left out one after another, and their runs with them, this holds nine in ten runs.
CARD_SPREAD = 1.5
# The same of layouts that no public run had: nothing was there to earn a band by.
LAYOUT_SPREAD = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Between which multiples of an estimate nine of ten measured values of models held out lie."""

    low: float
    high: float

    def widened(self, spread: float) -> Band:
        """Return the band as many times as wide on a logarithmic scale."""
        return Band(low=self.low**spread, high=self.high**spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """What a decode step takes beside its operators.

    `kernel_seconds` pass from one kernel to the next, `exchange_seconds` at each exchange for every doubling of its
    ranks. The host takes `host_seconds` for a step and `request_seconds` for each of its requests. A token waits for
    `others_prompts` of the prompts that other requests send meanwhile. `operators` and `exchanges` are what a site
    found the measured operators to take of their times; 1 as shipped.
    """

    kernel_seconds: float
    exchange_seconds: float
    host_seconds: float
    request_seconds: float
    others_prompts: float
    operators: float = 1.0
    exchanges: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenTerms:
    """What a first token takes: `host_seconds`, `prompt` times its prompt's operators, and what it waits for.

    That is `queued_prompts` of the prompts of all other requests that run, and `awaited_steps` decode steps.
    """

    host_seconds: float
    prompt: float
    queued_prompts: float
    awaited_steps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """One engine's terms and bands."""

    step: StepTerms
    first_token: FirstTokenTerms
    token_band: Band
    first_token_band: Band


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    tables = (read_efficiency(engine) for engine in known_engines())
    return {table["timed_as"]: table for table in tables if table is not None}


def timed_engines() -> tuple[str, ...]:
    """Return the names under which engines' speeds are described."""
    return tuple(_tables())


@cache
def efficiency(engine: str) -> Efficiency:
    """Return an engine's fitted figures, read once."""
    return record(Efficiency, {name: value for name, value in _tables()[engine].items() if name != "timed_as"})


def scaled(shipped: Efficiency, factors: Mapping[str, float]) -> Efficiency:
    """Return an engine's figures with each group of terms multiplied by its factor."""
    step, first = shipped.step, shipped.first_token
    communication, overheads = factors[COMMUNICATION], factors[OVERHEADS]
    return replace(
        shipped,
        step=StepTerms(
            kernel_seconds=step.kernel_seconds * overheads,
            exchange_seconds=step.exchange_seconds * communication,
            host_seconds=step.host_seconds * overheads,
            request_seconds=step.request_seconds * overheads,
            others_prompts=step.others_prompts * factors[COMPUTING],
            operators=max(FASTEST, step.operators * factors[READING]),
            exchanges=max(FASTEST, step.exchanges * communication),
        ),
        first_token=FirstTokenTerms(
            host_seconds=first.host_seconds * factors[FIRST_TOKEN],
            prompt=first.prompt * factors[FIRST_TOKEN],
            queued_prompts=first.queued_prompts * factors[FIRST_TOKEN],
            # Of steps that are scaled already.
            awaited_steps=first.awaited_steps,
        ),
    )


def engine_efficiency(engine: str, site: SiteEfficiency | None) -> Efficiency:
    """Return an engine's figures as the site measured them, where it did."""
    shipped = efficiency(engine)
    measured = None if site is None else site.serving.get(engine)
    if measured is None:
        return shipped
    return replace(
        scaled(shipped, measured.factors),
        token_band=shipped.token_band.widened(measured.token_spread),
        first_token_band=shipped.first_token_band.widened(measured.first_token_spread),
    )
