"""The degrees that divide one replica: how many GPUs, and what each divides."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture import GROWING, KvKind, ModelSpec
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.learned import Ranks
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.sharding import ShardLayout

SHARING = "attention_data_parallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """One replica's degrees; gpus = attention_data x tensor x pipeline.

    `attention_data_parallel` ranks hold the attention each and share the experts
    out among them; `expert_parallel` deals whole experts to that many groups of the
    stage's ranks, and what is left of them divides each expert. Decode context
    parallelism divides a sequence's cache over ranks that tensor parallelism has.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    attention_data_parallel: int = 1
    expert_parallel: int = 1
    decode_context_parallel: int = 1

    @property
    def ranks_per_stage(self) -> int:
        """Return the GPUs of one pipeline stage, among which experts are divided."""
        return self.tensor_parallel * self.attention_data_parallel

    @property
    def gpus(self) -> int:
        """Return the GPUs of one replica."""
        return self.ranks_per_stage * self.pipeline_parallel

    @property
    def expert_tensor_parallel(self) -> int:
        """Return over how many ranks each expert is divided."""
        return self.ranks_per_stage // self.expert_parallel

    @property
    def shard_layout(self) -> ShardLayout:
        """Return the degrees as the weights' placement takes them."""
        return ShardLayout(
            tensor_parallel=self.tensor_parallel,
            replicas=self.attention_data_parallel,
            expert_parallel=self.expert_parallel,
            expert_tensor_parallel=self.expert_tensor_parallel,
        )


def ranks_of(degrees: Degrees) -> Ranks:
    """Return the kind that degrees are of, as measured starts are kept by."""
    if degrees.ranks_per_stage > 1:
        return Ranks.TENSOR
    return Ranks.PIPELINE if degrees.pipeline_parallel > 1 else Ranks.SINGLE


def has_experts(model: ModelSpec) -> bool:
    """Return whether any layer is a mixture of experts."""
    return any(weight.experts > 1 for block in model.layers for weight in block.weights)


def degrees_obstacle(model: ModelSpec, profile: EngineProfile, degrees: Degrees) -> ImpossibleLayout | None:
    """Return why the engine refuses these degrees of this model, or None.

    Source: vllm/config/model.py, verify_with_parallel_config (decode context parallelism).
    """
    ranks, experts = degrees.ranks_per_stage, degrees.expert_parallel
    if not has_experts(model) and (degrees.attention_data_parallel > 1 or experts > 1):
        field = "expert_parallel" if experts > 1 else "attention_data_parallel"
        return _impossible(field, f"{model.name} has no experts to divide; use data_parallel.", "experts-needed")
    if ranks % experts or (profile.degrees.deals_to_all_or_none and experts not in (1, ranks)):
        allowed = "1 or all" if profile.degrees.deals_to_all_or_none else "a divisor"
        # Engines call replicas and ranks that share out experts by one name, data parallel.
        meant = (
            f" Data-parallel ranks that share the experts are {SHARING}, not data_parallel." if experts > ranks else ""
        )
        return _impossible(
            "expert_parallel",
            f"expert_parallel must be {allowed} of {SHARING} x tensor_parallel = {ranks}, not {experts}.{meant}",
            "expert-parallel-divides",
        )
    return _engine_obstacle(profile, degrees) or _context_obstacle(model, degrees)


def _engine_obstacle(profile: EngineProfile, degrees: Degrees) -> ImpossibleLayout | None:
    """Return what only some engines can do."""
    rules, ranks = profile.degrees, degrees.attention_data_parallel
    if rules.copies_attention_to_all_or_none and ranks > 1 and degrees.tensor_parallel > 1:
        return _impossible(
            "attention_data_parallel",
            f"{profile.engine} runs attention data parallel on all ranks of a stage or on none.",
            "engine-has-degree",
        )
    for field, degree, is_known in (
        ("pipeline_parallel", degrees.pipeline_parallel, rules.has_stages),
        ("expert_parallel", degrees.expert_parallel, rules.divides_experts),
        ("attention_data_parallel", ranks, rules.divides_experts),
    ):
        if degree > 1 and not is_known:
            return _impossible(field, f"{profile.engine} has no {field}; it must be 1.", "engine-has-degree")
    return None


def _context_obstacle(model: ModelSpec, degrees: Degrees) -> ImpossibleLayout | None:
    context, tensor = degrees.decode_context_parallel, degrees.tensor_parallel
    if context == 1:
        return None
    if tensor % context:
        reason = f"decode_context_parallel {context} does not divide tensor_parallel {tensor}."
    else:
        copies = tensor // _cached_heads(model)
        if context <= copies:
            return None
        reason = (
            f"decode_context_parallel {context} exceeds the {max(1, copies)} ranks that tensor_parallel {tensor} "
            f"gives each of {_cached_heads(model)} key-value heads."
        )
    return _impossible("decode_context_parallel", reason, "context-parallel-divides")


def context_degrees(model: ModelSpec, profile: EngineProfile, tensor_parallel: int) -> tuple[int, ...]:
    """Return over how many of the ranks that have the same heads a sequence's cache may be divided, 1 among them."""
    divides = profile.divides_contexts and all(
        state.kind in GROWING for block in model.layers for state in (block.kv, block.cross) if state is not None
    )
    copies = tensor_parallel // _cached_heads(model) if divides else 1
    return tuple(
        degree for degree in range(1, copies + 1) if copies % degree == 0 and tensor_parallel % degree == 0
    ) or (1,)


def _cached_heads(model: ModelSpec) -> int:
    """Return the heads a cache is divided by; a latent counts as one."""
    is_latent = any(block.kv is not None and block.kv.kind is KvKind.LATENT for block in model.layers)
    return 1 if is_latent else model.key_value_heads


def _impossible(field: str, reason: str, rule: str) -> ImpossibleLayout:
    return ImpossibleLayout(reason, rule=rule, pointer=f"/layout/{field}")
