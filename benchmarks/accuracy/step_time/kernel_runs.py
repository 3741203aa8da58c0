"""Runs timed with some kernels and, but for those, alike without: what fusing operations saves, planned and measured.

They are fms-acceleration's runs of transformers under accelerate, whose memory is among the memory cases. No time was
fitted to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from benchmarks.accuracy.document import Section
from benchmarks.accuracy.judged import source_table
from benchmarks.accuracy.step_time.timed_runs import ACCELERATION, TimedAnswer

MICROSECONDS = 1e6


def kernel_section(answers: Sequence[TimedAnswer]) -> Section:
    """Return the errors by kernels, and the pairs."""
    ours = [one for one in answers if one.run.source == ACCELERATION]
    return Section(
        name="time-kernels",
        title="Step time, fms-acceleration's runs of accelerate on A100s (fitted to none of them)",
        lines=(*_by_kernels(ours), "", *_pairs(ours)),
    )


def _by_kernels(answers: Sequence[TimedAnswer]) -> Iterator[str]:
    named: dict[str, list[TimedAnswer]] = {}
    for one in answers:
        training = one.run.request["training"]
        named.setdefault(f"{training['method']}, {training['kernels']}", []).append(one)
    for number, (name, members) in enumerate(sorted(named.items())):
        lines = list(source_table([one.judged for one in members], lambda _, name=name: name))
        yield from lines if number == 0 else lines[1:]


def _pairs(answers: Sequence[TimedAnswer]) -> Iterator[str]:
    yield f"{'pairs that differ in kernels alone':38} eager  foak  saved, us a token: measured, estimated"
    eager = {_job(one): one for one in answers if _kernels(one) == "eager"}
    for one in answers:
        plain = eager.get(_job(one))
        training = one.run.request["training"]
        if _kernels(one) != "foak" or plain is None or training["fused_cross_entropy"]:
            continue
        hardware = one.run.request["hardware"]
        name = f"{one.run.name}, {hardware['gpus']} x {training['micro_batch_size']}"
        measured = [_microseconds(each, each.run.seconds) for each in (plain, one)]
        estimated = [_microseconds(each, each.step["seconds"]) for each in (plain, one) if each.step is not None]
        saved = f"{estimated[0] - estimated[1]:11.0f}" if len(estimated) == len(measured) else f"{'-':>11}"
        yield f"{name:38}{measured[0]:6.0f}{measured[1]:6.0f}{measured[0] - measured[1]:31.0f}{saved}"


def _kernels(answer: TimedAnswer) -> str:
    return str(answer.run.request["training"]["kernels"])


def _microseconds(answer: TimedAnswer, seconds: float) -> float:
    """Return a step's microseconds for each token of a GPU."""
    training, hardware = answer.run.request["training"], answer.run.request["hardware"]
    tokens = training["global_batch_size"] * training["sequence_length"] / hardware["gpus"]
    return float(seconds / tokens * MICROSECONDS)


def _job(answer: TimedAnswer) -> str:
    """Return what two runs that differ in their kernels only have in common; the name has the base's format."""
    request = answer.run.request
    training = {name: value for name, value in request["training"].items() if name != "kernels"}
    return json.dumps([answer.run.name, {**request, "training": training}], sort_keys=True)
