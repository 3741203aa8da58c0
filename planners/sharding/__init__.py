"""Who holds what of every weight: tensor, expert, pipeline and ZeRO or FSDP sharding, as each stack does it."""

from plimsoll.planners.sharding.groups import Group, Shard
from plimsoll.planners.sharding.layout import Mesh, ShardLayout
from plimsoll.planners.sharding.policy import ExpertTensorDegree, KeyValueHeads, ShardingPolicy, sharding_policy
from plimsoll.planners.sharding.ranks import (
    Account,
    FirstRank,
    RankElements,
    account,
    first_rank,
    rank_elements,
    rank_shards,
    shards,
)

__all__ = [
    "Account",
    "ExpertTensorDegree",
    "FirstRank",
    "Group",
    "KeyValueHeads",
    "Mesh",
    "RankElements",
    "Shard",
    "ShardLayout",
    "ShardingPolicy",
    "account",
    "first_rank",
    "rank_elements",
    "rank_shards",
    "sharding_policy",
    "shards",
]
