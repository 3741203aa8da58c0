from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.flags import Flag, read_flags

FLAGS = (
    Flag(names=("tensor-parallel-size", "tp"), field="tensor", form="whole"),
    Flag(names=("max-model-len",), field="length", form="whole"),
    Flag(names=("gpu-memory-utilization",), field="utilization", form="number"),
    Flag(names=("model",), field="model", form="text"),
    Flag(names=("bf16",), field="bf16", form="switch"),
)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--tensor-parallel-size", "4"], {"tensor": 4}),
        (["--tensor_parallel_size=4"], {"tensor": 4}),
        (["-tp", "2", "-tp", "8"], {"tensor": 8}),
        (["--max-model-len", "32k"], {"length": 32_000}),
        (["--max-model-len", "32K"], {"length": 32_768}),
        (["--max-model-len", "1.5k"], {"length": 1_500}),
        (["--gpu-memory-utilization", "0.95"], {"utilization": 0.95}),
        (["--bf16", "--model", "m"], {"bf16": True, "model": "m"}),
        (["--bf16", "False"], {"bf16": False}),
        (["--bf16=true"], {"bf16": True}),
    ],
)
def test_values_are_read_as_the_programs_read_them(words, values):
    assert read_flags(words, FLAGS).values == values


def test_other_flags_take_their_word_along_and_the_rest_is_positional():
    read = read_flags(["m", "--seed", "3", "--trust-remote-code", "--tp", "2"], FLAGS)
    assert (read.positionals, read.others, read.values) == (("m",), ("--seed", "--trust-remote-code"), {"tensor": 2})


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--tp", "two"], "--tensor-parallel-size is 'two', which is no number it takes"),
        (["--tp", "1.5"], "--tensor-parallel-size is '1.5', which is no number it takes"),
        (["--tp"], "--tp has no value"),
        (["--tp", "--bf16"], "--tp has no value"),
        (["--tp", "$TP"], "--tensor-parallel-size is $TP, which the object does not resolve"),
        (["--model", "$(MODEL)"], "--model is $(MODEL), which the object does not resolve"),
    ],
)
def test_what_makes_no_sense_is_told(words, problem):
    assert read_flags(words, FLAGS).problems == (problem,)
