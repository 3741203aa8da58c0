import csv
import json
from collections import Counter

import pytest

from benchmarks.accuracy.step_time.cases import DATA, all_cases, published_case
from benchmarks.accuracy.step_time.timed_runs import fresh_request, fresh_runs
from plimsoll.planners.stacks.profile import stack_names
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.service.requests.training import TrainRequest

CASES, LEFT_OUT = all_cases()


def case(table: str):
    return next(one for one in CASES if one.table == table)


def test_every_row_is_a_case_or_is_counted_by_its_reason():
    assert len(CASES) + sum(LEFT_OUT.values()) == 405 + 1619


def test_about_three_of_ten_are_held_out():
    assert sum(one.held_out for one in CASES) / len(CASES) == pytest.approx(0.3, abs=0.05)


def test_a_configuration_published_twice_falls_on_one_side():
    sides: dict[str, set[bool]] = {}
    for one in CASES:
        sides.setdefault(one.identity, set()).add(one.held_out)
    assert max(Counter(len(side) for side in sides.values())) == 1


def test_published_rates_become_seconds_by_their_own_count():
    # Narayanan et al. 2021, table 1, 1.7B: 96 x 512 x 2048 x 24 x 2304^2 x (1 + 2048/13824 + 51200/884736) operations
    # on 32 GPUs at 137 TFLOP/s: 1.5470e16 / 4.384e15 = 3.529 s.
    assert case("sc21-2021-04-1.7B").seconds == pytest.approx(3.529, abs=0.001)


def test_what_a_source_did_not_print_stays_open():
    assert len(case("sc21-2021-04-1.7B").layout["micro_batch_size"]) > 1
    request = case("sc21-2021-04-1.7B").request
    assert "micro_batch_size" not in request["training"]
    assert request["training"]["recompute"] == "full"
    assert request["layout"]["tensor_parallel"] == 1


def test_recompute_that_was_not_printed_stays_open_with_what_takes_its_place():
    training = case("bridge-25.09-pre-training-llama3-70b-DGX-GB200-FP8-64-gbs128").request["training"]
    assert {"recompute", "activation_offload"} & training.keys() == set()


def test_a_recipe_says_what_its_table_leaves_out():
    # Megatron-Bridge v0.4.1, scripts/performance/configs/gpt_oss/gpt_oss_workload_base_configs.py, GB200_BF16_V2:
    # recompute_modules ["layernorm", "moe_act"], moe_a2a_overlap True.
    mixture = case("bridge-26.04.01-pre-training-gpt-oss-120b-DGX-GB200-BF16-64-gbs1280").request
    assert mixture["training"]["recompute"] == {"modules": ["layernorm", "moe_act"]}
    assert mixture["layout"]["overlap"] == {"expert_parallel": True}
    # v0.5.0, llama31_workload_base_configs.py, H100_FP8_CS_V2: neither modules nor layers.
    dense = case("bridge-26.06-pre-training-llama3-405b-DGX-H100-FP8-1024-gbs1536").request
    assert dense["training"]["recompute"] == "none"


def test_layers_on_the_host_stay_open_where_a_recipe_has_some():
    # v0.3.0, llama3_workload_base_configs.py, GB200_FP8_CS_V2: cpu_offloading_num_layers 40 under Megatron-FSDP.
    training = case("bridge-26.02-pre-training-llama3-70b-DGX-GB200-FP8-64-gbs256").request["training"]
    assert training["recompute"] == "none"
    assert "activation_offload" not in training


def test_every_recipe_is_of_a_case():
    assert {row["case_id"] for row in rows("train_step_recipes.csv")} <= {one.table for one in CASES}


def test_layers_that_do_not_come_out_even_are_divided_as_the_plan_does():
    # 126 layers over 16 stages of 8 chunks.
    assert "pipeline_layout" not in case("llama3-t4-8192-8192").request["layout"]


def rows(name):
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_request_knows_nothing_of_what_the_run_measured():
    # The unit decides with the source's own count alone what the value means in seconds.
    for row in rows("train_step.csv"):
        made, other = published_case(row), published_case(row | {"value": "123.4", "value2": "56.7"})
        if not isinstance(made, str):
            assert json.dumps(other.request) == json.dumps(made.request)
            assert other.seconds != made.seconds


def test_nor_does_one_of_the_runs_that_no_fit_saw():
    for row in rows("train_step_cases.csv"):
        assert json.dumps(fresh_request(row | {"measured_step_seconds": "1.5"})) == json.dumps(fresh_request(row))


def test_every_request_passes_the_schema_as_json():
    for one in (*CASES, *fresh_runs()):
        TrainRequest.model_validate(json.loads(json.dumps(one.request)))


@pytest.mark.parametrize("name", stack_names())
def test_a_stack_names_the_cards_of_the_runs_that_are_fitted(name: str):
    # A stack that runs on another's kernels may have that one's runs for its own.
    cards = {one.gpu for one in CASES if one.framework == name}
    assert cards <= set(load_efficiency(name).stack.measured_on) <= {one.gpu for one in CASES}
