"""Measured rows as requests."""

import csv
import json

import pytest

from benchmarks.accuracy.peak_memory.cases import DATA, memory_cases, unseen_case
from benchmarks.accuracy.peak_memory.row_requests import CannotAsk, nanotron_row, row_request, stated_version
from plimsoll.service.requests.training import TrainRequest

QUERY_KEY_VALUE_OUTPUT = ["q_proj", "k_proj", "v_proj", "o_proj"]
# What a run measured, or became of it.
MEASURED = ("mem_gib", "mem_as_published", "outcome", "throughput", "gpu_mem_gb", "mfu_pct", "tok_s_gpu")
CASES = {case.case_id: case for case in memory_cases().cases}


def rows(name):
    with (DATA / name).open(newline="") as file:
        return list(csv.DictReader(file))


def asked(row):
    """Return the text of a row's request, or why it has none."""
    try:
        return json.dumps(row_request(row))
    except CannotAsk as problem:
        return str(problem)


def with_other_measurements(row):
    return row | {name: "12.5" for name in MEASURED if name in row}


def test_of_a_recipe_s_names_those_count_that_the_model_has_as_in_peft():
    # fms-acceleration's recipe says `q_proj k_proj v_proj o_proj c_attn` of Mistral, Llama 2 and Santacoder alike.
    recipes = [row for row in rows("train_memory.csv") if "c_attn" in row["adapter"]]
    targets = {row["model"]: CASES[row["case_id"]].request["training"]["lora"]["target_modules"] for row in recipes}
    assert targets["santacoder"] == ["c_attn"]
    assert targets["llama2-70b"] == QUERY_KEY_VALUE_OUTPUT


def test_no_row_is_left_out_for_a_name_or_for_learned_positions():
    reasons = [reason for _, reason in memory_cases().left_out]
    assert [reason for reason in reasons if "no module" in reason or "learned positions" in reason] == []


@pytest.mark.parametrize("row", rows("train_memory.csv")[::7], ids=lambda row: row["case_id"])
def test_a_request_knows_nothing_of_what_the_run_measured(row):
    assert asked(with_other_measurements(row)) == asked(row)


@pytest.mark.parametrize("row", rows("nanotron_h100.csv")[::200])
def test_nor_does_a_request_of_nanotron_s_sweep(row):
    assert asked(nanotron_row(with_other_measurements(row))) == asked(nanotron_row(row))


def test_the_unseen_runs_are_asked_by_the_requests_that_stand_beside_them():
    for row in rows("train_memory_cases.csv"):
        other = unseen_case(row | {"measured_gib": "12.5", "ran": "no", "kind": "peak"})
        assert other.request == json.loads(row["request"])
        assert not other.is_seen


def test_every_request_passes_the_schema_as_json():
    for case in CASES.values():
        TrainRequest.model_validate(json.loads(json.dumps(case.request)))


def test_a_version_that_a_source_states_is_of_rows_that_are_there_and_is_asked_for():
    files = ("train_memory.csv", "train_step.csv", "train_step_cases.csv")
    there = {row["source"] for name in files for row in rows(name)}
    assert {row["source"] for row in rows("framework_versions.csv")} <= there
    page = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
    versions = {case.request.get("framework_version") for case in memory_cases().cases if case.source == page}
    assert versions == {"2024-12"}
    assert stated_version({"source": "of no version"}) == stated_version({}) == {}
