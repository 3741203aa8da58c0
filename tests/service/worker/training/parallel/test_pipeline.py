"""Stages of a pipeline over the small Llama of `cases`: one layer of 46,208 elements each, 6,464 of the vocabulary."""

import pytest

from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.proofs.task import run
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.training.parallel.pipeline import (
    all_forward_all_backward,
    one_forward_one_backward,
    traced_micro_batches,
)
from tests.service.worker.cases import config, request, requested_bytes, traced_on_transformers

F, B = "forward", "backward"
LAYER, VOCABULARY, LAST_NORM = 46_208, 6_464, 64


def stage(number, stages=2):
    return PipelineStage(number=number, stages=stages, first_layer=number, last_layer=number)


def traced_stage(number, **changes):
    layout = {"framework": "megatron", "zero_stage": 0, "pipeline_parallel": 2, "accumulation_steps": 4}
    return traced_on_transformers(stage(number), **(layout | changes))


@pytest.mark.parametrize(
    ("number", "stages", "micro_batches", "order"),
    [
        (0, 2, 3, [F, F, B, F, B, B]),
        (1, 2, 3, [F, B, F, B, F, B]),
        (0, 4, 2, [F, F, B, B]),  # fewer micro-batches than stages
        (0, 4, 3, [F, F, F, B, B, B]),
    ],
)
def test_a_stage_runs_ahead_of_those_behind_it(number, stages, micro_batches, order):
    passes = one_forward_one_backward(stage(number, stages), micro_batches)
    assert [(step.phase, step.chunk) for step in passes] == [(phase, 0) for phase in order]


@pytest.mark.parametrize(
    ("number", "micro_batches", "order"),
    [
        # Two stages of two chunks, chunk 0 or 1: 2 x 1 + 2 passes ahead on the first stage, 2 on the second.
        (0, 2, "F0 F0 F1 F1 B1 B1 B0 B0"),
        (0, 4, "F0 F0 F1 F1 F0 B1 F0 B1 F1 B0 F1 B0 B1 B1 B0 B0"),
        (1, 2, "F0 F0 F1 B1 F1 B1 B0 B0"),
        (1, 4, "F0 F0 F1 B1 F1 B1 F0 B0 F0 B0 F1 B1 F1 B1 B0 B0"),
    ],
)
def test_interleaved_chunks_take_turns_every_two_micro_batches_of_two_stages(number, micro_batches, order):
    passes = one_forward_one_backward(stage(number), micro_batches, chunks=2)
    assert " ".join(f"{step.phase[0].upper()}{step.chunk}" for step in passes) == order


# The first of two stages with two chunks is 4 passes ahead, one round of 2 x 2; of four stages 2 x 3 + 4 = 10, two
# rounds of 4 x 2. One round more shows the steady state.
@pytest.mark.parametrize(("stages", "micro_batches", "traced_ones"), [(2, 2, 2), (2, 4, 4), (2, 64, 4), (4, 64, 12)])
def test_of_an_interleaved_schedule_one_round_more_than_fills_it_is_traced(stages, micro_batches, traced_ones):
    assert traced_micro_batches(stage(0, stages), micro_batches, chunks=2) == traced_ones


@pytest.mark.parametrize(("micro_batches", "traced_ones"), [(1, 1), (4, 4), (5, 5), (6, 5), (64, 5)])
def test_a_full_pipeline_of_four_and_two_rounds_are_traced(micro_batches, traced_ones):
    assert traced_micro_batches(stage(0, 4), micro_batches) == traced_ones


@pytest.mark.slow
class TestStages:
    def test_the_first_holds_the_embedding_and_the_last_norm_and_head(self):
        first, last = (requested_bytes(traced_stage(number), Kind.PARAMETER) for number in (0, 1))
        assert first == 2 * (LAYER + VOCABULARY)
        assert last == 2 * (LAYER + VOCABULARY + LAST_NORM)

    def test_the_first_keeps_one_micro_batch_more_than_the_last(self):
        # A fully recomputed layer keeps its input alone: 64 tokens x 64 x 2 bytes, twice on the first of two stages.
        one, two = (_most_inputs(traced_stage(0, recompute="full", accumulation_steps=count)) for count in (1, 2))
        assert two - one == 64 * 64 * 2

    def test_under_fsdp_weights_stay_gathered_and_gradients_whole_until_the_last_pass(self):
        ledger = traced_stage(0, framework="fsdp2", zero_stage=3)
        # 16-bit weights of the stage, padded to 4 ranks: (46,208 + 104 x 64) elements.
        assert requested_bytes(ledger, Kind.GATHERED_PARAMETER, phase=F) >= 2 * (LAYER + VOCABULARY)
        assert requested_bytes(ledger, Kind.GRADIENT) == requested_bytes(ledger, Kind.PARAMETER)

    def test_interleaved_the_first_rank_has_every_second_layer_and_a_round_more_in_flight(self):
        # Rank 0 of 2 with chunks of a layer each: layers 0 and 2. After the last forward pass the inputs of
        # 2 x 1 + 2 + 1 = 5 chunks are kept, and of 2 x 2 where there are two micro-batches only.
        interleaved = {"config": config(num_hidden_layers=4), "virtual_pipeline": 2, "recompute": "full"}
        two, four = (traced_stage(0, **interleaved, accumulation_steps=count) for count in (2, 4))
        assert requested_bytes(four, Kind.PARAMETER) == 2 * (2 * LAYER + VOCABULARY)
        assert _most_inputs(four) - _most_inputs(two) == 64 * 64 * 2

    def test_the_result_names_every_traced_stage_and_shows_the_worst(self):
        parts = [{"stage": number, "layers": [number, number], "peak_bytes": 1} for number in range(3)]
        layout = {"framework": "megatron", "zero_stage": 1, "pipeline_parallel": 3}
        said = []
        wanted = request(layout=layout, model=config(num_hidden_layers=3), stages=parts)
        result = run(wanted, lambda *progress: said.append(progress))
        peaks = [part["peak_bytes"] for part in result["stages"]]
        assert [part["layers"] for part in result["stages"]] == [[0, 0], [1, 1], [2, 2]]
        assert result["measured"]["peak_bytes"] == max(peaks)
        assert result["rank"] == 4 * peaks.index(max(peaks))
        assert said[0][3] == "stage 0: building"


def _most_inputs(ledger):
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == F]
    last = ledger._live_after(ranges[-1][1] - 1)
    return sum(piece.requested_bytes for piece in last if piece.requested_bytes == 64 * 64 * 2)


def test_gpipe_runs_every_micro_batch_forward_before_the_first_goes_back():
    assert [step.phase for step in all_forward_all_backward(3)] == [F, F, F, B, B, B]


@pytest.mark.slow
def test_under_gpipe_the_last_stage_keeps_logits_and_log_softmax_of_every_micro_batch():
    # 64 tokens of 101 words, 2 bytes of the output and 4 of the log-softmax, for each of three micro-batches.
    ledger = traced_stage(1, framework="fsdp2", zero_stage=3, pipeline_schedule="gpipe", accumulation_steps=3)
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == F]
    live = ledger._live_after(ranges[-1][1] - 1)
    assert sum(piece.requested_bytes for piece in live if piece.kind == Kind.LOGITS) == 3 * 64 * 101 * (2 + 4)
