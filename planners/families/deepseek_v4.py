"""DeepSeek V4: compressed attention over a short window, experts in every layer, four residual streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.compressed_attention import (
    CompressedAttention,
    Compressor,
    EntryIndexer,
    compressed_attention_half,
    compressed_attention_weights,
)
from plimsoll.planners.architecture.decoder import mixture_half, norm_weights
from plimsoll.planners.architecture.hyper_connection import (
    HyperConnection,
    collapse_weights,
    hyper_connected_layer,
    hyper_connection_weights,
    with_collapse,
    with_streams,
)
from plimsoll.planners.architecture.mixture_of_experts import MixtureOfExperts
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderNames, blocks_by_kind, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.experts import NUMBERED_NAMES, MixtureNames, SharedExperts, Sized, read_mixture
from plimsoll.planners.families.reading.layer_kinds import named_layers, number_of_layers, numbered_layers
from plimsoll.planners.families.reading.multi_token import multi_token_assumptions

LAYER = "layers.{layer}"
NAMES = DecoderNames(embedding="embed.weight", final_norm="norm", head="head")

SLIDING = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
# The names of `layer_types` for the numbers of the published `compress_ratios`, in transformers' DeepseekV4Config.
KINDS_BY_RATIO: Mapping[int, str] = {0: SLIDING, 4: SPARSE, 128: HEAVY}
# Defaults of transformers' DeepseekV4Config.
DEFAULT_TOKENS_PER_ENTRY: Mapping[str, int] = {SPARSE: 4, HEAVY: 128}
DEFAULT_HEAVY_LAYERS = 2
DEFAULT_HASH_LAYERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What sets one layer apart: its attention, and whether a table of tokens chooses its experts."""

    attention: str
    is_hashed: bool


def deepseek_v4(config: ConfigReader) -> ModelSpec:
    """Return the description of a DeepSeek V4 model, without its multi-token layer.

    The first layers' experts are chosen by a fixed table, one row for each token
    of the vocabulary, which the checkpoint holds beside the weights.

    Source: `transformers` 5.23, modeling_deepseek_v4 and conversion_mapping.
    """
    attentions = _attentions(config)
    hidden_size = attentions[SLIDING].hidden_size
    vocabulary_size = config.size("vocab_size", default=129_280)
    mixture = _mixture(config, hidden_size)
    streams = HyperConnection(hidden_size=hidden_size, streams=config.size("hc_mult", default=4))
    for key in ("attention_bias", "mlp_bias"):
        config.must_be(key, False)
    config.must_be("num_key_value_heads", 1)
    config.ignore(
        "compress_rope_theta", "expert_dtype", "hc_eps", "hc_sinkhorn_iters", "hidden_act", "norm_topk_prob",
        "output_router_logits", "partial_rotary_factor", "qk_rope_head_dim",
        "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "scoring_func", "swiglu_limit",
        "topk_method",
    )  # fmt: skip

    def layer(indices: tuple[int, ...], kind: _Kind) -> Block:
        attention = attentions[kind.attention]
        return hyper_connected_layer(
            streams,
            layers=indices,
            mixer=compressed_attention_half(attention),
            feed_forward=mixture_half(mixture),
            kv=attention.kv_state(),
            kind="expert_layer",
            weights=(
                *compressed_attention_weights(f"{LAYER}.attn", attention),
                *_mixture_weights(mixture, hashed_vocabulary=vocabulary_size if kind.is_hashed else 0),
                *norm_weights(f"{LAYER}.attn_norm", hidden_size),
                *norm_weights(f"{LAYER}.ffn_norm", hidden_size),
                *hyper_connection_weights(f"{LAYER}.hc_attn", streams),
                *hyper_connection_weights(f"{LAYER}.hc_ffn", streams),
            ),
        )

    spec = decoder_model(
        config,
        attention=attentions[SLIDING],
        mixture=mixture,
        vocabulary_size=vocabulary_size,
        layers=blocks_by_kind(_kinds(config), layer),
        names=NAMES,
        assumptions=multi_token_assumptions(config, "num_nextn_predict_layers"),
    )
    return dataclasses.replace(
        spec,
        embedding=with_streams(spec.embedding, streams),
        head=with_collapse(spec.head, streams, collapse_weights("hc_head", streams)),
    )


def _attentions(config: ConfigReader) -> Mapping[str, CompressedAttention]:
    """Return the attention of each kind of layer."""
    heads, groups = config.size("num_attention_heads", default=64), config.size("o_groups", default=8)
    config.must_divide("o_groups", groups, "num_attention_heads", heads)
    sliding = CompressedAttention(
        hidden_size=config.size("hidden_size", default=4096),
        heads=heads,
        head_dim=config.size("head_dim", default=512),
        query_rank=config.size("q_lora_rank", default=1024),
        output_groups=groups,
        output_rank=config.size("o_lora_rank", default=1024),
        window=config.size("sliding_window", default=128),
    )
    rates = config.section("compress_rates", defaults=DEFAULT_TOKENS_PER_ENTRY)
    sparse = Compressor(
        width=sliding.head_dim,
        tokens_per_entry=config.size("compress_rate_csa", default=rates.size(SPARSE)),
        has_overlap=True,
    )
    heavy = Compressor(
        width=sliding.head_dim,
        tokens_per_entry=config.size("compress_rate_hca", default=rates.size(HEAVY)),
        has_overlap=False,
    )
    indexer = EntryIndexer(
        heads=config.size("index_n_heads", default=64),
        chosen_entries=config.size("index_topk", default=512),
        compressor=dataclasses.replace(sparse, width=config.size("index_head_dim", default=128)),
    )
    return {
        SLIDING: sliding,
        SPARSE: dataclasses.replace(sliding, compressor=sparse, indexer=indexer),
        HEAVY: dataclasses.replace(sliding, compressor=heavy),
    }


def _kinds(config: ConfigReader) -> list[_Kind]:
    """Return each layer's kind; lists that go on with the multi-token layers are cut."""
    num_layers = number_of_layers(config, default=43)
    heavy = [HEAVY] * min(num_layers, DEFAULT_HEAVY_LAYERS)
    default = (*heavy, *((HEAVY, SPARSE)[layer % 2] for layer in range(num_layers - len(heavy))))
    attentions = named_layers(config, "layer_types", num_layers, SLIDING, SPARSE, HEAVY, may_go_on=True)
    ratios = numbered_layers(config, "compress_ratios", num_layers, *KINDS_BY_RATIO, may_go_on=True)
    if attentions is None:
        attentions = default if ratios is None else tuple(KINDS_BY_RATIO[ratio] for ratio in ratios)
    hashed = config.count("num_hash_layers", default=DEFAULT_HASH_LAYERS)
    feed_forwards = named_layers(config, "mlp_layer_types", num_layers, "hash_moe", "moe", may_go_on=True)
    return [
        _Kind(
            attention=attention,
            is_hashed=layer < hashed if feed_forwards is None else feed_forwards[layer] == "hash_moe",
        )
        for layer, attention in enumerate(attentions)
    ]


def _mixture(config: ConfigReader, hidden_size: int) -> MixtureOfExperts:
    # Every stack builds one shared expert, whatever the config says.
    config.must_be("n_shared_experts", 1)
    return read_mixture(
        config,
        hidden_size,
        experts=Sized("n_routed_experts", 256),
        per_token=Sized("num_experts_per_tok", 6),
        width=Sized("moe_intermediate_size", 2048),
        shared=SharedExperts(),
    )


def _mixture_weights(mixture: MixtureOfExperts, *, hashed_vocabulary: int) -> tuple[Weight, ...]:
    """Return router and experts; where a table chooses them it stands in the place of the balancing bias."""
    prefix = f"{LAYER}.ffn"
    names = MixtureNames(prefix=prefix, balancing_bias="gate.bias", experts=NUMBERED_NAMES, shared_names=NUMBERED_NAMES)
    router, bias, *experts = names.weights(mixture)
    table = dataclasses.replace(
        bias, name=f"{prefix}.gate.tid2eid", shape=(hashed_vocabulary, mixture.experts_per_token)
    )
    return (router, table if hashed_vocabulary else bias, *experts)


FAMILIES: Mapping[str, Family] = {
    "deepseek_v4": Family(reader=deepseek_v4),
}
