"""What the pages work out by themselves, run by Node.js. Skipped where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from plimsoll.api.pages import assets as assets_module

STATIC = Path(assets_module.__file__).parent / "static"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js, which runs the pages' modules here")


def worth(module: str, expression: str) -> Any:
    """Return what an expression over a module's exports (as `m`) is worth."""
    script = f"import * as m from {json.dumps((STATIC / module).as_uri())}; console.log(JSON.stringify({expression}));"
    run = subprocess.run([str(NODE), "--input-type=module"], input=script, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def schedule(expression: str, **degrees: int) -> Any:
    asked = json.dumps({"stages": 4, "chunks": 1, "microBatches": 8, "forward": 1, "backward": 2, **degrees})
    return worth("schedule.js", f"(s => {expression})(m.pipelineSchedule({asked}))")


@pytest.mark.parametrize(
    ("chunks", "micro_batches", "seconds"),
    # m·(f + b) of work and (p − 1)·(f + b)/v of bubble: 8·3 + 3·3; 8·3 + 3·3/2; 2·3 + 3·3.
    # Narayanan et al. 2021, section 2.2, arXiv:2104.04473.
    [(1, 8, 33), (2, 8, 28.5), (1, 2, 15)],
)
def test_a_schedule_lasts_as_long_as_work_and_bubble(chunks: int, micro_batches: int, seconds: float):
    assert schedule("s.seconds", chunks=chunks, microBatches=micro_batches) == seconds


def test_a_stage_waits_for_the_bubble_s_part_of_the_time():
    # (p − 1)/(v·m + p − 1) = 3/(8 + 3).
    assert schedule("s.idleFraction") == pytest.approx(3 / 11)


def test_one_stage_never_waits():
    assert schedule("s.idleFraction", stages=1) == pytest.approx(0.0)


def test_every_micro_batch_passes_every_chunk_of_every_stage_both_ways():
    passes = schedule("s.slots.map((p) => [p.stage, p.chunk, p.microBatch, p.isForward].join())", chunks=2)
    assert len(passes) == len(set(passes)) == 4 * 2 * 8 * 2


def test_no_stage_does_two_things_at_once():
    own = "s.slots.filter((p) => p.stage === stage).sort((a, b) => a.start - b.start)"
    early = f"((own) => own.slice(1).filter((p, at) => p.start < own[at].end - 1e-9))({own})"
    overlaps = f"[0, 1, 2, 3].flatMap((stage) => {early}).length"
    assert schedule(overlaps, chunks=2) == 0


def test_a_stage_keeps_as_many_micro_batches_as_the_memory_planner_counts():
    # 1F1B keeps p − i on stage i (planners/layouts/stages.py): passes begun, not ended.
    begun = (
        "s.slots.filter((p) => p.stage === stage).sort((a, b) => a.start - b.start).map((p) => p.isForward ? 1 : -1)"
    )
    most = "reduce(([now, most], change) => [now + change, Math.max(most, now + change)], [0, 0])[1]"
    kept = f"[0, 1, 2, 3].map((stage) => {begun}.{most})"
    assert schedule(kept) == [4, 3, 2, 1]


def test_ranks_count_the_last_axis_fastest():
    # 13 of 2 x 4 x 1 x 2: 13 = 1·8 + 2·2 + 0·2 + 1.
    assert worth("ranks.js", "m.coordinates(13, [2, 4, 1, 2])") == [1, 2, 0, 1]


def test_expert_ranks_count_within_their_stage():
    mesh = '{order: ["pipeline", "data", "context", "tensor"], shape: [2, 4, 1, 2], expert_parallel: 4, %s}'
    whole, cut = (mesh % f"expert_tensor_parallel: {ranks}" for ranks in (1, 2))
    # Rank 13 is rank 5 of the second stage: 5 mod 4, and floor(5/2) mod 4.
    assert worth("ranks.js", f"[m.expertCoordinate(13, {whole}), m.expertCoordinate(13, {cut})]") == [1, 2]


def test_a_front_leaves_out_what_another_beats_in_both():
    points = "[{x: 2, y: 2}, {x: 1, y: 3}, {x: 3, y: 2}, {x: 4, y: 1}]"
    assert [point["x"] for point in worth("alternatives.js", f"m.paretoFront({points})")] == [1, 2, 4]


def test_an_alternative_of_an_earlier_version_names_neither_card_nor_formats():
    layout = "layout: {gpus: 2, tensor_parallel: 2, data_parallel: 1, prefill_replicas: null}"
    unknown = "gpu: null, weights: null, kv_cache: null, concurrency: null"
    assert worth("layouts.js", f"m.alternativeText({{{layout}, {unknown}}})") == "2 GPUs, tensor parallel 2"
    known = "gpu: 'h100', weights: 'fp8', kv_cache: 'bf16', concurrency: 8"
    assert worth("layouts.js", f"m.alternativeText({{{layout}, {known}}})") == (
        "h100, 2 GPUs, tensor parallel 2, fp8/bf16, 8 requests at once"
    )


def test_a_setting_with_parts_is_told_part_by_part():
    scaling = "['rope_scaling', {kind: 'yarn', factor: 4, original: null}]"
    assert worth("layouts.js", f"m.settingText({scaling})") == "rope scaling yarn 4"
    assert worth("layouts.js", "m.settingText(['block_size', 16])") == "block size 16"


def test_models_are_found_by_words_the_nearest_name_first():
    names = {"a/Llama-3-8B-Instruct": [], "a/Llama-3-8B": ["l3"], "b/Other": []}
    models = json.dumps([{"id": name, "aliases": aliases} for name, aliases in names.items()])

    def found(text: str) -> Any:
        return worth("modelsearch.js", f"m.matchingModels({models}, '{text}').map((each) => each.id)")

    assert found("llama 8b") == ["a/Llama-3-8B", "a/Llama-3-8B-Instruct"]
    assert found("L3") == ["a/Llama-3-8B"]
    assert len(found(" ")) == 3


@pytest.mark.parametrize(("value", "shown"), [(8_030_261_248, "8.03G"), (4.4949e26, "4.49 × 10²⁶"), (1e15, "1 × 10¹⁵")])
def test_counts_of_any_size_are_shown(value: float, shown: str):
    assert worth("quantities.js", f"m.count({value})") == shown


def test_events_are_read_however_the_stream_is_cut():
    pieces = ["id: 7\nevent: prog", 'ress\ndata: {"done": 1}\n\n: ping\n\nevent: state\r\nda', "ta: x\r\n\r\n"]
    read = f"(read => {json.dumps(pieces)}.flatMap(read))(m.parser())"
    assert worth("events.js", read) == [
        {"kind": "progress", "id": "7", "data": '{"done": 1}'},
        {"kind": "state", "id": None, "data": "x"},
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (10 * 2**20, "10 MiB"),
        (2**29, "0.50 GiB"),
        (3 * 2**30, "3.0 GiB"),
        (-(2**31), "−2.0 GiB"),
        (3000 * 2**30, "3,000.0 GiB"),
    ],
)
def test_bytes_are_shown_in_gib_and_little_of_them_in_mib(value: int, shown: str):
    assert worth("quantities.js", f"m.gib({value})") == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0005, "0.5 ms"), (0.999, "999 ms"), (1, "1 s"), (90, "90 s"), (120, "2 min"), (172_800, "2 d")],
)
def test_durations_are_shown_in_the_largest_unit_they_fill(seconds: float, shown: str):
    assert worth("quantities.js", f"m.duration({seconds})") == shown


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ({"layers": [0, 15]}, "layers 0–15"),
        ({"layers": [4, 7], "chunks": [[2, 3], [10, 11]]}, "layers 2–3, 10–11"),
        ({"layers": [2, 3], "chunks": [[1, 1], [5, 5]]}, "layers 1, 5"),
        # The embedding alone, and in one of two chunks.
        ({"layers": [0, -1], "chunks": [[0, -1]]}, "no layers"),
        ({"layers": [0, 1], "chunks": [[0, -1], [15, 16]]}, "layers 15–16"),
    ],
)
def test_the_layers_of_a_stage_are_told_chunk_by_chunk(stage: dict[str, Any], told: str):
    assert worth("ranks.js", f"m.layersText(m.chunksOf({json.dumps(stage)}))") == told


# A clock that goes when it is told, and what is to be done by it.
CLOCK = """let now = 0; let waiting = [];
    Object.defineProperty(performance, "now", { value: () => now });
    globalThis.setTimeout = (act, after) => {
        const timer = { at: now + after, act };
        waiting.push(timer);
        return timer;
    };
    globalThis.clearTimeout = (timer) => { waiting = waiting.filter((each) => each !== timer); };
    const until = (end) => {
        for (const timer of waiting.filter(({ at }) => at <= end)) { now = timer.at; clearTimeout(timer); timer.act(); }
        now = end;
    };"""


@pytest.mark.parametrize(
    ("keys", "acts"),
    # The first key acts at once; of those that follow within 50 ms the last one, 50 ms after it came.
    [([0], [0]), ([0, 5, 10], [0, 60]), ([0, 49], [0, 99]), ([0, 50], [0, 50])],
)
def test_of_keys_in_a_burst_the_first_acts_at_once_and_then_the_last(keys: list[int], acts: list[int]):
    asked = f"""(() => {{ {CLOCK}
        const acts = []; const act = m.debounced(() => acts.push(now));
        for (const at of {keys}) {{ until(at); act(50); }}
        until(1000); return acts; }})()"""
    assert worth("asking.js", asked) == acts


@pytest.mark.parametrize(
    ("longest", "seconds", "shown"), [(300, 60, "1 min"), (90, 60, "60 s"), (0.5, 0.25, "250 ms"), (300, 0, "0")]
)
def test_an_axis_tells_all_durations_in_the_unit_of_its_longest(longest: float, seconds: float, shown: str):
    assert worth("quantities.js", f"m.durationAxis({longest}).format({seconds})") == shown


def test_axes_end_beyond_their_values_with_round_ticks():
    # 1.06 x 10 = 10.6 in five steps is at least 2.12: 5 is the next round one.
    assert worth("scales.js", "m.scaleOf([10], {}, 0, 100).ticks") == [0, 5, 10]
    assert worth("scales.js", "m.scaleOf([2], {whole: true}, 0, 100).ticks") == [0, 1, 2]
    assert worth("scales.js", "m.scaleOf([1, 8], {log: true}, 0, 100).ticks") == [1, 2, 4, 8]


def test_a_band_s_axis_ends_with_the_last_band():
    assert worth("scales.js", "m.scaleOf([1], {bands: [{from: 0, to: 4}]}, 0, 100).at(4)") == 100


def test_layouts_that_differ_read_differently_and_are_told_no_more_than_that():
    layout = {
        "framework": "fsdp2", "gpus": 8, "data_parallel": 8, "tensor_parallel": 1, "pipeline_parallel": 1,
        "virtual_pipeline": 1, "context_parallel": 1, "expert_parallel": 1, "sequence_parallel": False, "zero_stage": 3,
        "shard_group": 8, "offload": "none", "offload_target": "cpu", "micro_batch_size": 1, "recompute": "full",
        "recompute_layers": None, "activation_offload": False, "fused_cross_entropy": False,
        "pipeline_schedule": "1f1b",
    }  # fmt: skip
    exchanging = [{**layout, "context_parallel": 4, "context_all_to_all": ranks} for ranks in (1, 2)]
    layouts = [layout, {**layout, "fused_cross_entropy": True}, {**layout, "shard_group": 4}, {**layout, "gpus": 16}]
    plain = "fsdp2, 8 GPUs, data 8, ZeRO 3, micro-batch 1, recompute full"
    assert worth("alternatives.js", f"m.layoutTexts({json.dumps(layouts)})") == [
        f"{plain}, no fused loss, shard group 8",
        f"{plain}, fused loss",
        f"{plain}, no fused loss, shard group 4",
        plain.replace("8 GPUs", "16 GPUs"),
    ]
    in_context = plain.replace("data 8", "data 8, context 4")
    assert worth("alternatives.js", f"m.layoutTexts({json.dumps(exchanging)})") == [
        f"{in_context}, heads over {ranks}" for ranks in (1, 2)
    ]


SPANS = {"forward": 4, "backward": 8, "update": 2, "extra": 1}
# Two layers, in the order in which a plan and a trace have them.
STEP = [
    ("forward and loss", None), ("forward and loss", 6), ("forward and loss", 7), ("forward and loss", None),
    ("backward", None), ("backward", 7), ("backward", 6), ("backward", None),
    ("root gradient reduction", None), ("optimizer step", None),
]  # fmt: skip


def _moments(places: list[tuple[str, int | None]], **values: list[float]) -> str:
    return json.dumps(
        [
            {"phase": phase, "layer": layer, **{name: each[index] for name, each in values.items()}}
            for index, (phase, layer) in enumerate(places)
        ]
    )


def test_the_moments_of_a_step_stand_where_their_pass_is():
    asked = f"m.placed({_moments(STEP)}, {json.dumps(SPANS)}, 2, [6, 7]).map(({{ x }}) => x)"
    # Two layers are the first and the second half of a pass: 4 x 1/4 and 3/4; 4 + 8 x 1/4 and 3/4.
    assert worth("curves.js", asked) == [0, 1, 3, 4, 4, 6, 10, 12, 12, 13]


def test_the_layers_of_several_chunks_stand_in_their_order():
    places: list[tuple[str, int | None]] = [("backward", layer) for layer in (13, 12, 1, 0)]
    asked = f"m.placed({_moments(places)}, {json.dumps(SPANS)}, 4, [0, 3]).map(({{ x }}) => x)"
    assert worth("curves.js", asked) == [5, 7, 9, 11]


def test_the_layers_that_a_plan_of_an_earlier_version_has_stand_by_their_number():
    places: list[tuple[str, int | None]] = [
        ("forward", None), ("forward and loss", None), ("backward", 3), ("backward", 0), ("loading", None),
    ]  # fmt: skip
    asked = f"m.placed({_moments(places)}, {json.dumps(SPANS)}, 4, [0, 3]).map(({{ x }}) => x)"
    assert worth("curves.js", asked) == [0, 4, 5, 11]


def test_a_moment_is_called_by_its_pass_and_its_layer():
    asked = f"m.placed({_moments(STEP)}, {json.dumps(SPANS)}, 2, [6, 7]).map(m.nameOf)"
    assert worth("curves.js", asked) == [
        "start of the forward pass",
        "forward pass of layer 6",
        "forward pass of layer 7",
        "end of the forward pass",
        "start of the backward pass",
        "backward pass of layer 7",
        "backward pass of layer 6",
        "end of the backward pass",
        "root gradient reduction",
        "optimizer step",
    ]


def test_of_many_moments_some_layers_and_the_peak_are_points():
    places: list[tuple[str, int | None]] = [("backward", layer) for layer in range(100, 0, -1)]
    points = worth("curves.js", f"(all => m.thinned(all, all[1]).map(({{ layer }}) => layer))({_moments(places)})")
    # Every fourth of 100, and the peak.
    assert points[:4] == [100, 99, 96, 92]
    assert len(points) == 26


def _apart(place: str, amount: str, side: str) -> str:
    return f"; they differ most at the {place}, where the plan is {amount} of the peak {side} the trace."


@pytest.mark.parametrize(
    ("distances", "close", "near", "apart"),
    [
        ([0, 0], 2, "all 2", ", and differ at none."),
        ([0.002, -0.051], 1, "1 of 2", _apart("backward pass of layer 3", "5.1 %", "below")),
        ([0.0004, 0.0002], 2, "all 2", _apart("start of the backward pass", "less than 0.1 %", "above")),
    ],
)
def test_the_distance_of_a_trace_is_told_in_words(distances: list[float], close: int, near: str, apart: str):
    moments = _moments([("backward", None), ("backward", 3)], distance=distances)
    asked = f"m.distanceText({{ moments: {moments}, moments_within_one_percent: {close} }})"
    assert worth("curves.js", asked) == f"Plan and trace agree within 1 % of the peak at {near} moments{apart}"
