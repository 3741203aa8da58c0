"""How an engine places weights that do not divide, as its data file says."""

from __future__ import annotations

from functools import cache

from plimsoll.planners.serving.releases.tables import read_table
from plimsoll.planners.sharding import ExpertTensorDegree, KeyValueHeads, ShardingPolicy
from plimsoll.planners.sharding.cuts import Whole


@cache
def copies_plain_latents(engine: str) -> bool:
    """Return whether an engine keeps a second copy of a latent's up-projection that is in the model's own format."""
    copies: bool = read_table(engine)["latent_weights"]["copies_plain"]
    return copies


@cache
def policy_of(engine: str) -> ShardingPolicy:
    """Return how an engine places weights: heads fewer than ranks stand on several, each rank stacks its experts."""
    return ShardingPolicy(
        key_value_heads=KeyValueHeads.REPLICATED,
        cut=Whole(),
        expert_tensor_degree=ExpertTensorDegree.ALL_RANKS,
        stacks_experts=True,
        **read_table(engine)["placement"],
    )
