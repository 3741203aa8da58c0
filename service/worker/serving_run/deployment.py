"""One rank of a serving plan, read from a stored plan; free of torch, so that one that cannot run is refused early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planners.errors import InvalidQuestion, NotYetAvailable
from service.worker.dry_run.job import LLAMA_LIKE_MODEL_TYPES

# A latent cache is laid out otherwise than the one that is run here; of the families that train others have not been
# compared.
SERVED_MODEL_TYPES = (
    *LLAMA_LIKE_MODEL_TYPES, "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gemma", "granite", "olmo2", "phi3",
    "starcoder2",
)  # fmt: skip
SERVED_ENGINES = ("vllm", "transformers")
SERVED_WEIGHTS = ("fp32", "bf16", "fp16", "fp8", "int8")
SERVED_CACHES = ("bf16", "fp16", "fp8")
FULL_ATTENTION = "full_attention"
LENGTHS_CUT_BY_RANKS = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
# What divides a replica's work in a way that is not run here.
UNDIVIDED = ("pipeline_parallel", "attention_data_parallel", "expert_parallel", "decode_context_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What one rank of a replica loads, allocates and runs.

    `profile_tokens` go through the layers at once, and `sampled_rows` logits are sampled;
    `batch` requests of `prompt_tokens` and `output_tokens` run together, 0 where
    the cache holds none. The cache has `blocks` of `block_size` tokens.
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

    @property
    def vocabulary_size(self) -> int:
        """Return the model's vocabulary."""
        return int(self.config["vocab_size"])

    @property
    def key_value_heads(self) -> int:
        """Return the key-value heads of one rank."""
        heads = self.config.get("num_key_value_heads") or self.config["num_attention_heads"]
        return int(heads) // self.tensor_parallel

    @property
    def head_dim(self) -> int:
        """Return the features of a head."""
        given = self.config.get("head_dim")
        return int(given or self.config["hidden_size"] // self.config["num_attention_heads"])

    @property
    def sequence_tokens(self) -> int:
        """Return a request's tokens at its end."""
        return self.prompt_tokens + self.output_tokens

    @property
    def blocks_per_request(self) -> int:
        """Return the blocks that one request fills at its end."""
        return -(-self.sequence_tokens // self.block_size)


def read_deployment(request: Mapping[str, Any]) -> Deployment:
    """Return the deployment of a validation request.

    Raises `NotYetAvailable`, naming it, for what cannot be run, and `InvalidQuestion`
    for a request that lacks its parts.
    """
    try:
        plan = request["plan"]
        settings, layout, cache = plan["settings"], plan["layout"], plan["kv"]
        deployment = Deployment(
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
        )
    except KeyError as missing:
        raise InvalidQuestion(f"The plan to validate lacks {missing}.") from missing
    _refuse_layout(layout, cache)
    _refuse_deployment(deployment)
    return deployment


def _batch(plan: Mapping[str, Any]) -> int:
    """Return the requests that run at once on one replica: those of the plan's speed, as far as they have a place."""
    places = min(int(plan["kv"]["requests_held"]), int(plan["settings"]["max_num_seqs"]))
    performance = plan.get("performance")
    if performance is None:
        return places
    return min(places, -(-int(performance["concurrency"]) // int(plan["layout"]["data_parallel"])))


def _refuse_layout(layout: Mapping[str, Any], cache: Mapping[str, Any]) -> None:
    for name in UNDIVIDED:
        if layout.get(name, 1) != 1:
            raise NotYetAvailable(f"A deployment with {name} {layout[name]} is not run yet.", pointer=f"/layout/{name}")
    kinds = sorted({group["kind"] for group in cache["groups"]})
    if kinds != [FULL_ATTENTION]:
        raise NotYetAvailable(f"A cache of {' and '.join(kinds)} layers is not run yet.", pointer="/model")


def _refuse_deployment(deployment: Deployment) -> None:
    for pointer, value, known in (
        ("/model/config/model_type", deployment.config.get("model_type"), SERVED_MODEL_TYPES),
        ("/serving/engine", deployment.engine, SERVED_ENGINES),
        ("/serving/weights", deployment.weights, SERVED_WEIGHTS),
        ("/serving/kv_cache", deployment.kv_cache, SERVED_CACHES),
    ):
        if value not in known:
            raise NotYetAvailable(f"{value!r} is not served in a proof yet; these are: {known}.", pointer=pointer)
    ranks = deployment.tensor_parallel
    if ranks == 1:
        return
    if deployment.config["model_type"] not in LLAMA_LIKE_MODEL_TYPES:
        raise NotYetAvailable(
            f"{deployment.config['model_type']!r} is served on one rank only.", pointer="/layout/tensor_parallel"
        )
    for key in LENGTHS_CUT_BY_RANKS:
        length = deployment.config.get(key) or deployment.config["num_attention_heads"]
        if length % ranks:
            raise NotYetAvailable(
                f"torch's tensor parallelism needs {key} ({length}) divisible by {ranks}.",
                pointer="/layout/tensor_parallel",
            )
    if deployment.weights in ("fp8", "int8"):
        raise NotYetAvailable(
            f"Weights in {deployment.weights} over tensor-parallel ranks are not served in a proof yet.",
            pointer="/serving/weights",
        )
