"""Reading the job to trace, and what is refused."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.service.worker.training.job import read_job
from plimsoll.service.worker.training.stack import find_stack
from plimsoll.service.worker.training.traceable import refuse_untraced_sharding, runs_own_code
from tests.service.worker.cases import LATENT, config, request


def test_a_job_takes_its_batch_from_the_plan_and_its_precision_from_the_request():
    job = read_job(request())
    assert (job.micro_batch_tokens, job.accumulation_steps, job.precision, job.world_size) == (64, 3, "bf16-mixed", 4)


@pytest.mark.parametrize(
    "layout",
    [
        {"offload": "optimizer"},
        {"pipeline_schedule": "pipedream"},
        {"pipeline_schedule": "gpipe", "virtual_pipeline": 2},
        {"recompute": "sometimes"},
        {"tensor_parallel": 4},  # two key-value heads
        {"tensor_parallel": 3},
    ],
)
def test_a_layout_that_is_not_traced_is_refused_by_name(layout):
    with pytest.raises(NotYetAvailable) as refusal:
        read_job(request(layout=layout))
    assert refusal.value.pointer.startswith("/layout/")


@pytest.mark.parametrize(
    "training",
    [
        {"method": "prefix-tuning"},
        {"companions": [{"role": "reference"}]},
        {"precision": "int8-mixed"},
        {"optimizer": "sophia"},
        {"attention": "linear"},
        {"kernels": "compiled"},
        {"gradient_dtype": "bf16"},
        {"optimizer_state_dtype": "bf16"},
        {"evaluation": {"batch_size": 8}},
        {"expert_imbalance": 1.5},
        {"gradient_compression": "bf16"},
        {"recompute": {"modules": ["moe"]}},
    ],
)
def test_training_that_is_not_traced_is_refused_by_name(training):
    with pytest.raises(NotYetAvailable) as refusal:
        read_job(request(training=training))
    assert refusal.value.pointer.startswith("/training/")


def test_a_sequence_that_does_not_divide_over_the_ranks_is_refused():
    with pytest.raises(NotYetAvailable, match="33 tokens"):
        read_job(request(training={"sequence_length": 33}, layout={"tensor_parallel": 2, "sequence_parallel": True}))


def test_a_family_that_is_not_traced_is_refused():
    with pytest.raises(NotYetAvailable, match="'t5' is not traced yet; traced are"):
        read_job(request(model=config(model_type="t5")))


def test_a_family_whose_code_cannot_be_traced_is_refused_with_the_reason():
    with pytest.raises(NotYetAvailable, match="every token to every expert"):
        read_job(request(model=config(model_type="llama4")))


def test_a_plan_without_a_layout_field_is_no_question():
    incomplete = request()
    del incomplete["plan"]["layout"]["zero_stage"]
    with pytest.raises(InvalidQuestion, match="zero_stage"):
        read_job(incomplete)


def test_a_stack_that_is_not_traced_is_refused():
    with pytest.raises(NotYetAvailable, match="nanotron"):
        find_stack("nanotron")


@pytest.mark.parametrize(("framework", "kernels"), [("reference", "fused"), ("megatron", "eager")])
def test_kernels_that_a_stack_is_not_traced_with_are_refused(framework, kernels):
    with pytest.raises(NotYetAvailable, match=kernels) as refusal:
        find_stack(framework, kernels)
    assert refusal.value.pointer == "/training/kernels"


@pytest.mark.parametrize(("framework", "kernels"), [("accelerate", "eager"), ("megatron", "fused")])
def test_naming_the_kernels_a_stack_is_traced_with_changes_nothing(framework, kernels):
    assert find_stack(framework, kernels) == find_stack(framework)


@pytest.mark.parametrize(
    ("framework", "layout"),
    [
        ("megatron", {"zero_stage": 2}),
        ("accelerate", {"zero_stage": 1}),
        ("fsdp2", {"tensor_parallel": 2, "fused_cross_entropy": True}),
    ],
)
def test_a_sharding_that_is_not_traced_of_a_stack_is_refused_by_name(framework, layout):
    job = read_job(request(layout={"framework": framework, **layout}))
    with pytest.raises(NotYetAvailable) as refusal:
        refuse_untraced_sharding(job, find_stack(framework))
    assert refusal.value.pointer.startswith("/layout/")


@pytest.mark.parametrize(
    ("framework", "layout", "method", "reason"),
    [
        ("fsdp2", {}, "lora", "not traced yet"),
        ("accelerate", {"tensor_parallel": 2}, "qlora", "use lora, or tensor_parallel 1"),
    ],
)
def test_adapters_are_refused_where_they_are_not_traced(framework, layout, method, reason):
    job = read_job(request(layout={"framework": framework, **layout}, training={"method": method}))
    with pytest.raises(NotYetAvailable, match=reason):
        refuse_untraced_sharding(job, find_stack(framework))


@pytest.mark.parametrize(
    "layout", [{"framework": "fsdp2", "tensor_parallel": 2}, {"framework": "megatron", "zero_stage": 1}]
)
def test_families_with_other_matrices_are_refused_where_llama_s_names_matter(layout):
    job = read_job(request(layout=layout, model=config(model_type="phi3")))
    with pytest.raises(NotYetAvailable, match="phi3"):
        refuse_untraced_sharding(job, find_stack(job.framework))


def test_a_pipeline_with_a_tied_head_is_refused():
    with pytest.raises(NotYetAvailable, match="tied"):
        read_job(request(layout={"pipeline_parallel": 2}, model=config(tie_word_embeddings=True), stages=[]))


def pipeline_job(*planned_bytes, **settings):
    """Return a job of stages of two layers each, with these peaks in the plan."""
    parts = [
        {"stage": number, "layers": [2 * number, 2 * number + 1], "peak_bytes": peak}
        for number, peak in enumerate(planned_bytes)
    ]
    model = config(**settings | {"num_hidden_layers": 2 * len(parts)})
    return read_job(request(layout={"pipeline_parallel": len(parts)}, model=model, stages=parts))


def test_of_a_pipeline_of_equal_layers_the_first_second_and_last_stage_decide():
    job = pipeline_job(5, 4, 3, 2, 1)
    assert [stage.number for stage in job.deciding_stages] == [0, 1, 4]
    assert [(stage.first_layer, stage.last_layer) for stage in job.deciding_stages] == [(0, 1), (2, 3), (8, 9)]


def test_the_first_of_the_stages_with_experts_decides_though_it_is_the_third():
    # Ten layers on five stages, the first four dense: the third and the fourth stage are alike.
    job = pipeline_job(5, 4, 9, 8, 7, **LATENT | {"first_k_dense_replace": 4})
    assert [stage.number for stage in job.deciding_stages] == [0, 1, 2, 4]


def test_the_stage_that_the_plan_has_as_the_fullest_decides_too():
    assert [stage.number for stage in pipeline_job(1, 2, 3, 9, 4).deciding_stages] == [0, 1, 3, 4]


def test_interleaved_a_rank_has_every_so_manieth_chunk():
    # 8 layers in 2 x 2 chunks of 2: rank 1 has the second and the fourth, and the head with it.
    parts = [{"stage": number, "layers": [4 * number, 4 * number + 3], "peak_bytes": 1} for number in range(2)]
    layout = {"pipeline_parallel": 2, "virtual_pipeline": 2}
    job = read_job(request(layout=layout, model=config(num_hidden_layers=8), stages=parts))
    chunks = job.chunks_of(job.deciding_stages[1])
    assert [(chunk.first_layer, chunk.last_layer) for chunk in chunks] == [(2, 3), (6, 7)]
    assert [(chunk.is_first, chunk.is_last) for chunk in chunks] == [(False, False), (False, True)]


def test_without_a_pipeline_the_one_stage_has_every_layer():
    (stage,) = read_job(request()).deciding_stages
    assert (stage.is_first, stage.is_last, stage.first_layer, stage.last_layer) == (True, True, 0, 1)


def test_an_unset_part_of_the_training_request_is_not_refused():
    assert read_job(request(training={"kernels": None, "lora": None})).lora.rank == 16


def test_adapters_are_read_from_the_request():
    part = {"rank": 8, "target_modules": ["q_proj"], "double_quantization": False}
    lora = read_job(request(training={"method": "qlora", "lora": part})).lora
    assert (lora.rank, lora.target_modules, lora.double_quantization) == (8, ("q_proj",), False)


@pytest.mark.parametrize(
    ("framework", "ranks", "method", "ran"),
    [("ddp", 1, "full", True), ("ddp", 2, "full", False), ("ddp", 1, "lora", False), ("accelerate", 1, "full", False)],
)
def test_a_stack_s_own_code_runs_only_where_it_adds_nothing_to_torch(framework, ranks, method, ran):
    job = read_job(request(layout={"framework": framework, "data_parallel": ranks}, training={"method": method}))
    assert runs_own_code(job, find_stack(framework)) is ran


def test_a_sharding_that_is_traced_is_not_refused():
    job = read_job(request(layout={"framework": "fsdp2", "zero_stage": 3}))
    refuse_untraced_sharding(job, find_stack("fsdp2"))


def test_recomputation_is_read_from_the_request():
    every = read_job(request(training={"recompute": {"every": 2}}, layout={"recompute": "full"}))
    parts = read_job(request(training={"recompute": {"modules": ["mlp"]}}, layout={"recompute": "selective"}))
    plain = read_job(request(training={"recompute": "full"}, layout={"recompute": "full"}))
    assert (every.recompute_every, parts.recompute_modules) == (2, ("mlp",))
    assert (plain.recompute_every, plain.recompute_modules) == (None, ())


def test_context_ranks_hold_parts_of_a_sequence_and_of_the_parameters():
    wanted = read_job(request(layout={"context_parallel": 2}))
    # 4 data x 2 context ranks; 2 sequences of 32 / 2 tokens.
    assert (wanted.world_size, wanted.shard_ranks, wanted.micro_batch_tokens) == (8, 8, 32)
