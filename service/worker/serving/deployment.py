"""One rank of a serving plan, read from a stored plan; free of torch, so that one that cannot run is refused early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What one rank of a replica loads, allocates and runs.

    `profile_tokens` go through the layers at once, and `sampled_rows` logits are sampled;
    `batch` requests of `prompt_tokens` and `output_tokens` run together, 0 where
    the cache holds none. The cache has `blocks` of `block_size` tokens. `stage_layers` are
    those of the pipeline's stage that the plan's figures are of, None where there is but one.
    With `shares_experts` each rank has some experts whole, else a part of each.
    """

    model_name: str
    config: Mapping[str, Any]
    engine: str
    engine_version: str
    weights: str
    kv_cache: str
    tensor_parallel: int
    profile_tokens: int
    sampled_rows: int
    block_size: int
    blocks: int
    batch: int
    prompt_tokens: int
    output_tokens: int
    max_model_len: int
    max_num_seqs: int
    shares_experts: bool = False
    stage_layers: range | None = None

    @property
    def vocabulary_size(self) -> int:
        """Return the model's vocabulary."""
        return int(self.config["vocab_size"])

    @property
    def has_embedding(self) -> bool:
        """Return whether the embedding is on this stage."""
        return self.stage_layers is None or self.stage_layers.start == 0

    @property
    def has_head(self) -> bool:
        """Return whether the head is on this stage, which then samples."""
        return self.stage_layers is None or self.stage_layers.stop == int(self.config["num_hidden_layers"])

    @property
    def sequence_tokens(self) -> int:
        """Return a request's tokens at its end."""
        return self.prompt_tokens + self.output_tokens

    @property
    def pass_tokens(self) -> int:
        """Return the most tokens of one request that a pass reads."""
        return min(self.profile_tokens, self.prompt_tokens)


def read_deployment(request: Mapping[str, Any]) -> Deployment:
    """Return the deployment of a validation request.

    Raises `InvalidQuestion` for a request that lacks its parts.
    """
    try:
        plan = request["plan"]
        settings, layout, cache = plan["settings"], plan["layout"], plan["kv"]
        return Deployment(
            model_name=request["model"]["name"],
            config=request["model"]["config"],
            engine=settings["engine"],
            engine_version=settings["engine_version"],
            weights=settings["weights"],
            kv_cache=settings["kv_cache"],
            tensor_parallel=layout["tensor_parallel"],
            profile_tokens=settings["max_num_batched_tokens"],
            sampled_rows=min(settings["max_num_seqs"], settings["max_num_batched_tokens"]),
            block_size=cache["block_size"],
            blocks=cache["blocks"],
            batch=_batch(plan),
            prompt_tokens=settings["input_tokens"],
            output_tokens=settings["output_tokens"],
            max_model_len=settings["max_model_len"],
            max_num_seqs=settings["max_num_seqs"],
            stage_layers=_stage_layers(plan),
            shares_experts=layout.get("expert_parallel", 1) > 1,
        )
    except KeyError as missing:
        raise InvalidQuestion(f"The plan to validate lacks {missing}.") from missing


def _stage_layers(plan: Mapping[str, Any]) -> range | None:
    """Return the layers of the stage that binds, whose memory is the plan's; None where there is one stage."""
    if plan["layout"].get("pipeline_parallel", 1) == 1:
        return None
    binding = next(stage for stage in plan["memory"]["stages"] if stage["items"] == plan["memory"]["items"])
    first, last = binding["layers"]
    return range(first, last + 1)


def _batch(plan: Mapping[str, Any]) -> int:
    """Return the requests that run at once on one replica: those of the plan's speed, as far as they have a place."""
    places = min(int(plan["kv"]["requests_held"]), int(plan["settings"]["max_num_seqs"]))
    performance = plan.get("performance")
    if performance is None:
        return places
    return min(places, -(-int(performance["concurrency"]) // int(plan["layout"]["data_parallel"])))
