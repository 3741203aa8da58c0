"""torchtitan's TOML: read by its own ConfigManager and checked by its own ParallelDims."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.plans import HiddenTraffic
from plimsoll.planners.questions import Recompute
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from plimsoll.service.stacks.fsdp2.models import FAMILIES, torchtitan_flavor
from tests.service.stacks.launches import LLAMA_31_8B, QWEN_3_30B_A3B, launch

SPEC = importlib.util.find_spec("torchtitan")
pytestmark = pytest.mark.skipif(SPEC is None, reason="torchtitan is installed by `make`, without what it depends on")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to start torchtitan in, with the model's files where its script puts them."""
    (tmp_path / "assets/hf/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(given: TrainingLaunch, folder: Path) -> Any:
    from torchtitan.config import ConfigManager

    content = training_artifacts(given).files["torchtitan"]
    assert isinstance(content, str)
    (folder / "torchtitan.toml").write_text(content, encoding="utf-8")
    return ConfigManager().parse_args(["--job.config_file", "torchtitan.toml"])


def mesh(found: Any, gpus: int) -> Any:
    """Return torchtitan's own account of the degrees; it raises where they do not multiply out to the GPUs."""
    from torchtitan.distributed.parallel_dims import ParallelDims

    told = found.parallelism
    return ParallelDims(
        dp_replicate=told.data_parallel_replicate_degree,
        dp_shard=told.data_parallel_shard_degree,
        cp=told.context_parallel_degree,
        tp=told.tensor_parallel_degree,
        pp=told.pipeline_parallel_degree,
        ep=told.expert_parallel_degree,
        etp=told.expert_tensor_parallel_degree,
        world_size=gpus,
    )


@pytest.mark.parametrize(
    ("given", "degrees"),
    [
        (launch("fsdp2", data_parallel=8, zero_stage=3), (1, 8, 1, 1, 1)),
        (launch("fsdp2", data_parallel=16, zero_stage=3, shard_group=8), (2, 8, 1, 1, 1)),
        (launch("ddp", data_parallel=8), (8, 1, 1, 1, 1)),
        (launch("fsdp2", data_parallel=2, tensor_parallel=2, zero_stage=2, context_parallel=2), (1, 2, 2, 2, 1)),
        (launch("fsdp2", data_parallel=8, zero_stage=3, elastic_gpus=(8, 16, 24)), (1, 8, 1, 1, 1)),
        (launch("fsdp2", data_parallel=2, pipeline_parallel=4, zero_stage=3), (1, 2, 1, 1, 4)),
    ],
    ids=["fsdp", "hsdp", "ddp", "tensor-and-context", "elastic", "pipeline"],
)
def test_torchtitan_finds_the_plans_degrees(given: TrainingLaunch, degrees: tuple[int, ...], folder: Path):
    found = mesh(parsed(given, folder), given.layout.gpus)
    assert (found.dp_replicate, found.dp_shard, found.cp, found.tp, found.pp) == degrees


@pytest.mark.parametrize(
    ("given", "accumulation"),
    [
        (launch("fsdp2", data_parallel=8, zero_stage=3, micro_batch_size=2), 4),
        (launch("fsdp2", data_parallel=2, tensor_parallel=4, zero_stage=3), 32),
        # A pipeline takes the 32 micro-batches of a replica in one pass.
        (launch("fsdp2", data_parallel=2, pipeline_parallel=4, zero_stage=3), 1),
    ],
)
def test_the_batch_multiplies_out(given: TrainingLaunch, accumulation: int, folder: Path):
    told = parsed(given, folder)
    batch_ranks = mesh(told, given.layout.gpus).dp_replicate * mesh(told, given.layout.gpus).dp_shard
    assert told.training.global_batch_size == 64
    assert 64 // (told.training.local_batch_size * batch_ranks) == accumulation
    assert told.training.seq_len == 8192
    micro_batch = told.parallelism.pipeline_parallel_microbatch_size
    if given.layout.pipeline_parallel > 1:
        assert told.training.local_batch_size // micro_batch == given.layout.gradient_accumulation_steps


def test_elastic_jobs_leave_the_replicas_to_the_world(folder: Path):
    elastic = launch("fsdp2", data_parallel=8, zero_stage=3, elastic_gpus=(8, 16))
    assert mesh(parsed(elastic, folder), 16).dp_shard == 16


@pytest.mark.parametrize(("stage", "policy"), [(2, "never"), (3, "default")])
def test_stage_2_keeps_gathered_weights(stage: int, policy: str, folder: Path):
    told = parsed(launch("fsdp2", data_parallel=8, zero_stage=stage), folder)
    assert told.parallelism.fsdp_reshard_after_forward == policy


def test_pipeline_stages_have_the_plans_layers(folder: Path):
    # 32 layers over 4 stages of 2 parts each: four layers a part, in the model's order.
    way = {"pipeline_layout": "even", "virtual_pipeline": 2}
    told = parsed(launch("fsdp2", data_parallel=1, pipeline_parallel=4, zero_stage=3, **way), folder)
    parts = told.parallelism.module_fqns_per_model_part
    assert told.parallelism.pipeline_parallel_schedule == "Interleaved1F1B"
    assert [len(part) for part in parts] == [5, 4, 4, 4, 4, 4, 4, 6]
    assert (parts[0][0], parts[1], parts[-1][-2:]) == (
        "tok_embeddings",
        ["layers.4", "layers.5", "layers.6", "layers.7"],
        ["norm", "output"],
    )


@pytest.mark.parametrize(
    ("chunks", "ends", "of_stage"),
    # 32 layers and 1 + 1 on 4 x 3 stages: 3 each; 32 and 0 + 3 likewise.
    [(1, (1, 1), None), (2, (1, 1), None), (1, (0, 3), None), (3, (1, 1), 3), (3, (0, 3), 3)],
)
def test_stages_that_have_fewer_layers_at_the_ends_are_torchtitans_own(
    chunks: int, ends: tuple[int, int], of_stage: int | None, folder: Path
):
    way = {"pipeline_layout": f"first-less={ends[0]},last-less={ends[1]}", "virtual_pipeline": chunks}
    told = parsed(launch("fsdp2", data_parallel=1, pipeline_parallel=4, zero_stage=3, **way), folder).parallelism
    assert told.module_fqns_per_model_part is None
    assert told.pipeline_parallel_layers_per_stage == of_stage
    assert ends == (
        told.pipeline_parallel_first_stage_less_layers,
        told.pipeline_parallel_last_stage_less_layers,
    )


def test_modules_are_listed_where_no_number_of_layers_makes_as_many_stages(folder: Path):
    # 34 blocks on 4 x 5 stages: of two layers 17, of one 34.
    way = {"pipeline_layout": "first-less=1,last-less=1", "virtual_pipeline": 5}
    told = parsed(launch("fsdp2", data_parallel=1, pipeline_parallel=4, zero_stage=3, **way), folder).parallelism
    assert len(told.module_fqns_per_model_part) == 20
    assert told.module_fqns_per_model_part[0] == ["tok_embeddings", "layers.0"]


def test_parts_of_the_model_have_the_plan_s_layers_where_they_are_not_alike(folder: Path):
    # Of 4 stages of 2 parts each the embedding is alone in the first, and the last has two layers.
    way = {"pipeline_layout": "E|(t*5|)*6ttL", "virtual_pipeline": 2}
    told = parsed(launch("fsdp2", data_parallel=1, pipeline_parallel=4, zero_stage=3, **way), folder)
    parts = told.parallelism.module_fqns_per_model_part
    assert (parts[0], parts[-1]) == (["tok_embeddings"], ["layers.30", "layers.31", "norm", "output"])
    assert parts[1] == [f"layers.{layer}" for layer in range(5)]


@pytest.mark.parametrize(
    ("recompute", "mode", "option"), [("none", "none", "2"), ("selective", "selective", "op"), ("full", "full", "2")]
)
def test_recompute_is_the_plans(recompute: str, mode: str, option: str, folder: Path):
    told = parsed(launch("fsdp2", recompute=recompute), folder).activation_checkpoint
    assert (told.mode, told.selective_ac_option) == (mode, option)


@pytest.mark.parametrize(
    ("precision", "dtype", "gathered"),
    [("bf16-mixed", "float32", "bfloat16"), ("bf16", "bfloat16", "bfloat16"), ("fp32", "float32", "float32")],
)
def test_dtypes_are_the_plans(precision: str, dtype: str, gathered: str, folder: Path):
    told = parsed(launch("fsdp2", asked={"precision": precision}), folder)
    assert (told.training.dtype, told.training.mixed_precision_param) == (dtype, gathered)
    assert told.model.converters == []


def test_eight_bit_products_leave_the_output_alone(folder: Path):
    told = parsed(launch("fsdp2", asked={"precision": "fp8-mixed"}), folder)
    assert told.model.converters == ["quantize.linear.float8"]
    assert told.quantize.linear.float8.filter_fqns == ["output"]


@pytest.mark.parametrize(("kernels", "compiles"), [(None, False), ("eager", False), ("compiled", True)])
def test_only_compiled_kernels_are_compiled(kernels: str | None, compiles: bool, folder: Path):
    assert parsed(launch("fsdp2", asked={"kernels": kernels}), folder).compile.enable is compiles


@pytest.mark.parametrize("hides", [False, True])
def test_tensor_parallel_traffic_that_hides_is_async_tensor_parallelism(hides: bool, folder: Path):
    hidden = HiddenTraffic(gradients=True, parameters=True, tensor_parallel=hides, expert_parallel=False)
    given = launch("fsdp2", tensor_parallel=2, zero_stage=3, asked={"kernels": "compiled"}, overlap=hidden)
    assert parsed(given, folder).parallelism.enable_async_tensor_parallel is hides


def test_whole_experts_lie_on_their_ranks(folder: Path):
    given = launch("fsdp2", config=QWEN_3_30B_A3B, data_parallel=4, tensor_parallel=2, expert_parallel=8, zero_stage=3)
    found = mesh(parsed(given, folder), 8)
    assert (found.ep, found.etp, found.tp) == (8, 1, 2)


def test_a_token_budget_ends_the_run(folder: Path):
    assert parsed(launch("fsdp2", steps=250), folder).training.steps == 250


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (launch("fsdp2", config={**LLAMA_31_8B, "vocab_size": 32000}), "no flavor"),
        (launch("fsdp2", config={**LLAMA_31_8B, "num_hidden_layers": 31}), "no flavor"),
        (launch("fsdp2", config={**LLAMA_31_8B, "model_type": "mistral"}), "no flavor"),
        (launch("fsdp2", config=QWEN_3_30B_A3B, pipeline_parallel=2), "no pipeline stages"),
        (launch("fsdp2", framework_version="2025-01"), "for torchtitan 0.2, and the plan for that of 2025-01"),
        (launch("ddp", asked={"precision": "fp16-mixed"}), "no option for precision fp16-mixed"),
        (launch("ddp", asked={"optimizer": "lion"}), "no optimizer lion"),
        (launch("ddp", asked={"method": "lora"}), "trains all weights"),
        (launch("ddp", activation_offload=True), "no option for offloaded activations"),
        (launch("fsdp2", asked={"attention": "eager"}), "fused kernels only"),
        (launch("fsdp2", asked={"optimizer_state_dtype": "bf16"}), "optimizer_state_dtype bf16"),
    ],
)
def test_what_torchtitan_cannot_be_told_is_not_written(given: TrainingLaunch, reason: str):
    found = training_artifacts(given)
    assert "torchtitan" not in found.files
    assert reason in " ".join(found.missing["torchtitan"])


def own_flavors(model: str) -> dict[str, dict[str, Any]]:
    """Return torchtitan's flavors of a model, read from its source: their plain numbers by name."""
    assert SPEC is not None
    source = Path(next(iter(SPEC.submodule_search_locations or ()))) / "models" / model / "__init__.py"
    flavors: dict[str, dict[str, Any]] = {}
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Call):
                    given = {entry.arg: entry.value for entry in value.keywords}
                    flavors[str(key.value)] = {
                        str(name): item.value for name, item in given.items() if isinstance(item, ast.Constant)
                    }
    return flavors


@pytest.mark.parametrize("family", FAMILIES)
def test_flavors_have_the_sizes_of_torchtitans_own(family: str):
    own = own_flavors(FAMILIES[family].model)
    for sizes, name in FAMILIES[family].flavors.items():
        theirs = own[name]
        heads = theirs.get("n_kv_heads", theirs["n_heads"])
        assert (theirs["dim"], theirs["n_layers"], theirs["n_heads"], heads) == (
            sizes.hidden_size,
            sizes.layers,
            sizes.heads,
            sizes.key_value_heads,
        )


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", ("llama3", "8B")),
        ("meta-llama/Llama-3.1-405B", ("llama3", "405B")),
        ("Qwen/Qwen3-32B", ("qwen3", "32B")),
        ("Qwen/Qwen3-235B-A22B", ("qwen3", "235B-A22B")),
        ("deepseek-ai/DeepSeek-V3", ("deepseek_v3", "671B")),
        ("meta-llama/Llama-2-7b-hf", None),
    ],
)
def test_catalogue_models_are_found(model: str, expected: tuple[str, str] | None):
    flavor = torchtitan_flavor(catalogue().model(model).config)
    assert (flavor and (flavor.model, flavor.name)) == expected


def test_a_model_type_that_nobody_knows_has_no_flavor():
    assert torchtitan_flavor({}) is None


def test_every_third_layer_is_recomputed_and_the_schedule_is_gpipes(folder: Path):
    asked = {"recompute": Recompute(mode="full", every=3)}
    degrees = {"data_parallel": 4, "pipeline_parallel": 2, "zero_stage": 3}
    found = parsed(launch("fsdp2", asked=asked, recompute="full", pipeline_schedule="gpipe", **degrees), folder)
    checkpoint = found.activation_checkpoint
    assert (checkpoint.mode, checkpoint.selective_ac_option) == ("selective", "3")
    assert found.parallelism.pipeline_parallel_schedule == "GPipe"


@pytest.mark.parametrize(("offload", "told"), [("none", False), ("optimizer+parameters", True)])
def test_states_on_the_host_are_torchtitans_own_option(offload: str, told: bool, folder: Path):
    found = parsed(launch("fsdp2", data_parallel=8, zero_stage=3, offload=offload), folder)
    assert found.training.enable_cpu_offload is told
