"""The seconds of a step that a published figure means, by its source's own count of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.famous_runs.record import FamousRun
from plimsoll.planners.architecture import ModelSpec

SECONDS_PER_HOUR = 3600.0
TERA = 1e12


def published_step_seconds(run: FamousRun, model: ModelSpec) -> float | None:
    """Return the step time that was published; None where only memory was."""
    published = run.published
    if published.seconds is not None:
        return published.seconds
    if published.tokens_per_second_per_gpu is not None:
        return run.tokens_per_step / published.tokens_per_second_per_gpu / run.gpus
    if published.gpu_hours is not None and published.tokens is not None:
        return published.gpu_hours * SECONDS_PER_HOUR / run.gpus * run.tokens_per_step / published.tokens
    if published.teraflops_per_gpu is not None:
        rate = published.teraflops_per_gpu * TERA
    elif published.utilization_fraction is not None and published.peak_teraflops is not None:
        rate = published.utilization_fraction * published.peak_teraflops * TERA
    else:
        return None
    return COUNTED[str(published.counting)](run, model) / rate / run.gpus


def conversion(run: FamousRun) -> str | None:
    """Return in words how the published figure became seconds; None where it is seconds, or no speed is published."""
    published = run.published
    if published.tokens_per_second_per_gpu is not None:
        return "a step's tokens over the tokens/s of all GPUs"
    if published.gpu_hours is not None:
        return "GPU hours over GPUs, for a step's part of the tokens"
    if published.counting is None:
        return None
    return {
        "recomputation": "96·B·s·l·h²·(1 + s/6h + V/16lh) operations, recomputation counted (Narayanan et al. 2021)",
        "whole attention": "three times the forward operations, attention counted whole",
        "causal attention": "three times the forward operations, attention counted as causal",
    }[published.counting]


def _with_recomputation(run: FamousRun, model: ModelSpec) -> float:
    """Return operations of a step by Narayanan et al. 2021, section 5.1, arXiv:2104.04473."""
    length = run.request["training"]["sequence_length"]
    hidden, layers, vocabulary = model.hidden_size, model.num_layers, model.vocabulary_size
    share = 1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden)
    return 96.0 * run.tokens_per_step * layers * hidden**2 * share


def _whole_attention(run: FamousRun, model: ModelSpec) -> float:
    length = run.request["training"]["sequence_length"]
    return 3.0 * run.tokens_per_step * model.forward_flops_per_token(length)


def _causal_attention(run: FamousRun, model: ModelSpec) -> float:
    length = run.request["training"]["sequence_length"]
    return 3.0 * run.tokens_per_step * model.forward_flops_per_token((length + 1) / 2)


COUNTED: Mapping[str, Callable[[FamousRun, ModelSpec], float]] = {
    "recomputation": _with_recomputation,
    "whole attention": _whole_attention,
    "causal attention": _causal_attention,
}
