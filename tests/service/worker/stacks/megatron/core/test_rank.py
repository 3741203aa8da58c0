"""Megatron-Core's own steps in a trace, and what stands in for them elsewhere held against them."""

import os
import sys
from collections import Counter
from importlib.metadata import version

import pytest
import torch

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.plans import HiddenTraffic
from plimsoll.planners.questions import Recompute
from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.proofs.trace.notes import traced_with
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.found import find_stack
from tests.planners.training_cases import events
from tests.service.worker.cases import LATENT, config, job, requested_bytes, traced, traced_on_transformers, traced_once

# 256 words need no rows to fill 128 a rank, of one rank or of two; a layer has 46,208 elements (cases.py).
VOCABULARY, LAYER, HIDDEN, TOKENS = 256, 46_208, 64, 64
ELEMENTS = 2 * VOCABULARY * HIDDEN + 2 * LAYER + HIDDEN
LLAMA = config(vocab_size=VOCABULARY)
ONE_SEQUENCE = {"sequence_length": TOKENS, "micro_batch_size": 1}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
SPLIT = {"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}
PAIRED = HiddenTraffic(gradients=True, parameters=True, tensor_parallel=True, expert_parallel=True)
# The step's counts, a scale and the rotary frequencies; beside them padding between a flat buffer's tensors.
SMALL_BYTES = 2_000


def megatron(run=traced_once, *, stage=None, **changes):
    return run(stage, **({"framework": "megatron", "zero_stage": 1, "config": LLAMA} | changes))


def kept(ledger):
    """Return the bytes of each larger activation at the end of the last forward pass: of no count, no statistic."""
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "forward"]
    live = ledger._live_after(ranges[-1][1] - 1)
    large = (piece for piece in live if piece.kind in (Kind.FORWARD_ACTIVATION, Kind.LOGITS))
    return sorted(piece.requested_bytes for piece in large if piece.requested_bytes > 512)


@pytest.mark.parametrize(("zero_stage", "ranks"), [(0, 1), (1, 4)])
def test_a_rank_holds_18_bytes_a_parameter_or_6_and_a_share_of_12(zero_stage, ranks):
    ledger = megatron(zero_stage=zero_stage)
    assert requested_bytes(ledger, Kind.PARAMETER) == pytest.approx(2 * ELEMENTS, abs=SMALL_BYTES)
    assert requested_bytes(ledger, Kind.GRADIENT) == pytest.approx(4 * ELEMENTS, abs=SMALL_BYTES)
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == pytest.approx(12 * ELEMENTS / ranks, abs=SMALL_BYTES)


def test_every_matrix_has_an_empty_gradient_of_its_shape_the_head_s_too():
    # 300 words are 384 rows, so that no layer's matrix has the head's shape. In 2 bytes: query, key and value
    # 128 x 64, output 64 x 64, gate and up 352 x 64, down 64 x 176, head 384 x 64.
    shapes = (128 * 64, 64 * 64, 352 * 64, 64 * 176, 384 * 64)
    assert requested_bytes(megatron(config=config(vocab_size=300)), Kind.DUMMY_GRADIENT) == 2 * sum(shapes)


def test_the_head_s_input_is_gathered_into_a_tensor_that_stays():
    # 64 tokens of 64 features in 2 bytes.
    assert requested_bytes(megatron(**SPLIT), Kind.COMMUNICATION) == 2 * TOKENS * HIDDEN


def both_kept(**changes):
    return tuple(sum(kept(megatron(run, **changes))) for run in (traced_once, traced_on_transformers))


@pytest.mark.parametrize("layout", [{}, SPLIT], ids=["whole", "split"])
def test_a_layer_keeps_as_much_as_the_stand_in_s(layout):
    own, stand_in = both_kept(**ONE_SEQUENCE, **layout)
    assert own == stand_in


def test_of_several_sequences_the_attention_s_output_is_kept_twice():
    # Batch first by the kernel, and sequence first by the matrix behind it: 2 x 64 features in each of two layers.
    own, stand_in = both_kept(sequence_length=TOKENS // 2, micro_batch_size=2)
    assert own - stand_in == 2 * 2 * TOKENS * HIDDEN


def test_an_attention_that_is_recomputed_keeps_the_product_that_its_value_is_a_view_of():
    # In 2 bytes and two layers: query, key and value are 64 + 2 x 32 features, of which the value alone is 32.
    own, stand_in = both_kept(**ONE_SEQUENCE, recompute="selective")
    assert own - stand_in == 2 * 2 * TOKENS * (128 - 32)


def test_a_layer_that_is_recomputed_keeps_its_input():
    # Two layers' inputs, the last norm's, its output, logits in fp32, and angles of 16 features a position of 32.
    whole = 2 * TOKENS * HIDDEN
    assert kept(megatron(recompute="full")) == [4 * 16 * 32, whole, whole, whole, whole, 4 * TOKENS * VOCABULARY]


def test_a_norm_that_is_one_module_with_its_matrix_is_not_recomputed():
    assert kept(megatron(recompute="selective", recompute_modules=("layernorm",))) == kept(megatron())


def test_a_feed_forward_that_is_recomputed_keeps_the_residual_stream():
    # Gate, up and their product are thrown away, and the norm's output, in each of two layers.
    whole, less = (sum(kept(megatron(**changes))) for changes in ({}, {"recompute": "selective", **FEED_FORWARD}))
    assert whole - less == 2 * 2 * TOKENS * (3 * 176 + HIDDEN)


FEED_FORWARD = {"recompute_modules": ("mlp",)}


def test_experts_and_their_tokens_are_as_the_stand_in_s():
    layout = {"config": MIXTRAL, "expert_parallel": 2, **ONE_SEQUENCE}
    own, stand_in = (megatron(run, **layout) for run in (traced_once, traced_on_transformers))
    for kind in (Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER_STATE):
        assert requested_bytes(own, kind) == pytest.approx(requested_bytes(stand_in, kind), abs=SMALL_BYTES)
    # Of each of 128 tokens in two layers the stand-in keeps two places, of 8 bytes each, where a mask is kept here.
    assert sum(kept(own)) == sum(kept(stand_in)) - 2 * 2 * 8 * 128


def test_tokens_that_do_not_divide_over_experts_are_traced():
    # 64 tokens of two experts each are 128, over 12 experts of which each of four ranks has three.
    ledger = megatron(config=MIXTRAL | {"num_local_experts": 12}, expert_parallel=4)
    layers = 2 * 3 * 3 * 64 * 176
    assert requested_bytes(ledger, Kind.PARAMETER) > 2 * layers


class TestPipelines:
    def run(self, number, *, layers=2, stage=None, **changes):
        stage = stage or PipelineStage(number=number, stages=2, first_layer=number, last_layer=number)
        layout = {"pipeline_parallel": 2, "accumulation_steps": 4, "config": LLAMA | {"num_hidden_layers": layers}}
        return megatron(stage=stage, **(layout | changes))

    @pytest.mark.parametrize(("number", "elements"), [(0, VOCABULARY * 64 + LAYER), (1, VOCABULARY * 64 + LAYER + 64)])
    def test_the_first_holds_the_embedding_and_the_last_norm_and_head(self, number, elements):
        held = requested_bytes(self.run(number), Kind.PARAMETER)
        assert held == pytest.approx(2 * elements, abs=SMALL_BYTES)

    def test_a_schedule_of_its_own_runs_ahead_of_the_stage_behind(self):
        phases = [mark.phase for mark in self.run(0).marks if mark.step == 1]
        assert phases == ["forward", "forward", "backward", "forward", "backward", "backward", "optimizer"]

    def test_chunks_take_turns(self):
        ledger = self.run(0, layers=4, virtual_pipeline=2)
        assert requested_bytes(ledger, Kind.PARAMETER) == pytest.approx(
            2 * (VOCABULARY * 64 + 2 * LAYER), abs=SMALL_BYTES
        )
        assert sum(mark.phase == "backward" for mark in ledger.marks if mark.step == 1) == 2 * 4

    @pytest.mark.parametrize(
        ("way", "layers", "chunks", "held"),
        [
            ("account-for-loss", 3, 1, [2, 1]),
            ("account-for-embedding-and-loss", 6, 2, [1 + 2, 2 + 1]),
            ("last=1", 4, 1, [3, 1]),
            ("E|t*3L", 3, 1, [0, 3]),
            ("Et|tt|t*3|L", 6, 2, [1 + 3, 2 + 0]),
        ],
    )
    def test_megatron_core_builds_the_layers_that_a_way_gives_a_stage(self, way, layers, chunks, held):
        first = (0, held[0])
        for number, count in enumerate(held):
            stage = PipelineStage(
                number=number, stages=2, first_layer=first[number], last_layer=first[number] + count - 1
            )
            ledger = self.run(number, layers=layers, stage=stage, pipeline_layout=way, virtual_pipeline=chunks)
            elements = VOCABULARY * HIDDEN + count * LAYER + number * HIDDEN
            assert requested_bytes(ledger, Kind.PARAMETER) == pytest.approx(2 * elements, abs=SMALL_BYTES)

    def test_layers_that_the_plan_has_elsewhere_are_not_traced(self):
        stage = PipelineStage(number=0, stages=2, first_layer=0, last_layer=0)
        with pytest.raises(InvalidQuestion, match="builds layers 0 to 2 in chunk 0 of stage 0, and the plan has"):
            self.run(0, layers=4, stage=stage, pipeline_layout="last=1")


class TestPairedPasses:
    """One micro-batch's forward pass beside another's backward pass, by Megatron-Core's combined schedule."""

    def run(self, *, stage=None, **changes):
        layout = {"config": MIXTRAL, "expert_parallel": 2, "accumulation_steps": 4, "overlap": PAIRED}
        return megatron(stage=stage, **(layout | changes))

    def phases(self, ledger):
        return "".join(mark.phase[0] for mark in ledger.marks if mark.step == 1)

    def test_the_first_runs_alone_and_the_last_is_differentiated_alone(self):
        # Two micro-batches: forward, forward beside backward, backward.
        assert self.phases(self.run()) == "fbbo"

    def test_an_interleaved_stage_fills_the_pipeline_by_one_pass_more(self):
        stage = PipelineStage(number=1, stages=2, first_layer=1, last_layer=1)
        layers = MIXTRAL | {"num_hidden_layers": 4}
        layout = {"stage": stage, "config": layers, "pipeline_parallel": 2, "virtual_pipeline": 2}
        alone, paired = self.run(**layout, overlap=None), self.run(**layout)
        # Of eight passes each way two go ahead, and then three, of which the pairs of the others count once.
        assert self.phases(alone) == "ff" + 6 * "fb" + 2 * "b" + "o"
        assert self.phases(paired) == "fff" + 5 * "b" + 3 * "b" + "o"

    def test_tokens_are_sent_and_returned_on_a_stream_of_their_own(self):
        ledger = self.run()
        assert len({event.piece.stream for event in ledger.events}) == 2

    def test_two_steps_leave_the_memory_as_they_found_it(self):
        ledger = self.run()
        ends = [end for mark, _, end in ledger.phase_ranges() if mark.phase == "optimizer"]
        held = [sum(piece.requested_bytes for piece in ledger._live_after(end - 1)) for end in ends]
        assert held[-1] == held[-2]

    @pytest.mark.parametrize("module", ["moe_act", "layernorm"])
    def test_parts_of_a_layer_are_recomputed(self, module):
        less = self.run(recompute="selective", recompute_modules=(module,))
        assert sum(kept(less)) < sum(kept(self.run()))

    def test_nothing_of_cuda_s_is_left_behind(self):
        names = ("Stream", "Event", "stream", "current_stream")
        before = [getattr(torch.cuda, name) for name in names]
        self.run()
        assert [getattr(torch.cuda, name) for name in names] == before
        assert "record_stream" not in vars(torch.Tensor)
        assert sys.modules["megatron.core.pipeline_parallel.utils"].get_comm_stream() is None


def test_ranks_share_a_key_value_head_where_there_are_fewer():
    # A rank of four has a query head of 16 features and half of a key's and a value's, gathered when used; 512 words
    # are the fewest that give each of four ranks a multiple of 128.
    ledger = megatron(data_parallel=1, tensor_parallel=4, sequence_parallel=True)
    layer = LAYER - 2 * HIDDEN
    held = 2 * ((2 * 512 * HIDDEN + 2 * layer) // 4 + 5 * HIDDEN)
    assert requested_bytes(ledger, Kind.PARAMETER) == pytest.approx(held, abs=SMALL_BYTES)


@pytest.mark.parametrize("module", ["moe", "moe_act", "layernorm"])
def test_parts_of_a_mixture_are_recomputed(module):
    layout = {"config": MIXTRAL, "expert_parallel": 2}
    less = megatron(**layout, recompute="selective", recompute_modules=(module,))
    assert sum(kept(less)) < sum(kept(megatron(**layout)))


def test_a_tied_pipeline_has_its_table_at_both_ends():
    tied = TestPipelines().run(1, config=LLAMA | {"tie_word_embeddings": True})
    untied = TestPipelines().run(1)
    assert requested_bytes(tied, Kind.PARAMETER) == requested_bytes(untied, Kind.PARAMETER)


@pytest.mark.parametrize(
    ("changes", "bytes_each"), [({"precision": "fp32"}, 4 + 4 + 8), ({"optimizer": "sgd-momentum"}, 2 + 4 + 4 + 4)]
)
def test_other_precisions_and_optimizers_have_their_states(changes, bytes_each):
    ledger = megatron(zero_stage=0, **changes)
    held = sum(requested_bytes(ledger, kind) for kind in (Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER_STATE))
    assert held == pytest.approx(bytes_each * ELEMENTS, abs=SMALL_BYTES)


def test_a_tied_head_s_empty_gradient_stays_beside_the_sum_that_it_is_added_into():
    ledger = megatron(config=config(vocab_size=384, tie_word_embeddings=True))
    table = [piece for piece in ledger._live_after(len(ledger.events) - 1) if piece.requested_bytes == 2 * 384 * HIDDEN]
    assert Kind.DUMMY_GRADIENT in {piece.kind for piece in table}


@pytest.mark.parametrize(("tokens", "bytes_each"), [(64, [2]), (60, [2, 4, 1 / 4])])
def test_an_attention_without_a_flash_kernel_keeps_its_probabilities(tokens, bytes_each):
    # Of 4 heads in 16 bits; where torch's softmax runs, in fp32 as well, and a mask for all heads.
    sizes = Counter(kept(megatron(attention="eager", sequence_length=tokens, micro_batch_size=1)))
    of_two_layers = {4 * each * tokens**2: 2 for each in bytes_each}
    assert {size: sizes[size] for size in of_two_layers} == of_two_layers


@pytest.mark.parametrize("hidden", [False, True])
def test_gradients_and_parameters_that_hide_take_no_more_than_those_that_do_not(hidden):
    traffic = HiddenTraffic(gradients=hidden, parameters=hidden, tensor_parallel=False, expert_parallel=False)
    assert megatron(overlap=traffic).peak().allocated_bytes == megatron().peak().allocated_bytes


@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd-momentum"}, {"precision": "fp16-mixed"}])
def test_an_update_in_one_kernel_makes_nothing_but_its_states(changes):
    assert requested_bytes(megatron(zero_stage=0, **changes), Kind.OPTIMIZER_TEMPORARY) < SMALL_BYTES


def test_a_ring_s_ranks_have_their_own_tokens():
    whole, ring = (megatron(data_parallel=4 // ranks, context_parallel=ranks) for ranks in (1, 2))
    assert kept(ring)[-1] * 2 == kept(whole)[-1]


def test_a_result_names_the_package_that_ran_and_its_version():
    wanted = job(framework="megatron", zero_stage=1)
    said = traced_with(wanted, find_stack("megatron"), on_device=False)
    assert said.startswith(f"megatron-core {version('megatron-core')}")
    assert "transformers" in traced_with(wanted, find_stack("megatron"), on_device=True)
    unknown_to_transformers = job(framework="megatron", zero_stage=1, config=LATENT | {"model_type": "kimi_k2"})
    assert traced_with(unknown_to_transformers, find_stack("megatron"), on_device=False) == said


def test_what_the_package_is_given_to_run_is_taken_back():
    before = dict(os.environ), torch.cuda.current_device, torch.compile
    megatron(traced, config=MIXTRAL)
    assert (dict(os.environ), torch.cuda.current_device, torch.compile) == before
    assert not sys.modules["megatron.core.parallel_state"].model_parallel_is_initialized()
    assert not sys.modules["megatron.core.tensor_parallel.layers"].HAVE_TE
    assert not torch.distributed.is_initialized()


def test_a_worker_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    with pytest.raises(NotYetAvailable, match=r"install plimsoll\[megatron\]"):
        megatron(traced)


DENSE = config(vocab_size=2048, hidden_size=512, intermediate_size=1152, num_hidden_layers=4, head_dim=128)
MIXTURE = DENSE | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def test_copies_of_the_distributed_optimizer_hold_as_much_as_is_planned():
    # Two copies over two replicas each: states are divided by two, and main gradients are reduced beside their stream.
    layout = {"data_parallel": 4, "shard_group": 2, "zero_stage": 1}
    asked = {"model": describe_config(DENSE, name="small"), "sequence_length": 512, "global_batch_size": 16}
    planned = events("megatron", layout=layout, **asked)
    ledger = megatron(
        config=DENSE, micro_batch_size=1, accumulation_steps=4, sequence_length=512, shard_group=2, recompute="none"
    )
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.step > 0]
    traced_bytes = max(sum(piece.requested_bytes for piece in ledger.peak(start, end).live) for start, end in ranges)
    assert max(event.total for event in planned) == pytest.approx(traced_bytes, rel=0.0004)
    whole = megatron(config=DENSE, micro_batch_size=1, accumulation_steps=4, sequence_length=512, recompute="none")
    states = requested_bytes(ledger, Kind.OPTIMIZER_STATE), requested_bytes(whole, Kind.OPTIMIZER_STATE)
    assert states[0] == pytest.approx(2 * states[1], rel=0.001)


class TestMultiTokenPrediction:
    """Plans held to Megatron-Core's own layers for further tokens; docs/agreement.md says how near others are."""

    def off(self, model, *, layers=1, stage=0, sequence_length=512, recompute="none", **degrees):
        """Return by how much of it a planned peak lies above the traced one."""
        stages = degrees.get("pipeline_parallel", 1)
        asked = {
            "model": describe_config(model, name="small"),
            "sequence_length": sequence_length,
            "global_batch_size": 4 * degrees.get("data_parallel", 1),
            "multi_token_prediction": layers,
        }
        mode = {"none": 0, "full": 2}[recompute]
        planned = events("megatron", stage=stage, layout={"zero_stage": 1, "recompute": mode, **degrees}, **asked)
        each = 4 // stages
        first, last = stage * each, (stage + 1) * each - 1 + (layers if stage == stages - 1 else 0)
        part = PipelineStage(number=stage, stages=stages, first_layer=first, last_layer=last)
        ledger = megatron(
            stage=part if stages > 1 else None,
            config=model,
            micro_batch_size=1,
            accumulation_steps=4,
            sequence_length=sequence_length,
            multi_token_prediction=layers,
            recompute=recompute,
            pipeline_layout="even" if stages > 1 else None,
            **{"data_parallel": 1, **degrees},
        )
        ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.step > 0]
        traced_bytes = max(
            sum(piece.requested_bytes for piece in ledger.peak(start, end).live) for start, end in ranges
        )
        return max(event.total for event in planned) / traced_bytes - 1.0

    @pytest.mark.parametrize("layers", [1, 2])
    def test_a_dense_model_s_peak_is_the_plan_s(self, layers):
        assert self.off(DENSE, layers=layers) == pytest.approx(0.0, abs=0.0004)

    def test_a_mixture_s_peak_is_the_plan_s(self):
        assert self.off(MIXTURE) == pytest.approx(0.0, abs=0.0004)

    @pytest.mark.parametrize("model", [DENSE, MIXTURE], ids=["dense", "mixture"])
    def test_a_pipeline_s_last_stage_has_it_and_the_table_again(self, model):
        assert self.off(model, stage=1, pipeline_parallel=2) == pytest.approx(0.0, abs=0.0004)

    def test_a_stage_of_its_own_sends_the_outputs_of_both(self):
        # Of three stages the second has the further layer alone: the head's receives 2 x 64 tokens of 64 features.
        head = PipelineStage(number=2, stages=3, first_layer=2, last_layer=2)
        layout = {"pipeline_parallel": 3, "pipeline_layout": "Ett|m|L", "multi_token_prediction": 1}
        ledger = megatron(stage=head, data_parallel=1, accumulation_steps=4, **ONE_SEQUENCE, **layout)
        received = [piece for event in ledger.events if (piece := event.piece).origin == "aten::empty"]
        assert 2 * 2 * TOKENS * HIDDEN in {piece.requested_bytes for piece in received}

    @pytest.mark.parametrize(
        "changes",
        [
            {"recompute": "full"},
            {"tensor_parallel": 2, "sequence_parallel": True},
            {"context_parallel": 2},
            {"data_parallel": 2, "shard_group": 2},
        ],
        ids=["recomputed", "split", "in a ring", "replicated"],
    )
    def test_divided_and_recomputed_it_is_the_plan_s_too(self, changes):
        assert self.off(DENSE, **changes) == pytest.approx(0.0, abs=0.0004)

    @pytest.mark.parametrize("tied", [False, True])
    def test_few_tokens_peak_where_gradients_of_the_vocabulary_meet(self, tied):
        model = {**DENSE, "vocab_size": 8192, "tie_word_embeddings": tied}
        assert self.off(model, layers=2, sequence_length=64) == pytest.approx(0.0, abs=0.0004)


class TestPlansOfPairs:
    """Plans held to Megatron-Core's combined schedule; docs/agreement.md says how near deeper ones are."""

    def off(self, *, stage=0, layers=8, recompute=(), **degrees):
        """Return by how much of it a planned peak lies above the traced one."""
        model, stages = MIXTURE | {"num_hidden_layers": layers}, degrees.get("pipeline_parallel", 1)
        layout = {"data_parallel": 2, "expert_parallel": 2, "zero_stage": 1, **degrees}
        mode = {"recompute": Recompute(mode="selective", modules=recompute)} if recompute else {}
        planned = events(
            "megatron",
            stage=stage,
            layout=layout | {"expert_overlap": True, "shard_group": 2, "recompute": 1 if recompute else 0},
            model=describe_config(model, name="small"),
            sequence_length=512,
            global_batch_size=2 * 8,
            **mode,
        )
        # The chunks of even stages are told by their layout; a stage has its lowest and its highest layer.
        first, last = stage, layers - stages + stage
        part = PipelineStage(number=stage, stages=stages, first_layer=first, last_layer=last)
        ledger = megatron(
            stage=part if stages > 1 else None,
            config=model,
            micro_batch_size=1,
            accumulation_steps=8,
            sequence_length=512,
            overlap=PAIRED,
            pipeline_layout="even" if stages > 1 else None,
            recompute="selective" if recompute else "none",
            recompute_modules=recompute,
            **layout,
        )
        ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.step > 0]
        traced_bytes = max(
            sum(piece.requested_bytes for piece in ledger.peak(start, end).live) for start, end in ranges
        )
        return max(event.total for event in planned) / traced_bytes - 1.0

    def test_micro_batches_in_a_row_are_the_plan_s(self):
        assert self.off() == pytest.approx(0.0, abs=0.0005)

    @pytest.mark.parametrize("module", ["core_attn", "moe_act"])
    def test_recomputed_parts_are_the_plan_s(self, module):
        assert self.off(recompute=(module,)) == pytest.approx(0.0, abs=0.002)

    @pytest.mark.parametrize("stage", [0, 1])
    @pytest.mark.parametrize(("chunks", "tolerance"), [(2, 0.003), (4, 0.005)])
    def test_interleaved_stages_are_the_plan_s(self, stage, chunks, tolerance):
        # Of chunks of one layer the gradient of the experts' outputs is planned twice.
        layout = {"pipeline_parallel": 2, "virtual_pipeline": chunks}
        assert self.off(stage=stage, **layout) == pytest.approx(0.0, abs=tolerance)
