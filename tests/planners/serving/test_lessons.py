"""What a measured start teaches: factors, offsets, and what is no such start."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from plimsoll.planners.ground.units import GIB
from plimsoll.planners.learned import Learned, Ranks
from plimsoll.planners.serving.degrees import Degrees, ranks_of
from plimsoll.planners.serving.lessons import MeasuredStart, PlannedStart, lesson
from plimsoll.planners.serving.planning import plan_serving
from plimsoll.planners.serving.releases.profile import engine_profile
from tests.planners.serving.factories import question


def learned(**values: Any) -> Learned:
    return Learned(revision="r", provenance="a start", **values)


def planned(engine: str = "vllm", version: str = "0.19", **changes: Any) -> PlannedStart:
    """Return a plan of an 80 GiB card: 15 of weights, 2 of activations, 0.25 outside torch, 54.75 of cache."""
    start = PlannedStart(
        profile=engine_profile(engine, version),
        ranks=Ranks.SINGLE,
        utilization_fraction=0.9,
        card_bytes=80 * GIB,
        weights_bytes=15 * GIB,
        stage_weights_bytes=15 * GIB,
        activations_bytes=2 * GIB,
        runtime_bytes=GIB // 4,
        cuda_graphs_bytes=GIB,
        available_bytes=round(54.75 * GIB),
        ttft_seconds=0.1,
        tpot_seconds=0.01,
        learned=None,
    )
    return dataclasses.replace(start, **changes)


def test_what_the_cache_lacks_beyond_the_measured_terms_lies_outside_torch():
    # 4.75 GiB less cache: 3 are weights, 1 activations, and 0.75 lie outside torch.
    taught = lesson(
        planned(),
        MeasuredStart(weights_bytes=18 * GIB, activations_bytes=3 * GIB, available_bytes=50 * GIB),
    )
    assert taught.values["weights_factor"] == pytest.approx(1.2)
    assert taught.values["activations_factor"] == pytest.approx(1.5)
    assert taught.values["single_offset_bytes"] == pytest.approx(0.75 * GIB)


def test_graphs_count_where_the_version_budgets_them():
    measured = MeasuredStart(cuda_graphs_bytes=GIB // 2, available_bytes=54 * GIB)
    # 0.75 GiB less cache; from 0.21 on half a GiB of graphs fewer should have made it more.
    assert lesson(planned(), measured).values["single_offset_bytes"] == pytest.approx(0.75 * GIB)
    newer = lesson(planned(version="0.21"), measured)
    assert newer.values["single_offset_bytes"] == pytest.approx(1.25 * GIB)
    assert newer.values["cuda_graphs_factor"] == 0.5


def test_a_static_fraction_passes_on_only_its_share_of_what_is_gone_before():
    # 0.9 GiB less at a fraction of 0.9: one more GiB was gone before the weights were loaded.
    taught = lesson(planned("sglang", "0.5"), MeasuredStart(available_bytes=round(53.85 * GIB)))
    assert taught.values["single_offset_bytes"] == pytest.approx(GIB)


def test_a_free_fraction_passes_on_its_share_of_everything():
    measured = MeasuredStart(weights_bytes=16 * GIB, available_bytes=round(52.95 * GIB))
    # 1.8 GiB less at 0.9 are two gone: one of weights, one outside torch.
    taught = lesson(planned("tensorrt-llm", "1.0"), measured)
    assert taught.values["single_offset_bytes"] == pytest.approx(GIB)


def test_without_a_cache_what_lies_outside_torch_is_compared_itself():
    assert lesson(planned(), MeasuredStart(runtime_bytes=GIB)).values == {"single_offset_bytes": GIB - GIB // 4}


def test_what_a_plan_knew_already_is_kept_in_what_it_learns():
    before = learned(weights_factor=1.1, single_offset_bytes=GIB, tpot_factor=2.0)
    taught = lesson(
        planned(learned=before),
        MeasuredStart(weights_bytes=15 * GIB, available_bytes=round(53.75 * GIB), tpot_seconds=0.015),
    )
    assert taught.values == {
        "weights_factor": pytest.approx(1.1),
        "tpot_factor": pytest.approx(3.0),
        "single_offset_bytes": pytest.approx(2 * GIB),
    }


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (MeasuredStart(weights_bytes=23 * GIB), "weights"),
        (MeasuredStart(weights_bytes=9 * GIB), "weights"),
        (MeasuredStart(ttft_seconds=0.41), "ttft"),
        (MeasuredStart(available_bytes=30 * GIB), "quarter"),
        (MeasuredStart(), "Nothing"),
    ],
)
def test_another_start_teaches_nothing(measured: MeasuredStart, told: str):
    taught = lesson(planned(), measured)
    assert not taught.values
    assert told in (taught.obstacle or "")


def test_the_edge_of_what_is_believed_is_believed():
    # One and a half times the weights, a quarter of the card, four times the latency.
    assert lesson(planned(), MeasuredStart(weights_bytes=round(22.5 * GIB))).values
    assert lesson(planned(), MeasuredStart(available_bytes=round(34.75 * GIB))).values
    assert lesson(planned(), MeasuredStart(tpot_seconds=0.04)).values


def test_ranks_are_told_by_what_communicates_within_a_stage():
    assert ranks_of(Degrees()) is Ranks.SINGLE
    assert ranks_of(Degrees(pipeline_parallel=2)) is Ranks.PIPELINE
    assert ranks_of(Degrees(tensor_parallel=2, pipeline_parallel=2)) is Ranks.TENSOR
    assert ranks_of(Degrees(attention_data_parallel=2)) is Ranks.TENSOR


def test_a_plan_rests_on_what_was_learned_of_its_weight_format_alone():
    one = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}
    shipped = plan_serving(question(layout=one)).plan
    taught = learned(weights_factor=1.1, activations_factor=1.2, single_offset_bytes=GIB)
    plan = plan_serving(question(layout=one, learned={"bf16": taught})).plan
    items, before = plan.memory.items, shipped.memory.items
    assert items.weights == pytest.approx(1.1 * before.weights)
    assert items.activations == pytest.approx(1.2 * before.activations)
    assert items.runtime == before.runtime + GIB
    taken = (items.weights - before.weights) + (items.activations - before.activations) + GIB
    assert shipped.kv.available_bytes - plan.kv.available_bytes == taken
    assert plan.learned == taught
    assert plan_serving(question(layout=one, learned={"fp8": taught})).plan == shipped


def test_what_is_outside_torch_on_one_rank_says_nothing_of_two():
    two = {"tensor_parallel": 2, "pipeline_parallel": 1, "data_parallel": 1}
    taught = {"bf16": learned(single_offset_bytes=GIB)}
    shipped = plan_serving(question(gpus=2, layout=two)).plan
    assert plan_serving(question(gpus=2, layout=two, learned=taught)).plan.memory == shipped.memory


def test_latencies_scale_by_what_was_measured():
    shipped = plan_serving(question(concurrency=1)).plan.performance
    taught = {"bf16": learned(tpot_factor=1.5, ttft_factor=0.5)}
    plan = plan_serving(question(concurrency=1, learned=taught)).plan.performance
    assert shipped is not None
    assert plan is not None
    assert plan.tpot_seconds == pytest.approx(1.5 * shipped.tpot_seconds)
    assert plan.ttft_seconds == pytest.approx(0.5 * shipped.ttft_seconds)
