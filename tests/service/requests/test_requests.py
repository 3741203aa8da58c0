"""Requests: what is taken, what is refused, and where the refusal points."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownGpu, UnknownModel, UnknownVersion
from plimsoll.planners.ground.ranges import SEQUENCE_TOKENS
from plimsoll.planners.questions import LayoutRequest, NamedLayout, Overlap, Recompute
from plimsoll.planners.stacks.profile import stack_names
from plimsoll.service.catalogue.gpus import MOST_GPUS_UNASKED, resolve_fleet, resolve_hardware
from plimsoll.service.requests.calibration import CalibrationRequest
from plimsoll.service.requests.configs import MOST_CONFIG_DEPTH
from plimsoll.service.requests.hardware import OneHardware
from plimsoll.service.requests.jobs import QuantizeRequest, ValidateRequest
from plimsoll.service.requests.measurements import MeasurementRequest
from plimsoll.service.requests.models import ConfigModel, DescribeRequest
from plimsoll.service.requests.pointers import field_errors, field_name, json_pointer
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import Stack, TrainRequest
from tests.api.questions import TINY_CONFIG, infer, train

BY_HAND: dict[str, Any] = {
    "memory_bytes": 80 * 10**9,
    "memory_bytes_per_second": 2e12,
    "peak_flops_per_second": {"bf16": 3e14},
    "link_bytes_per_second": 3e11,
    "pcie_bytes_per_second": 3e10,
    "nic_bytes_per_second": 2.5e10,
    "gpus_per_node": 8,
}


def pointers(request: type[BaseModel], body: Any) -> list[str]:
    """Return where a refused body is at fault."""
    with pytest.raises(ValidationError) as refusal:
        request.model_validate(body)
    return [error.pointer for error in field_errors(refusal.value.errors(), body)]


def hardware(**parts: Any) -> OneHardware:
    return OneHardware.model_validate({"gpu": "h100-sxm-80gb", **parts})


def planned_version(**parts: Any) -> str | None:
    request = TrainRequest.model_validate(train(**parts))
    spec = describe_config(TINY_CONFIG, name="tiny")
    return request.to_question(spec, resolve_hardware(hardware(gpus=1), catalogue())).framework_version


def test_a_framework_s_version_is_the_one_that_is_listed():
    assert planned_version(framework="fsdp2") is None
    assert planned_version(framework="fsdp2", framework_version="v0.2.1") == "0.2.1"
    assert planned_version(framework="accelerate", framework_version="4.57.3") == "4.57"


def test_an_unknown_version_is_refused_with_the_nearest():
    with pytest.raises(UnknownVersion) as refusal:
        planned_version(framework="torchtune", framework_version="0.7")
    assert (refusal.value.pointer, refusal.value.nearest) == ("/framework_version", ("0.6",))


@pytest.mark.parametrize("framework", ["any", None])
def test_a_version_needs_a_named_framework(framework: str | None):
    named = {} if framework is None else {"framework": framework}
    with pytest.raises(InvalidQuestion, match="that of a named framework") as refusal:
        planned_version(framework_version="0.2.2", **named)
    assert refusal.value.pointer == "/framework_version"


def test_a_stack_whose_versions_are_not_told_apart_takes_none():
    with pytest.raises(UnknownVersion, match="not told apart"):
        planned_version(framework="nanotron", framework_version="0.4")


def test_a_compared_layout_has_a_version_of_its_own_framework():
    layouts = [{"framework_version": "2025-01"}, {"framework": "torchtune", "framework_version": "0.9"}]
    request = TrainRequest.model_validate(train(framework="fsdp2", compare=layouts[:1]))
    spec, resolved = describe_config(TINY_CONFIG, name="tiny"), resolve_hardware(hardware(gpus=1), catalogue())
    assert request.to_question(spec, resolved).compare[0].framework_version == "2025-01"
    request = TrainRequest.model_validate(train(framework="fsdp2", compare=layouts))
    with pytest.raises(UnknownVersion) as refusal:
        request.to_question(spec, resolved)
    assert refusal.value.pointer == "/compare/1/framework_version"


def test_a_training_request_needs_only_model_and_hardware():
    request = TrainRequest.model_validate({"model": "llama-3.1-8b", "hardware": {"gpu": "h100", "gpus": 8}})
    assert (request.training.sequence_length, request.training.global_batch_size) == (4_096, 64)
    assert request.training.method == "full"
    assert request.training.precision == "bf16-mixed"
    assert request.framework == "any"
    assert request.validation == "none"


def test_each_quantity_that_is_the_default_is_said_to_be():
    request = TrainRequest.model_validate(train(training={"sequence_length": 4_096, "global_batch_size": 8}))
    assert request.default_notes() == ("training.sequence_length is 4,096 tokens, the default.",)


@pytest.mark.parametrize(
    ("framework", "training", "precision"),
    [
        # torchtune, recipes/full_finetune_distributed.py: "Full fp32 and bf16 training are supported."
        ("torchtune", {}, "bf16"),
        ("torchtune", {"precision": "fp32"}, "fp32"),
        ("megatron", {}, "bf16-mixed"),
        ("any", {}, "bf16-mixed"),
    ],
)
def test_a_job_without_a_precision_has_its_stacks(framework, training, precision):
    request = TrainRequest.model_validate({
        "model": "llama-3.1-8b", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8}, "framework": framework,
        "training": {**training, "sequence_length": 2048, "global_batch_size": 8},
    })  # fmt: skip
    assert request.training.precision == precision
    told = ("training.precision is bf16, the default of torchtune, which has no bf16-mixed.",)
    assert request.default_notes() == (told if precision == "bf16" else ())


@pytest.mark.parametrize(
    ("framework", "gpu", "training", "attention"),
    [
        # Transformer Engine has no flash kernels below compute capability 8.0, torch its memory-efficient one.
        ("megatron", "v100-sxm-32gb", {}, "eager"),
        ("megatron", "v100-sxm-32gb", {"attention": "flash"}, "flash"),
        ("megatron", "h100-sxm-80gb", {}, "flash"),
        ("accelerate", "t4-16gb", {}, "flash"),
        ("any", "v100-sxm-32gb", {}, "flash"),
        ("megatron", "no-such-card", {}, "flash"),
    ],
)
def test_a_job_without_a_kind_of_attention_has_its_stacks_on_its_card(framework, gpu, training, attention):
    asked = {"model": "llama-3.1-8b", "hardware": {"gpu": gpu, "gpus": 8}, "framework": framework, "training": training}
    assert TrainRequest.model_validate(asked).training.attention == attention


def test_a_measured_job_says_how_long_its_sequences_were():
    job = {"model": "llama-3.1-8b", "framework": "fsdp2", "gpus": 8, "training": {"global_batch_size": 64}}
    body = {"measurements": [{"run": job, "step_seconds": 1.0}]}
    assert pointers(CalibrationRequest, body) == ["/measurements/0/run/training/sequence_length"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (train(surprise=1), "/surprise"),
        (train(training={"microbatch": 1}), "/training/microbatch"),
        (train(layout={"tensor_paralel": 2}), "/layout/tensor_paralel"),
        (train(hardware={"gpu": "h100", "gpu_count": 8}), "/hardware/gpu_count"),
        (train(model={"hub": "a/b", "rev": "x"}), "/model/rev"),
        (train(hardware={"fleet": [{"gpu": "h100", "x": 1}]}), "/hardware/fleet/0/x"),
    ],
)
def test_an_unknown_field_is_refused_where_it_stands(body: dict[str, Any], pointer: str):
    assert pointers(TrainRequest, body) == [pointer]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (train(training={"global_batch_size": 0}), "/training/global_batch_size"),
        (train(training={"global_batch_size": -8}), "/training/global_batch_size"),
        (train(training={"global_batch_size": 8.5}), "/training/global_batch_size"),
        (train(training={"global_batch_size": True}), "/training/global_batch_size"),
        (train(training={"global_batch_size": "8"}), "/training/global_batch_size"),
        (train(training={"global_batch_size": 10**30}), "/training/global_batch_size"),
        (train(training={"tokens": float("nan")}), "/training/tokens"),
        (train(training={"tokens": -1}), "/training/tokens"),
        (train(training={"precision": "int3"}), "/training/precision"),
        (train(training={"kernels": "triton"}), "/training/kernels"),
        (train(training={"companions": [{"role": "critic"}]}), "/training/companions/0/role"),
        (train(training={"evaluation": {"batch_size": 0}}), "/training/evaluation/batch_size"),
        (train(training={"recompute": {"full_layers": 0}}), "/training/recompute/full_layers"),
        (train(training={"recompute": {"every": 0}}), "/training/recompute/every"),
        (train(training={"recompute": {"modules": []}}), "/training/recompute/modules"),
        (train(training={"recompute": {"modules": ["mpl"]}}), "/training/recompute/modules/0"),
        (train(training={"activation_offload": {"modules": []}}), "/training/activation_offload/modules"),
        (train(training={"activation_offload": {"modules": ["mlp"]}}), "/training/activation_offload/modules/0"),
        (train(training={"activation_offload": ["core_attn"]}), "/training/activation_offload"),
        (train(training={"activation_offload": "core_attn"}), "/training/activation_offload"),
        (train(layout={"zero_stage": 4}), "/layout/zero_stage"),
        (train(hardware={"gpu": "h100", "gpus": 0}), "/hardware/gpus"),
        (train(hardware={"gpu": "h100", "gpus": {"min": 8, "max": 4}}), "/hardware/gpus"),
        (train(hardware={"gpu": "h100", "reserve_bytes": -1}), "/hardware/reserve_bytes"),
        (train(model={"parameters": 0}), "/model/parameters"),
        (train(model=7), "/model"),
        (train(model={}), "/model/config"),
        (train(objective="fun"), "/objective"),
        (train(validate="hard"), "/validate"),
        (train(resilience={"gpu_failures_per_month": 1.0}), "/resilience/gpu_failures_per_month"),
        (train(resilience={"gpu_failures_per_month": "gloomy"}), "/resilience/gpu_failures_per_month"),
        # As many as GPUs in a month, and none, which bounds nothing from below.
        (
            train(resilience={"gpu_failures_per_month": {"failures": 10, "gpu_days": 300}}),
            "/resilience/gpu_failures_per_month",
        ),
        (
            train(resilience={"gpu_failures_per_month": {"failures": 0, "gpu_days": 300}}),
            "/resilience/gpu_failures_per_month/failures",
        ),
    ],
)
def test_an_absurd_value_is_refused_where_it_stands(body: dict[str, Any], pointer: str):
    assert pointers(TrainRequest, body) == [pointer]


@pytest.mark.parametrize(
    ("asked", "rate"),
    [
        ({}, 0.0142),
        ({"gpu_failures_per_month": "pessimistic"}, 0.08),
        ({"gpu_failures_per_month": "rsc-1"}, 0.0244),
        ({"gpu_failures_per_month": 0.03}, 0.03),
        # 3 failures of 64 GPUs in two weeks, in a month of 30 days: 3 / 896 x 30.
        ({"gpu_failures_per_month": {"failures": 3, "gpu_days": 896}}, 3 / 896 * 30),
    ],
)
def test_failures_are_llama_3_s_unless_the_pessimist_is_named(asked: dict[str, Any], rate: float):
    resilience = TrainRequest.model_validate(train(resilience=asked)).resilience.to_resilience()
    assert resilience.gpu_failures_per_month == rate


def test_bounds_are_inclusive():
    TrainRequest.model_validate(train(training={"sequence_length": SEQUENCE_TOKENS.most}))
    body = train(training={"sequence_length": SEQUENCE_TOKENS.most + 1})
    assert pointers(TrainRequest, body) == ["/training/sequence_length"]


def test_a_missing_field_is_pointed_at():
    assert pointers(TrainRequest, {"model": "x"}) == ["/hardware"]


@pytest.mark.parametrize(
    ("hardware", "told"),
    [
        ({"gpu": "h100", "gpus": 0}, "gpus must be at least 1."),
        ({"gpu": "h100", "gpus": 8, "gpus_per_node": 2000}, "gpus_per_node must be at most 1,024."),
        ({"gpu": "h100", "gpus": 8, "gpus_per_node": 1.5}, "gpus_per_node must be a whole number."),
        ({"gpu": "h100", "gpus": 8, "gpus_per_node": "8"}, "gpus_per_node must be a whole number."),
        ({"gpu": "h100", "gpus": 8, "network": 1}, "network must be an object."),
        ({"gpus": 8}, "gpu is missing."),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_people(hardware: Any, told: str):
    body = {"model": "gpt2", "hardware": hardware, "training": {"sequence_length": 512, "global_batch_size": 8}}
    with pytest.raises(ValidationError) as refusal:
        TrainRequest.model_validate(body)
    assert told in [error.detail for error in field_errors(refusal.value.errors(), body)]


def test_a_body_that_is_no_object_is_at_fault_as_a_whole():
    assert pointers(TrainRequest, []) == [""]


def test_a_whole_number_may_be_written_with_an_exponent():
    request = TrainRequest.model_validate(train(hardware={"gpu": "h100", "reserve_bytes": 2e9}))
    assert isinstance(request.hardware, OneHardware)
    assert request.hardware.reserve_bytes == 2_000_000_000


def test_pointers_escape_slashes_and_tildes():
    assert json_pointer(("a/b", "c~d"), "extra_forbidden", {"a/b": {"c~d": 1}}) == "/a~1b/c~0d"


def test_a_step_that_only_names_a_branch_is_left_out():
    assert json_pointer(("model", "(config)", "config"), "missing", {"model": {}}) == "/model/config"


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
    )
)
def test_whatever_is_sent_is_refused_with_pointers_that_lead_into_it_or_just_beyond(body: Any):
    for pointer in pointers(TrainRequest, body):
        assert pointer == "" or pointer.startswith("/")


def test_the_question_holds_what_was_asked():
    spec = describe_config(TINY_CONFIG, name="tiny")
    body = train(
        training={"recompute": {"full_layers": 2}, "method": "lora", "lora": {"rank": 8, "target_modules": ["q_proj"]}},
        layout={"tensor_parallel": 2, "zero_stage": 1},
        hardware={"gpu": "h100-sxm-80gb", "gpus": 4},
    )
    request = TrainRequest.model_validate(body)
    question = request.to_question(spec, resolve_hardware(request.hardware, catalogue()))
    assert question.recompute == Recompute(mode="full", full_layers=2)
    assert question.lora.target_modules == ("q_proj",)
    assert question.layout == LayoutRequest(tensor_parallel=2, zero_stage=1)
    assert (question.hardware.gpus.minimum, question.hardware.gpus.maximum) == (4, 4)


def test_parts_that_are_recomputed_count_once():
    spec = describe_config(TINY_CONFIG, name="tiny")
    modules = ["core_attn", "mlp", "core_attn"]
    request = TrainRequest.model_validate(train(training={"recompute": {"modules": modules}}))
    question = request.to_question(spec, resolve_hardware(request.hardware, catalogue()))
    assert question.recompute == Recompute(mode="selective", modules=("core_attn", "mlp"))


def test_parts_whose_activations_are_offloaded_count_once():
    spec = describe_config(TINY_CONFIG, name="tiny")
    asked = {"modules": ["core_attn", "attn_proj", "core_attn"]}
    request = TrainRequest.model_validate(train(training={"activation_offload": asked}))
    question = request.to_question(spec, resolve_hardware(request.hardware, catalogue()))
    assert question.offload_modules == ("core_attn", "attn_proj")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"modules": ["cor_attn"]},
            (
                "modules/0 must be 'attn_norm', 'qkv_linear', 'core_attn', 'attn_proj', 'mlp_norm', 'expert_fc1' or "
                "'moe_act'. Did you mean 'core_attn'?"
            ),
        ),
        ({"modules": []}, "modules must have at least 1 item, not 0."),
        ({"layers": 0}, "layers must be at least 1."),
        ({"module": ["core_attn"]}, "module is not a field here; did you mean modules?"),
        ("core_attn", "activation_offload must be true or false."),
        (["core_attn"], "activation_offload must be an object."),
    ],
)
def test_what_is_wrong_with_parts_to_offload_is_told_of_the_parts(asked: Any, told: str):
    body = train(training={"activation_offload": asked})
    with pytest.raises(ValidationError) as refused:
        TrainRequest.model_validate(body)
    assert field_errors(refused.value.errors(), body, TrainRequest)[0].detail == told


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"training": {"method": "full", "lora": {"rank": 8}}}, "/training/lora"),
        ({"objective": "throughput", "deadline_seconds": 3600}, "/deadline_seconds"),
    ],
)
def test_what_the_method_or_the_objective_leaves_unread_is_refused(changes: dict[str, Any], pointer: str):
    request = TrainRequest.model_validate(train(**changes))
    with pytest.raises(InvalidQuestion) as refusal:
        request.refuse_what_nothing_reads()
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize(
    ("asked", "pools"),
    [(None, None), (False, None), (True, (None, None)), ({"prefill_gpus": 2}, (2, None))],
)
def test_pools_of_prefill_and_decode_reach_the_planner(asked: Any, pools: Any):
    request = InferRequest.model_validate(infer(serving={"disaggregated": asked}))
    question = request.to_question(describe_config(TINY_CONFIG, name="tiny"), resolve_hardware(hardware(), catalogue()))
    found = question.disaggregated
    assert (found and (found.prefill_gpus, found.decode_gpus)) == pools


def test_traffic_reaches_the_planner_as_it_was_asked():
    histogram = {"lengths": [100, 1000], "counts": [3, 1]}
    serving = {
        "requests_per_second": 3.0,
        "input_length": {"histogram": histogram},
        "output_length": {"mean": 50, "p90": 100},
        "speculative": {"tokens": 4, "acceptance_rate": 0.7},
        "prefix_cache_hit_rate": 0.5,
    }
    request = InferRequest.model_validate(infer(serving=serving))
    asked = request.to_question(describe_config(TINY_CONFIG, name="tiny"), resolve_hardware(hardware(), catalogue()))
    assert asked.requests_per_second == 3.0
    assert (asked.input_length.lengths, asked.input_length.counts) == ((100, 1000), (3, 1))
    assert (asked.output_length.mean, asked.output_length.p90) == (50, 100)
    assert (asked.speculative.tokens, asked.speculative.acceptance_rate) == (4, 0.7)
    assert asked.prefix_cache_hit_rate == 0.5


def test_without_a_number_the_fewest_gpus_are_sought():
    resolved = resolve_hardware(hardware(), catalogue())
    assert resolved.gpus.is_free
    assert (resolved.gpus.minimum, resolved.gpus.maximum) == (1, MOST_GPUS_UNASKED)


def test_a_range_of_gpus_is_not_a_free_number():
    resolved = resolve_hardware(hardware(gpus={"min": 8, "max": 512}), catalogue())
    assert (resolved.gpus.minimum, resolved.gpus.maximum, resolved.gpus.is_free) == (8, 512, False)


def test_a_node_holds_what_the_gpu_says_unless_told_otherwise():
    assert resolve_hardware(hardware(), catalogue()).gpus_per_node == 8
    assert resolve_hardware(hardware(gpus_per_node=4), catalogue()).gpus_per_node == 4


def test_a_gpu_by_hand_needs_every_figure():
    gpu = resolve_hardware(hardware(gpu=BY_HAND), catalogue()).gpu
    assert gpu.memory_bytes == 80_000_000_000
    body = {"gpu": {name: value for name, value in BY_HAND.items() if name != "nic_bytes_per_second"}}
    assert pointers(OneHardware, body) == ["/gpu/nic_bytes_per_second"]


def test_an_override_replaces_its_figures_and_is_named_under_assumptions():
    listed = catalogue().gpu("h100-sxm-80gb")
    override = {"memory_bytes": 90 * 10**9, "peak_flops_per_second": {"bf16": 8e14}}
    gpu = resolve_hardware(hardware(override=override), catalogue()).gpu
    assert gpu.memory_bytes == 90_000_000_000
    assert gpu.peak_flops_per_second["bf16"] == 8e14
    assert gpu.peak_flops_per_second["fp16"] == listed.peak_flops_per_second["fp16"]
    assert any("memory_bytes, peak_flops_per_second" in note for note in gpu.assumptions)


def test_an_unknown_gpu_is_named_with_the_nearest():
    with pytest.raises(UnknownGpu) as refusal:
        resolve_hardware(hardware(gpu="h100-sxm-88gb"), catalogue())
    assert "h100-sxm-80gb" in refusal.value.nearest
    assert refusal.value.pointer == "/hardware/gpu"


@pytest.mark.parametrize("field", ["reserve_bytes", "used_bytes"])
def test_a_reserve_of_the_whole_card_leaves_no_question(field: str):
    memory_bytes = catalogue().gpu("h100-sxm-80gb").memory_bytes
    assert resolve_hardware(hardware(**{field: memory_bytes - 1}), catalogue()).limit_bytes == 1
    with pytest.raises(InvalidQuestion) as refusal:
        resolve_hardware(hardware(**{field: memory_bytes}), catalogue())
    assert refusal.value.pointer == f"/hardware/{field}"


def test_a_fleet_is_every_kind_of_gpu_in_it():
    request = TrainRequest.model_validate(train(hardware={"fleet": [{"gpu": "h100"}, {"gpu": "a100-sxm-80gb"}]}))
    assert [one.gpu.id for one in resolve_fleet(request.hardware, catalogue())] == ["h100-sxm-80gb", "a100-sxm-80gb"]


def test_what_is_wrong_in_a_fleet_points_at_its_entry():
    request = TrainRequest.model_validate(train(hardware={"fleet": [{"gpu": "h100"}, {"gpu": "h100-sxm-88gb"}]}))
    with pytest.raises(UnknownGpu) as refusal:
        resolve_fleet(request.hardware, catalogue())
    assert refusal.value.pointer == "/hardware/fleet/1/gpu"


def test_a_compared_layout_takes_the_fields_of_a_layout_and_of_the_training():
    compared = {"tensor_parallel": 2, "micro_batch_size": 4, "recompute": {"full_layers": 3}, "framework": "megatron"}
    spec = describe_config(TINY_CONFIG, name="tiny")
    request = TrainRequest.model_validate(train(compare=[compared]))
    (named,) = request.to_question(spec, resolve_hardware(request.hardware, catalogue())).compare
    assert named == NamedLayout(
        layout=LayoutRequest(tensor_parallel=2),
        micro_batch_size=4,
        recompute=Recompute(mode="full", full_layers=3),
        framework="megatron",
    )


def test_what_a_layout_says_of_overlap_is_the_planners():
    spec = describe_config(TINY_CONFIG, name="tiny")
    request = TrainRequest.model_validate(train(layout={"overlap": {"gradients": False, "expert_parallel": True}}))
    asked = request.to_question(spec, resolve_hardware(request.hardware, catalogue())).layout
    assert asked == LayoutRequest(overlap=Overlap(gradients=False, expert_parallel=True))
    assert pointers(TrainRequest, train(layout={"overlap": {"experts": True}})) == ["/layout/overlap/experts"]


def nested(depth: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for _ in range(depth - 1):
        config = {"inner": config}
    return config


def test_a_config_may_nest_so_deep_and_no_deeper():
    ConfigModel.model_validate({"config": nested(MOST_CONFIG_DEPTH)})
    assert pointers(ConfigModel, {"config": nested(MOST_CONFIG_DEPTH + 1)}) == ["/config"]


def test_a_config_may_hold_keys_that_nobody_knows():
    request = DescribeRequest.model_validate({"model": {"config": {**TINY_CONFIG, "novel_trick": True}}})
    assert isinstance(request.model, ConfigModel)


def test_quantization_schemes_and_weights_are_checked():
    assert pointers(QuantizeRequest, {"model": "x", "scheme": "int5"}) == ["/scheme"]
    assert pointers(QuantizeRequest, {"model": "x", "scheme": "nf4", "weights": "mine"}) == ["/weights"]
    assert pointers(QuantizeRequest, {"model": "x", "scheme": "nf4", "weights": {}}) == ["/weights/path"]


def test_a_validation_names_its_level():
    assert pointers(ValidateRequest, {}) == ["/level"]
    assert pointers(ValidateRequest, {"level": "none"}) == ["/level"]


def test_a_measurement_measures_something_of_something():
    assert pointers(MeasurementRequest, {"plan_id": "x"}) == [""]
    assert pointers(MeasurementRequest, {"peak_bytes": 1}) == [""]
    assert MeasurementRequest.model_validate({"plan_id": "x", "peak_bytes": 1}).quantities() == {"peak_bytes": 1}


def test_companions_evaluation_and_drives_reach_the_question():
    body = train(
        training={
            "companions": [{"role": "reference"}, {"role": "reward", "model": "llama-3.1-8b"}],
            "evaluation": {"batch_size": 4, "samples": 80, "keeps_logits": True},
            "kernels": "fused",
        }
    )
    request = TrainRequest.model_validate(body)
    one = OneHardware(gpu="h100", gpus=1, nvme_bytes_per_second=3e9)
    machine = resolve_hardware(one, catalogue())
    question = request.to_question(describe_config(TINY_CONFIG, name="tiny"), machine)
    assert [companion.model is None for companion in question.companions] == [True, False]
    assert question.companions[1].model.parameters == 8_030_261_248
    assert (question.evaluation.samples, question.kernels) == (80, "fused")
    assert machine.nvme_bytes_per_second == 3e9


def test_an_unknown_companion_model_is_named_where_it_stands():
    request = TrainRequest.model_validate(train(training={"companions": [{"role": "reward", "model": "nobody"}]}))
    one = OneHardware(gpu="h100", gpus=1)
    with pytest.raises(UnknownModel) as refusal:
        request.to_question(describe_config(TINY_CONFIG, name="tiny"), resolve_hardware(one, catalogue()))
    assert refusal.value.pointer == "/training/companions/0/model"


@pytest.mark.parametrize(
    ("changes", "has_one"),
    [
        ({"layout": {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}}, True),
        ({"layout": {"tensor_parallel": 1, "pipeline_parallel": 1}}, False),
        ({}, False),
        (
            {
                "layout": {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1},
                "hardware": {"fleet": [{"gpu": "h100-sxm-80gb"}, {"gpu": "l4-24gb"}]},
            },
            False,
        ),
    ],
)
def test_one_layout_is_left_where_the_degrees_of_one_kind_of_gpus_are_fixed(changes: dict[str, Any], has_one: bool):
    assert InferRequest.model_validate(infer(**changes)).has_one_layout is has_one


@pytest.mark.parametrize(
    ("serving", "stored", "cache"),
    [
        ({}, None, "bf16"),
        ({"weights": "fp8"}, None, "bf16"),
        ({"weights": "fp16"}, None, "fp16"),
        ({"weights": "fp32"}, None, "fp32"),
        ({"weights": "fp32", "kv_cache": "fp8"}, None, "fp8"),
        ({"weights": "fp32"}, "fp8", "fp8"),
        ({"weights": ["fp32", "fp8"]}, None, "bf16"),
    ],
)
def test_a_cache_left_away_has_the_activations_type(serving, stored, cache):
    # An engine caches in the dtype it computes in (vLLM, SGLang: kv_cache_dtype auto), unless the checkpoint fixes it.
    request = InferRequest.model_validate(infer(serving=serving))
    gpus = [catalogue().gpu("h100-sxm-80gb")]
    assert request.in_formats(gpus, weights=None, kv_cache=stored).serving.kv_cache == cache


def test_weights_left_away_are_in_fp16_on_cards_without_bf16_and_stay_open_for_both_kinds():
    # vLLM, config/model.py: with dtype auto a card that does not compute in bf16 falls back to fp16.
    request = InferRequest.model_validate(infer())
    t4, h100 = (catalogue().gpu(name) for name in ("t4-16gb", "h100-sxm-80gb"))
    asked = [request.in_formats(gpus, weights=None, kv_cache=None).serving for gpus in ([t4], [h100], [t4, h100])]
    assert [(each.weights, each.kv_cache) for each in asked] == [("fp16", "fp16"), ("bf16", "bf16"), (None, None)]


def test_a_cache_left_away_is_in_fp16_on_cards_without_bf16_and_stays_open_for_both_kinds():
    request = InferRequest.model_validate(infer(serving={"weights": "int4"}))
    t4, h100 = (catalogue().gpu(name) for name in ("t4-16gb", "h100-sxm-80gb"))
    asked = [request.in_formats(gpus, weights=None, kv_cache=None).serving.kv_cache for gpus in ([t4], [t4, h100])]
    assert asked == ["fp16", None]


@pytest.mark.parametrize(
    ("pointer", "name"),
    [("", "The body"), ("/model", "model"), ("/compare/0", "compare/0"), ("/layout/a~1b", "a/b"), ("/0", "0")],
)
def test_a_sentence_names_the_field_that_a_pointer_leads_to(pointer: str, name: str):
    assert field_name(pointer) == name


def test_the_contract_lists_the_stacks_that_have_a_folder():
    assert set(get_args(Stack)) == set(stack_names())
