"""What each stack does with weights that do not divide, and how its ZeRO or FSDP cuts what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from plimsoll.planners.ground.errors import ImpossibleLayout, UnknownName
from plimsoll.planners.sharding.cuts import Cut, EachTensorFlat, FirstDimension, FlatBuffers, Whole
from plimsoll.planners.sharding.layout import Mesh, ShardLayout
from plimsoll.planners.sharding.stages import behind_the_first, even_stages, first_stages_more, last_but_one_first

# Megatron-LM, training/arguments.py, --make-vocab-size-divisible-by.
MEGATRON_VOCABULARY_MULTIPLE = 128
# vLLM, model_executor/layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE.
VLLM_VOCABULARY_MULTIPLE = 64


class KeyValueHeads(StrEnum):
    """What becomes of key-value heads (or state groups) fewer than the tensor-parallel ranks.

    `replicated` gives each rank one whole head that several ranks hold; `cut` divides
    the projection's rows evenly, through the heads, and gathers its outputs;
    `refused` raises.
    """

    REPLICATED = "replicated"
    CUT = "cut"
    REFUSED = "refused"


class ExpertTensorDegree(StrEnum):
    """By how many tensor-parallel ranks each expert is divided, unless a layout says.

    `tensor` is the dense weights' degree, `tensor_alone` that unless there is
    expert parallelism (then whole experts), `all_ranks` all ranks of a stage unless
    there is expert parallelism.
    """

    TENSOR = "tensor"
    TENSOR_ALONE = "tensor_alone"
    ALL_RANKS = "all_ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPolicy:
    """How one stack places weights.

    The vocabulary is padded to a multiple of `vocabulary_multiple` (times the
    tensor-parallel degree where `pads_vocabulary_by_degree`, or, with
    `pads_uneven_vocabulary`, where it would not divide otherwise) and divided evenly, or,
    when that is 0, cut in ceilings, the last ranks' parts short or empty. A stack
    that `stacks_experts` holds a rank's experts as one tensor with the expert in
    front (transformers 5.23 does, and whatever wraps its models), others one tensor
    each. `cuts_experts_second` divides such a tensor's
    second dimension where there are more ranks than experts.
    """

    name: str
    key_value_heads: KeyValueHeads
    cut: Cut
    deal_layers: Callable[[int, int], tuple[int, ...]]
    source: str
    expert_tensor_degree: ExpertTensorDegree = ExpertTensorDegree.TENSOR
    vocabulary_multiple: int = 0
    pads_vocabulary_by_degree: bool = False
    pads_uneven_vocabulary: bool = False
    stacks_experts: bool = False
    cuts_experts_second: bool = False
    deals_experts_unevenly: bool = False

    def vocabulary_rows(self, rows: int, tensor_parallel: int) -> int:
        """Return the rows of an embedding or head on the rank that has most, padding included.

        Raises `ImpossibleLayout` where the padded vocabulary does not divide.
        """
        if not self.vocabulary_multiple:
            return -(-rows // tensor_parallel)
        multiple = self.vocabulary_multiple * (tensor_parallel if self.pads_vocabulary_by_degree else 1)
        padded = -(-rows // multiple) * multiple
        if padded % tensor_parallel and self.pads_uneven_vocabulary:
            padded = -(-rows // (multiple * tensor_parallel)) * multiple * tensor_parallel
        if padded % tensor_parallel:
            raise ImpossibleLayout(
                f"{padded} rows of the padded vocabulary do not divide over tensor_parallel {tensor_parallel}.",
                rule="tensor-parallel-divides",
                pointer="/layout/tensor_parallel",
            )
        return padded // tensor_parallel

    def expert_mesh(self, layout: ShardLayout) -> Mesh:
        """Return how this stack divides experts over a stage's ranks."""
        degree = layout.expert_tensor_parallel
        if degree is None:
            whole = layout.expert_parallel > 1 and self.expert_tensor_degree is not ExpertTensorDegree.TENSOR
            everyone = self.expert_tensor_degree is ExpertTensorDegree.ALL_RANKS
            degree = 1 if whole else layout.ranks_per_stage if everyone else layout.tensor_parallel
        return layout.expert_mesh(degree)

    def expert_cut_dim(self, experts: int, mesh: Mesh) -> int:
        """Return the dimension of a stack of experts that is divided over the shard ranks."""
        return 1 if self.cuts_experts_second and mesh.shard * mesh.expert > experts else 0

    def layers_of_stages(self, layout: ShardLayout, num_layers: int) -> tuple[int, ...]:
        """Return the number of decoder layers of each stage."""
        return layout.stage_layers or self.deal_layers(num_layers, layout.pipeline_parallel)


_ALL = (
    ShardingPolicy(
        name="reference",
        key_value_heads=KeyValueHeads.REPLICATED,
        cut=FlatBuffers(rank_multiple=1),
        deal_layers=behind_the_first,
        stacks_experts=True,
        source="Rajbhandari et al. 2020, arXiv:1910.02054: all elements in equal parts",
    ),
    ShardingPolicy(
        name="ddp",
        key_value_heads=KeyValueHeads.REFUSED,
        cut=Whole(),
        deal_layers=even_stages,
        stacks_experts=True,
        source="PyTorch, nn.parallel.DistributedDataParallel: every rank holds everything",
    ),
    ShardingPolicy(
        name="fsdp1",
        key_value_heads=KeyValueHeads.REFUSED,
        cut=FlatBuffers(rank_multiple=1),
        deal_layers=even_stages,
        stacks_experts=True,
        source="PyTorch, distributed/fsdp/_flat_param.py: the parameters of a module end to end, padded to the ranks",
    ),
    ShardingPolicy(
        name="nanotron",
        key_value_heads=KeyValueHeads.REFUSED,
        cut=FlatBuffers(rank_multiple=1),
        deal_layers=even_stages,
        stacks_experts=True,
        source="nanotron, optim/zero.py: optimizer states of all parameters end to end, in equal parts",
    ),
    ShardingPolicy(
        name="fsdp2",
        key_value_heads=KeyValueHeads.REFUSED,
        cut=FirstDimension(),
        deal_layers=even_stages,
        stacks_experts=True,
        source=(
            "PyTorch, distributed/fsdp/_fully_shard/_fsdp_param.py (chunks, padded to the first); distributed/tensor/"
            "placement_types.py (Shard: torch.chunk); transformers 5.23 stacks a layer's experts"
        ),
    ),
    ShardingPolicy(
        name="torchtitan",
        key_value_heads=KeyValueHeads.REFUSED,
        cut=FirstDimension(),
        deal_layers=first_stages_more,
        expert_tensor_degree=ExpertTensorDegree.TENSOR_ALONE,
        stacks_experts=True,
        cuts_experts_second=True,
        source="torchtitan, models/llama4/infra/parallelize.py, apply_fsdp; distributed/parallel_dims.py",
    ),
    ShardingPolicy(
        name="deepspeed-zero2",
        key_value_heads=KeyValueHeads.REFUSED,
        # NCCL starts on 4 bytes, two half-precision elements: stage_1_and_2.py, nccl_start_alignment_factor.
        cut=FlatBuffers(rank_multiple=2),
        deal_layers=even_stages,
        stacks_experts=True,
        source="DeepSpeed, runtime/zero/stage_1_and_2.py: one flat buffer a parameter group, padded at its end",
    ),
    ShardingPolicy(
        name="deepspeed-zero3",
        key_value_heads=KeyValueHeads.REFUSED,
        cut=EachTensorFlat(),
        deal_layers=even_stages,
        stacks_experts=True,
        source="DeepSpeed, runtime/zero/partition_parameters.py: every tensor flat, padded to equal parts",
    ),
    ShardingPolicy(
        name="megatron",
        key_value_heads=KeyValueHeads.CUT,
        # core/distributed/param_and_grad_buffer.py: parameters start on 64 elements, buckets end on 128 and on the
        # ranks, and are filled from the last parameter to the first.
        cut=FlatBuffers(rank_multiple=1, tensor_multiple=64, buffer_multiple=128, is_reversed=True),
        deal_layers=even_stages,
        vocabulary_multiple=MEGATRON_VOCABULARY_MULTIPLE,
        pads_vocabulary_by_degree=True,
        source=(
            "Megatron-LM, training/tokenizer/tokenizer.py (vocabulary), core/transformer/attention.py (query groups "
            "fewer than ranks), core/distributed/param_and_grad_buffer.py (distributed optimizer, one bucket)"
        ),
    ),
    ShardingPolicy(
        name="vllm",
        key_value_heads=KeyValueHeads.REPLICATED,
        cut=Whole(),
        deal_layers=last_but_one_first,
        expert_tensor_degree=ExpertTensorDegree.ALL_RANKS,
        vocabulary_multiple=VLLM_VOCABULARY_MULTIPLE,
        stacks_experts=True,
        deals_experts_unevenly=True,
        source=(
            "vLLM, model_executor/layers/linear.py (QKVParallelLinear), vocab_parallel_embedding.py, "
            "fused_moe/config.py (FusedMoEParallelConfig.make)"
        ),
    ),
)

POLICIES: Mapping[str, ShardingPolicy] = MappingProxyType({policy.name: policy for policy in _ALL})

# What a framework of a plan places its weights by; DeepSpeed's depends on the stage.
_OF_FRAMEWORK = MappingProxyType(
    {
        "accelerate": "fsdp2",
        "atorch": "fsdp1",
        "composer": "fsdp1",
        "ddp": "ddp",
        "fsdp2": "torchtitan",
        "litgpt": "fsdp1",
        "megatron": "megatron",
        "megatron-deepspeed": "megatron",
        "nanotron": "nanotron",
        "reference": "reference",
        "torchtune": "fsdp2",
    }
)
DEEPSPEED_PARAMETERS_FROM = 3


def sharding_policy(name: str) -> ShardingPolicy:
    """Return the policy of that name; raises `UnknownName` and lists the near ones."""
    if name not in POLICIES:
        raise UnknownName(name, POLICIES)
    return POLICIES[name]


def framework_policy(framework: str, zero_stage: int) -> ShardingPolicy:
    """Return the policy by which a training framework places weights; raises `UnknownName` for one without."""
    if framework == "deepspeed":
        return POLICIES["deepspeed-zero3" if zero_stage >= DEEPSPEED_PARAMETERS_FROM else "deepspeed-zero2"]
    if framework not in _OF_FRAMEWORK:
        raise UnknownName(framework, ("deepspeed", *_OF_FRAMEWORK), pointer="/framework")
    return POLICIES[_OF_FRAMEWORK[framework]]
