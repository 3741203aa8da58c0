"""torchtitan's commands and configs as requests; names and defaults are held against its own."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.jobs.pipeline_layouts import read_pipeline_layout
from plimsoll.planners.plans import HiddenTraffic
from plimsoll.planners.questions import Recompute
from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.stacks.fsdp2 import command
from plimsoll.service.stacks.fsdp2.flags import FLAGS, MODULES
from plimsoll.service.stacks.fsdp2.models import HUB_NAMES, torchtitan_flavor
from plimsoll.service.workloads.commands.flags import AUTO
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read
from tests.service.admission.reviews import a_plain_container
from tests.service.stacks.launches import launch, written

LLAMA_8B = "--model.name llama3 --model.flavor 8B"
LLAMA_405B = "--model.flavor=405B --parallelism.tensor_parallel_degree 8 --parallelism.pipeline_parallel_degree"
REPLICAS = f"{LLAMA_8B} --parallelism.data_parallel_replicate_degree 8"
EXPERTS = "--parallelism.expert_parallel_degree 8"
INTERLEAVED = "--parallelism.pipeline_parallel_schedule Interleaved1F1B"
CONFIG = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""


def read(options: str = "", *, config: str | None = None, gpus: int = 8, launcher: str | None = None) -> Read | None:
    """Return what a command says on GPUs of pods of eight, with its config in a ConfigMap."""
    files = {} if config is None else {"/etc/job/job.toml": config}
    named = "" if config is None else "--job.config_file /etc/job/job.toml"
    started = launcher or f"torchrun --nproc-per-node {min(gpus, 8)} --nnodes {-(-gpus // 8)}"
    words = f"{started} -m torchtitan.train {named} {options}".split()
    return training_launch(tuple(words), gpus, a_plain_container(files=files), gpus_per_pod=min(gpus, 8))


def request(options: str = "", **changes: Any) -> Any:
    found = read(options, **changes)
    assert isinstance(found, Launch), found
    return found.request


def refusal(options: str, **changes: Any) -> str:
    found = read(options, **changes)
    assert isinstance(found, NotRead | CannotRun)
    return found.reason


def test_what_nobody_says_is_torchtitans_default():
    # 8 sequences of 2,048 tokens a GPU, all sharded.
    found = request(LLAMA_8B)
    assert (found["model"], found["framework"]) == ("meta-llama/Llama-3.1-8B", "fsdp2")
    assert found["training"] == {
        "precision": "bf16-mixed", "optimizer": "adamw", "sequence_length": 2048, "micro_batch_size": 8,
        "global_batch_size": 64, "recompute": {"every": 2}, "kernels": "eager",
    }  # fmt: skip
    assert found["layout"] == {
        "data_parallel": 8, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "expert_parallel": 1,
        "virtual_pipeline": 1, "sequence_parallel": False, "zero_stage": 3, "shard_group": 8, "offload": "none",
    }  # fmt: skip


def test_a_command_goes_before_its_config():
    found = request("--training.seq-len=4096 --activation_checkpoint.mode none", config=CONFIG, gpus=16)
    assert found["model"] == "meta-llama/Llama-3.1-70B"
    assert (found["training"]["sequence_length"], found["training"]["recompute"]) == (4096, "none")
    assert (found["layout"]["tensor_parallel"], found["layout"]["data_parallel"]) == (8, 2)
    assert found["training"]["global_batch_size"] == 4


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--parallelism.data_parallel_replicate_degree 2", "shard_group", 4),
        ("--parallelism.data_parallel_replicate_degree 2", "data_parallel", 8),
        ("--parallelism.fsdp_reshard_after_forward never", "zero_stage", 2),
        ("--parallelism.data_parallel_replicate_degree 8 --activation_checkpoint.mode none", "zero_stage", 0),
        ("--parallelism.context_parallel_degree 4", "data_parallel", 2),
        ("--training.enable_cpu_offload", "offload", "optimizer+parameters"),
        ("--training.enable_cpu_offload --training.no-enable-cpu-offload", "offload", "none"),
        ("--parallelism.tensor-parallel-degree 2", "sequence_parallel", True),
    ],
)
def test_degrees_are_the_layout(options: str, field: str, value: Any):
    assert request(f"{LLAMA_8B} {options}")["layout"][field] == value


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--training.dtype bfloat16", "precision", "bf16"),
        ("--training.mixed_precision_param float32", "precision", "fp32"),
        ("--model.converters quantize.linear.float8", "precision", "fp8-mixed"),
        ("--activation_checkpoint.selective_ac_option op", "recompute", "selective"),
        ("--activation_checkpoint.selective_ac_option 3", "recompute", {"every": 3}),
        ("--activation_checkpoint.mode full", "recompute", "full"),
        ("--compile.enable", "kernels", "compiled"),
        ("--compile.enable --compile.components loss", "kernels", "eager"),
        ("--training.global_batch_size 128", "global_batch_size", 128),
        ("--training.global_batch_size -1", "global_batch_size", 64),
    ],
)
def test_options_are_the_training(options: str, field: str, value: Any):
    assert request(f"{LLAMA_8B} {options}")["training"][field] == value


def test_replicas_that_share_nothing_are_distributed_data_parallel():
    found = request(f"{REPLICAS} --activation_checkpoint.mode full --compile.enable")
    assert (found["framework"], found["training"]["recompute"]) == ("ddp", "full")
    assert "kernels" not in found["training"]
    assert "selective recompute of replicas" in refusal(REPLICAS)


@pytest.mark.parametrize(
    ("options", "way", "virtual"),
    [
        ("16", "first-less=1,last-less=1", 1),
        ("16 --parallelism.pipeline_parallel_first_stage_less_layers 0", "first-less=0,last-less=1", 1),
        (f"16 {INTERLEAVED}", "first-less=1,last-less=1", 2),
        # 126 + 2 are 128 blocks: 64 stages of two, 4 of each of 16 ranks.
        (f"16 {INTERLEAVED} --parallelism.pipeline_parallel_layers_per_stage 2", "first-less=1,last-less=1", 4),
    ],
)
def test_pipelines_are_divided_as_told(options: str, way: str, virtual: int):
    found = request(f"{LLAMA_405B} {options} --training.local_batch_size 32", gpus=256)["layout"]
    assert (found["pipeline_layout"], found["virtual_pipeline"], found["pipeline_schedule"]) == (way, virtual, "1f1b")


def test_lists_of_modules_are_read_from_the_config():
    told = "[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = MODULES"
    config = CONFIG.replace("[parallelism]", told)
    first, second = [f"layers.{layer}" for layer in range(45)], [f"layers.{layer}" for layer in range(45, 80)]
    config = config.replace("MODULES", str([["tok_embeddings", *first], [*second, "norm", "output"]]))
    found = request(config=config, gpus=32)
    assert found["layout"]["pipeline_layout"] == "Et*45|t*35L"
    # The two sequences of each of two replicas go through the pipeline one by one.
    assert (found["training"]["micro_batch_size"], found["training"]["global_batch_size"]) == (1, 4)
    assert "layers.0 is in no stage" in refusal("", config=config.replace("'layers.0', ", ""), gpus=32)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("", "llama3 of flavor debugmodel is no model that is planned"),
        (f"{LLAMA_8B} --parallelism.tensor_parallel_degree 3", "3 ranks of a replica do not divide 8 GPUs"),
        (f"{LLAMA_8B} --parallelism.data_parallel_shard_degree 4", "4 ranks, and it starts on 8 GPUs"),
        (f"{LLAMA_8B} --parallelism.tensor_parallel_degree 0", "a degree is 0"),
        (f"{LLAMA_8B} --training.global_batch_size 100", "global batch 100, local batch 8, micro-batch 8 and 8"),
        (f"{LLAMA_8B} --parallelism.enable_async_tensor_parallel", "needs compile.enable with the model"),
    ],
)
def test_what_is_not_planned_says_why(options: str, reason: str):
    assert reason in refusal(options)


PIPED = f"{LLAMA_8B} --parallelism.pipeline_parallel_degree 4 --training.local_batch_size 8"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--parallelism.pipeline_parallel_schedule ZBVZeroBubble", "schedule ZBVZeroBubble is not planned; 1F1B,"),
        ("--parallelism.pipeline_parallel_schedule_csv /x.csv", "schedule 1F1B is not planned"),
        # 34 blocks are 12 stages of three, 3 of each rank; 34 of one, which 4 ranks do not share.
        ("--parallelism.pipeline_parallel_layers_per_stage 3", "1F1B does not run 3 stages of a rank: Interleaved1F1B"),
        ("--parallelism.pipeline_parallel_layers_per_stage 1", "34 stages are no multiple of 4 pipeline ranks"),
        (
            f"--parallelism.pipeline_parallel_layers_per_stage 9 {INTERLEAVED}",
            "Interleaved1F1B does not run 1 stages of a rank: 1F1B or GPipe does",
        ),
        ("--parallelism.pipeline_parallel_microbatch_size 3", "local batch 8, micro-batch 3"),
        ("--training.global_batch_size 64", "several passes through the pipeline"),
        (f"--{MODULES}=x", "is read from the job's config alone"),
    ],
)
def test_pipelines_that_are_not_planned_say_why(options: str, reason: str):
    assert reason in refusal(f"{PIPED} {options}")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--optimizer.name Adam", "optimizer Adam is not planned"),
        ("--optimizer.early_step_in_backward", "optimizer.early-step-in-backward changes what is trained"),
        ("--job.custom_config_module my.config", "job.custom-config-module changes what is trained"),
        ("--fault_tolerance.enable", "fault-tolerance.enable changes"),
        ("--activation_checkpoint.mode memory_budget", "memory_budget with 2 is not planned"),
        ("--model.converters quantize.linear.mx", "quantize.linear.mx is no precision"),
        ("--training.seq_len $LEN", "which the object does not resolve"),
        ("--parallelism.tensor_parallel_degree 8", "tensor_parallel without data_parallel_shard_degree"),
        (
            f"{EXPERTS} --parallelism.expert_parallel_comm_backend deepep",
            "expert_parallel_comm_backend deepep is not planned, standard is",
        ),
        (
            f"{EXPERTS} --parallelism.tensor_parallel_degree 2 --parallelism.expert_tensor_parallel_degree 2",
            "experts divided over tensor-parallel ranks",
        ),
    ],
)
def test_what_changes_the_job_is_not_read(options: str, reason: str):
    found = read(f"{LLAMA_8B} {options}")
    assert isinstance(found, NotRead)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("[model\n", "is no TOML"),
        ("[training]\nseq_len = 'long'\n", "training.seq_len, has 'long'"),
        ("[training]\nlocal_batch_size = true\n", "training.local_batch_size, has 'True'"),
        ("[compile]\nenable = 1\n", "compile.enable, has '1'"),
        ("a" * 40_000, "larger than an option file"),
        ("x = " + "[" * 20_000, "is no TOML"),
    ],
)
def test_a_config_that_is_none_is_not_read(config: str, reason: str):
    assert reason in refusal("", config=config)


def test_a_config_that_is_not_in_the_object_is_not_read():
    assert "/else.toml is not in the object" in refusal("--job.config_file /else.toml")


def test_ranks_of_pods_that_were_not_seen_are_no_refusal():
    assert isinstance(read(f"{LLAMA_8B} --parallelism.tensor_parallel_degree 3", launcher="python3"), NotRead)
    assert isinstance(read(f"{LLAMA_8B} --parallelism.tensor_parallel_degree 3"), CannotRun)


def test_weights_that_are_let_go_of_between_micro_batches_may_need_less():
    found = read(f"{PIPED} --parallelism.fsdp_reshard_after_forward always")
    assert isinstance(found, Launch)
    assert found.memory_saving == ("fsdp_reshard_after_forward",)


SEQUENCES = {"sequence_parallel": True}
PIPELINE = {"pipeline_parallel": 4, "pipeline_layout": "even"}
WRITTEN = [
    launch("fsdp2", data_parallel=16, zero_stage=3, shard_group=8, micro_batch_size=2),
    launch("fsdp2", data_parallel=4, tensor_parallel=2, context_parallel=2, zero_stage=2, **SEQUENCES),
    launch("fsdp2", data_parallel=2, pipeline_parallel=4, zero_stage=3, pipeline_layout="first-less=0,last-less=2"),
    launch("fsdp2", data_parallel=2, zero_stage=3, **PIPELINE, virtual_pipeline=2),
    launch("fsdp2", data_parallel=2, zero_stage=3, **PIPELINE, pipeline_schedule="gpipe"),
    launch("fsdp2", data_parallel=8, zero_stage=3, asked={"recompute": Recompute(mode="full", every=3)}),
    launch("ddp", data_parallel=8, recompute="full"),
    launch(
        "fsdp2", data_parallel=2, tensor_parallel=4, zero_stage=3, **SEQUENCES, asked={"kernels": "compiled"},
        overlap=HiddenTraffic(gradients=True, parameters=True, tensor_parallel=True, expert_parallel=False),
    ),
]  # fmt: skip


@pytest.mark.parametrize("given", WRITTEN)
def test_a_plan_is_read_from_its_own_launch_file(given: Any):
    found, planned = request(config=written("torchtitan", given), gpus=given.layout.gpus), given.layout
    assert found["framework"] == planned.framework
    training = found["training"]
    assert (training["micro_batch_size"], training["global_batch_size"]) == (planned.micro_batch_size, 64)
    layout = dict(found["layout"])
    assert layout.pop("overlap", None) == ({"tensor_parallel": True} if planned.overlap else None)
    way = layout.pop("pipeline_layout", None)
    assert layout == {field: getattr(planned, field) for field in layout}
    if planned.pipeline_parallel > 1:
        told, wanted = (
            read_pipeline_layout(text).division(
                given.question.model, planned.pipeline_parallel, planned.virtual_pipeline
            )
            for text in (way, planned.pipeline_layout)
        )
        assert told == wanted


def test_every_flavor_is_of_a_model_of_the_catalogue():
    for (model, flavor), name in HUB_NAMES.items():
        found = torchtitan_flavor(catalogue().model(name).config)
        assert found is not None
        assert (found.model, found.name) == (model, flavor.partition("_")[0])


@pytest.fixture
def defaults() -> Any:
    """Return torchtitan's own config with nothing told."""
    return pytest.importorskip("torchtitan.config").JobConfig()


def test_names_and_forms_are_torchtitans_own(defaults: Any):
    kinds = {"whole": int | None, "whole-or-auto": int, "switch": bool, "text": str | list | None}
    for flag in FLAGS:
        if flag.form != "switched-off":
            table, name = flag.name.replace("-", "_").split(".")
            assert isinstance(getattr(getattr(defaults, table), name), kinds[flag.form]), flag.name
    table, name = MODULES.replace("-", "_").split(".")
    assert getattr(getattr(defaults, table), name) is None


def test_defaults_are_torchtitans_own(defaults: Any):
    parallelism, training, recompute = defaults.parallelism, defaults.training, defaults.activation_checkpoint
    assert (defaults.model.name, defaults.model.flavor) == (command.DEFAULT_MODEL, command.DEFAULT_FLAVOR)
    assert parallelism.expert_parallel_comm_backend == command.STANDARD_EXCHANGE
    assert (training.local_batch_size, training.seq_len) == (command.LOCAL_BATCH_SIZE, command.SEQUENCE_LENGTH)
    assert (training.global_batch_size, parallelism.data_parallel_shard_degree) == (-1, -1)
    assert (training.dtype, training.mixed_precision_param, defaults.optimizer.name) == ("float32", "bfloat16", "AdamW")
    assert (recompute.mode, recompute.selective_ac_option) == ("selective", command.SELECTIVE)
    assert (defaults.compile.enable, defaults.compile.components) == (False, ["model", "loss"])
    assert parallelism.pipeline_parallel_schedule == "1F1B"
    assert (
        parallelism.pipeline_parallel_first_stage_less_layers,
        parallelism.pipeline_parallel_last_stage_less_layers,
        parallelism.pipeline_parallel_layers_per_stage,
        parallelism.pipeline_parallel_microbatch_size,
    ) == (1, 1, None, 1)
    assert AUTO == "auto"
