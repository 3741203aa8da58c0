"""What commands of Megatron-LM say of the optimizer's states, and what its arguments assert of that."""

import pytest

from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.stacks.megatron.states import broken_rules_of_states, told_states
from plimsoll.service.workloads.commands.flags import read_flags

AWARE = "--use-precision-aware-optimizer --use-distributed-optimizer"


def values(text):
    return read_flags(text.split(), FLAGS).values


def test_states_are_on_the_host_where_all_of_them_are():
    told = told_states(values(f"{AWARE} --optimizer-cpu-offload --exp-avg-dtype bf16"))
    # hybrid_optimizer.py is told no dtypes of moments.
    assert (told.layout, told.training, told.memory_saving) == ({"offload": "optimizer"}, {}, ())


@pytest.mark.parametrize(
    "text",
    [
        f"{AWARE} --optimizer-cpu-offload --optimizer-offload-fraction 0.5",
        "--use-precision-aware-optimizer --optimizer-cpu-offload",
    ],
    ids=["a part", "whole states"],
)
def test_what_is_not_planned_on_the_host_leaves_a_rank_less(text):
    told = told_states(values(text))
    assert told.layout == {}
    assert "--optimizer-cpu-offload" in told.memory_saving


def test_a_fraction_of_nothing_is_none():
    told = told_states(values(f"{AWARE} --optimizer-cpu-offload --optimizer-offload-fraction 0"))
    assert (told.layout, "--optimizer-cpu-offload" in told.memory_saving) == ({}, False)


def test_dtypes_are_the_request_s():
    told = told_states(values(f"{AWARE} --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8 --main-grads-dtype bf16"))
    assert told.training == {"optimizer_state_dtype": "fp8", "gradient_dtype": "bf16"}
    # What of a master weight the parameter has already is not kept again (store_param_remainders).
    assert told.memory_saving == ("--use-precision-aware-optimizer",)


def test_moments_of_two_dtypes_are_planned_in_fp32_and_named():
    told = told_states(values(f"{AWARE} --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16"))
    assert told.training == {}
    assert {"--exp-avg-dtype", "--exp-avg-sq-dtype"} <= set(told.memory_saving)


def test_gradients_reduced_in_bf16_are_kept_so():
    # core/distributed/param_and_grad_buffer.py: the buffer has the dtype that grad_reduce_in_fp32 says.
    told = told_states(values("--bf16 --grad-reduce-in-bf16 --use-distributed-optimizer"))
    assert (told.training, told.memory_saving) == ({"gradient_dtype": "bf16"}, ())
    # Of whole states other dtypes are not planned.
    whole = told_states(values("--bf16 --grad-reduce-in-bf16"))
    assert (whole.training, whole.memory_saving) == ({}, ("--grad-reduce-in-bf16",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--optimizer-cpu-offload", "--optimizer-cpu-offload needs --use-precision-aware-optimizer"),
        ("--main-grads-dtype bf16", "--main-grads-dtype bf16 needs --use-precision-aware-optimizer"),
        ("--fp8-param-gather --fp8-format hybrid", "--fp8-param-gather needs --use-distributed-optimizer"),
        ("--fp8-param-gather --use-distributed-optimizer", "--fp8-param-gather needs --fp8-format"),
        (
            "--fp4-format e2m1 --fp8-format e4m3",
            "--fp8-format and --fp4-format exclude each other",
        ),
        (f"{AWARE} --optimizer sgd", "--use-precision-aware-optimizer goes with --optimizer adam alone"),
    ],
)
def test_what_megatron_lm_asserts_is_told(text, words):
    assert list(broken_rules_of_states(values(text))) == [words]


@pytest.mark.parametrize("text", ["", AWARE, f"{AWARE} --optimizer-cpu-offload", "--main-grads-dtype fp32"])
def test_what_it_accepts_breaks_nothing(text):
    assert list(broken_rules_of_states(values(text))) == []
