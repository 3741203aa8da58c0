import pytest

from benchmarks.agreement import Case, compare, grid
from benchmarks.proofs_of import chosen, lines, main

MEGATRON = {"framework": "megatron", "recompute": "none", "sequence_length": 512, "zero_stage": 1}


def cases(number, framework="megatron"):
    return [Case(model=str(index), way={"framework": framework}) for index in range(number)]


def test_a_stack_s_plans_are_chosen_from_the_first_on_evenly():
    others = cases(5, "ddp")
    assert [case.model for case in chosen(others + cases(9), "megatron", 4)] == ["0", "3", "6"]
    assert [case.model for case in chosen(cases(3) + others, "megatron", 8)] == ["0", "1", "2"]


def test_a_plan_beside_a_reference_and_one_with_evaluations_are_among_them():
    rare = [Case(model=part, way={"framework": "megatron", part: {}}) for part in ("companions", "evaluation")]
    assert [case.model for case in chosen(cases(4) + rare * 3, "megatron", 4)] == ["0", "2", "companions", "evaluation"]
    assert [case.model for case in chosen(cases(4) + rare, "megatron", 1)] == ["0"]


def test_every_stack_with_a_package_of_its_own_has_plans_in_the_grid():
    assert all(chosen(grid(), stack, 1) for stack in ("deepspeed", "fsdp2", "megatron"))


def test_a_plan_is_told_with_whose_code_ran_it():
    model = "meta-llama/Llama-3.2-1B"
    told = list(lines([Case(model=model, way=MEGATRON, layers=1)]))
    assert told[1].startswith("megatron-core ")
    assert told[2].startswith(f"{model} megatron")


UNLIKE = MEGATRON | {"pipeline_parallel": 2, "gpus": 4}


@pytest.mark.parametrize(
    ("layers", "way", "held"),
    [
        (3, {"pipeline_layout": "account-for-loss"}, [[2], [1]]),
        (3, {"pipeline_layout": "E|t*3L"}, [[0], [3]]),
        (4, {"pipeline_layout": "last=3", "recompute": "full"}, [[1], [3]]),
        (6, {"pipeline_layout": "account-for-embedding-and-loss", "virtual_pipeline": 2}, [[1, 2], [2, 1]]),
    ],
)
def test_stages_that_are_not_alike_are_planned_as_megatron_core_runs_them(layers, way, held):
    # A message of the first of two interleaved stages is 4 MiB of 9 GiB.
    stages = compare(Case(model="meta-llama/Llama-3.1-8B", way=UNLIKE | way, layers=layers))["stages"]
    assert [stage["layers"] for stage in stages] == held
    for stage in stages:
        assert stage["predicted_bytes"] == pytest.approx(stage["traced_bytes"], rel=0.001)


def test_stages_of_a_pipeline_are_told_by_their_layers():
    way = UNLIKE | {"pipeline_layout": "E|tL"}
    told = list(lines([Case(model="meta-llama/Llama-3.1-8B", way=way, layers=1)]))
    assert [line.split()[:5] for line in told[3:]] == [
        ["stage", str(stage), "with", "layers:", str(stage)] for stage in (0, 1)
    ]


def test_an_unknown_stack_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        main(["colossal"])
    assert "megatron" in capsys.readouterr().err
