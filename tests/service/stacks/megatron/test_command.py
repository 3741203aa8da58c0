"""What commands of Megatron-LM say of recomputation."""

import shlex

import pytest

from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead
from tests.service.admission.reviews import a_plain_container

MODEL = (
    "--num-layers 47 --hidden-size 3072 --num-attention-heads 24 --seq-length 2048 --max-position-embeddings 2048 "
    "--vocab-size 32000 --micro-batch-size 1 --global-batch-size 96 --bf16"
)


def read(options):
    words = tuple(shlex.split(f"torchrun --nproc_per_node 8 --nnodes 3 pretrain_gpt.py {MODEL} {options}"))
    return training_launch(words, 24, a_plain_container(), gpus_per_pod=8)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("--recompute-granularity selective", "selective"),
        ("--recompute-activations --recompute-modules core_attn", "selective"),
        ("--recompute-granularity selective --recompute-modules layernorm mlp", {"modules": ["layernorm", "mlp"]}),
        ("--recompute-modules moe_act --recompute-activations", {"modules": ["moe_act"]}),
        ("--recompute-modules mlp", "none"),
        ("--recompute-granularity selective --recompute-modules mlp mlp", {"modules": ["mlp"]}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", "none"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
    ],
)
def test_parts_of_layers_that_are_recomputed_are_read(options, asked):
    found = read(options)
    assert isinstance(found, Launch)
    assert found.request["training"]["recompute"] == asked
    assert found.memory_saving == ()


COPIES = "--use-distributed-optimizer --num-distributed-optimizer-instances"


@pytest.mark.parametrize(("copies", "group"), [(1, None), (3, 8), (12, 2)])
def test_copies_of_the_distributed_optimizer_are_shard_groups(copies, group):
    found = read(f"{COPIES} {copies}")
    assert isinstance(found, Launch)
    assert found.request["layout"]["zero_stage"] == 1
    assert found.request["layout"].get("shard_group") == group


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (f"{COPIES} 24", "leaves each rank all states of its own"),
        # 24 ranks of data x context divide by 2, and 3 replicas do not.
        (f"{COPIES} 2 --context-parallel-size 8", "instances 2 is not planned"),
    ],
)
def test_copies_that_no_plan_has_are_not_read(options, reason):
    found = read(options)
    assert isinstance(found, NotRead)
    assert reason in found.reason


def test_a_part_that_nobody_knows_is_not_read():
    found = read("--recompute-granularity selective --recompute-modules layernorm mlq")
    assert isinstance(found, NotRead)
    assert "mlq" in found.reason


CONTEXT = "--context-parallel-size 8 --cp-comm-type"


@pytest.mark.parametrize(
    ("options", "exchanging"),
    [
        ("--context-parallel-size 8", 1),
        (f"{CONTEXT} p2p", 1),
        (f"{CONTEXT} a2a", 8),
        (f"{CONTEXT} a2a+p2p --hierarchical-context-parallel-sizes 4 2", 4),
        (f"{CONTEXT} {' '.join(['a2a'] * 47)}", 8),
        ("--cp-comm-type a2a", None),
    ],
)
def test_ranks_that_exchange_heads_are_read(options, exchanging):
    found = read(options)
    assert isinstance(found, Launch)
    assert found.request["layout"].get("context_all_to_all") == exchanging


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        (f"{CONTEXT} all_gather", NotRead, "--cp-comm-type all_gather is not planned"),
        (f"{CONTEXT} p2p a2a", NotRead, "--cp-comm-type of several kinds, layer by layer, is not planned"),
        (f"{CONTEXT} a2a+p2p", CannotRun, "a2a+p2p needs --hierarchical-context-parallel-sizes"),
        (
            f"{CONTEXT} a2a+p2p --hierarchical-context-parallel-sizes 2 2",
            CannotRun,
            "--hierarchical-context-parallel-sizes 2 x 2 = 4 is not context parallel 8",
        ),
        (
            # argparse: "invalid int value: '4 2'"
            f"{CONTEXT} a2a+p2p --hierarchical-context-parallel-sizes '4 2'",
            CannotRun,
            "--hierarchical-context-parallel-sizes takes whole numbers, each a word of its own, not '4 2'",
        ),
        (
            f"{CONTEXT} a2a+p2p --hierarchical-context-parallel-sizes 2 2 2",
            CannotRun,
            "3 levels, and a2a+p2p goes over 2",
        ),
        (
            f"{CONTEXT} a2a+p2p --hierarchical-context-parallel-sizes 8 1 --num-attention-heads 12",
            CannotRun,
            "8 ranks that",
        ),
    ],
)
def test_context_parallelism_that_no_plan_has_is_told(options, kind, reason):
    found = read(options)
    assert isinstance(found, kind)
    assert reason in found.reason


OFFLOAD = "--fine-grained-activation-offloading --offload-modules"


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (f"{OFFLOAD} core_attn attn_proj core_attn", {"modules": ["core_attn", "attn_proj"]}),
        ("--offload-modules core_attn", None),
        ("--cpu-offloading-num-layers 20", {"layers": 20}),
        ("--cpu-offloading-num-layers 0", None),
    ],
)
def test_parts_of_layers_that_wait_on_the_host_are_read(options, asked):
    found = read(options)
    assert isinstance(found, Launch)
    assert found.request["training"].get("activation_offload") == asked
    assert found.memory_saving == ()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--fine-grained-activation-offloading", "needs --offload-modules: any of qkv_linear"),
        (f"{OFFLOAD} attn_proj", "--offload-modules attn_proj needs core_attn"),
        (
            f"{OFFLOAD} moe_act --recompute-granularity selective --recompute-modules moe",
            "--offload-modules moe_act goes without --recompute-modules moe",
        ),
        ("--cpu-offloading-num-layers 47", "--cpu-offloading-num-layers 47 must be below the 47 of --num-layers"),
        (
            "--cpu-offloading-num-layers 4 --pipeline-model-parallel-size 1 --recompute-activations",
            "--cpu-offloading-num-layers goes without recomputation",
        ),
        (f"{OFFLOAD} core_attn --cpu-offloading-num-layers 4", "goes without --fine-grained-activation-offloading"),
        (f"{OFFLOAD} core_attn --transformer-impl local", "needs --transformer-impl transformer_engine"),
    ],
)
def test_what_megatron_asserts_of_offloaded_activations_cannot_run(options, reason):
    found = read(options)
    assert isinstance(found, CannotRun)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (f"{OFFLOAD} core_attn fused_group_mlp", "--offload-modules fused_group_mlp is not planned"),
        (f"{OFFLOAD} core_attn --activation-offload-fraction 0.5", "--activation-offload-fraction has less sent"),
    ],
)
def test_offloaded_activations_that_are_not_planned_are_not_read(options, reason):
    found = read(options)
    assert isinstance(found, NotRead)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("options", "kernels"),
    [
        ("", None),
        ("--cross-entropy-fusion-impl te", None),
        ("--cross-entropy-loss-fusion", "compiled"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", "compiled"),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", "fused"),
    ],
)
def test_a_fused_loss_is_read_with_what_fuses_it(options, kernels):
    found = read(options)
    assert isinstance(found, Launch)
    assert found.request["training"].get("kernels") == kernels
    assert found.memory_saving == ()


def test_what_nobody_knows_to_fuse_a_loss_is_not_read():
    found = read("--cross-entropy-loss-fusion --cross-entropy-fusion-impl linear")
    assert found == NotRead(reason="--cross-entropy-fusion-impl linear is none of native, te")
