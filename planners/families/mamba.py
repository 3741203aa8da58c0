"""Mamba, Falcon Mamba and Mamba-2: layers that are nothing but a recurrence."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.architecture.decoder import decoder_layer, norm_weights, recurrent_half
from plimsoll.planners.architecture.mamba import Mamba, Mamba2
from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames, DecoderSizes, decoder_model
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.layer_kinds import number_of_layers

# Defaults of transformers' MambaConfig and Mamba2Config.
DEFAULT_EXPAND = 2
DEFAULT_KERNEL = 4
DEFAULT_CHUNK = 256
STEP_RANK_DIVISOR = 16
NAMES = DecoderNames(embedding="backbone.embeddings.weight", final_norm="backbone.norm_f")
IGNORED = (
    "hidden_act", "norm_before_gate", "rescale_prenorm_residual", "residual_in_fp32",
    "rms_norm", "time_step_floor", "time_step_init_scheme", "time_step_limit", "time_step_max", "time_step_min",
    "time_step_scale", "use_associative_scan", "use_mambapy",
)  # fmt: skip


def mamba(config: ConfigReader) -> ModelSpec:
    """Return the description of a Mamba or Falcon Mamba model.

    Falcon Mamba norms step, B and C, with norms that have no weights.

    Source: `transformers` 5.23, modeling_mamba and modeling_falcon_mamba.
    """
    hidden_size = config.size("hidden_size")
    expanded = config.size("expand", default=DEFAULT_EXPAND) * hidden_size
    size = Mamba(
        hidden_size=hidden_size,
        inner_width=config.size("intermediate_size", default=expanded),
        state_size=config.size("state_size"),
        kernel=config.size("conv_kernel", default=DEFAULT_KERNEL),
        step_rank=step_rank(config, "time_step_rank", hidden_size),
        projection_bias=config.flag("use_bias", default=False),
        convolution_bias=config.flag("use_conv_bias", default=True),
    )
    config.ignore("chunk_size", "d_inner", "d_model", "fused_add_norm", "mixer_rms_eps", "n_layer",
                  "pad_vocab_size_multiple", "ssm_cfg", "use_falcon_mambapy", *IGNORED)  # fmt: skip
    return _model(config, size, tied_by_default=True)


def mamba2(config: ConfigReader) -> ModelSpec:
    """Return the description of a Mamba-2 model. Source: `transformers` 5.23, modeling_mamba2."""
    hidden_size = config.size("hidden_size")
    heads, head_dim = config.size("num_heads"), config.size("head_dim")
    inner_width = config.size("expand", default=DEFAULT_EXPAND) * hidden_size
    if heads * head_dim != inner_width:
        raise config.error("num_heads", f"num_heads x head_dim ({heads * head_dim}) is not the width {inner_width}.")
    size = Mamba2(
        hidden_size=hidden_size,
        heads=heads,
        head_dim=head_dim,
        groups=config.size("n_groups"),
        state_size=config.size("state_size"),
        kernel=config.size("conv_kernel", default=DEFAULT_KERNEL),
        chunk=config.size("chunk_size", default=DEFAULT_CHUNK),
        projection_bias=config.flag("use_bias", default=False),
        convolution_bias=config.flag("use_conv_bias", default=True),
    )
    config.ignore("intermediate_size", "time_step_rank", *IGNORED)
    return _model(config, size, tied_by_default=False)


def _model(config: ConfigReader, size: Mamba | Mamba2, *, tied_by_default: bool) -> ModelSpec:
    mixer = size.mixer()
    layers = decoder_layer(
        layers=tuple(range(number_of_layers(config))),
        hidden_size=size.hidden_size,
        mixer=recurrent_half(mixer),
        feed_forward=None,
        weights=(
            *norm_weights("backbone.layers.{layer}.norm", size.hidden_size),
            *size.weights("backbone.layers.{layer}.mixer"),
        ),
        kv=mixer.kv_state(),
        kind="recurrent_layer",
    )
    return decoder_model(
        config,
        attention=DecoderSizes(hidden_size=size.hidden_size, heads=0, key_value_heads=0),
        layers=(layers,),
        tied=config.flag("tie_word_embeddings", default=tied_by_default),
        names=NAMES,
    )


def step_rank(config: ConfigReader, key: str, hidden_size: int) -> int:
    """Return the rank of the step's projection; "auto" is a sixteenth of the hidden size, rounded up."""
    if config.is_text(key) or config.is_absent(key):
        config.must_be(key, "auto")
        return -(-hidden_size // STEP_RANK_DIVISOR)
    return config.size(key)


FAMILIES: Mapping[str, Family] = {
    "mamba": Family(
        reader=mamba,
        untraced=Untraced.LOOPS,
    ),
    "falcon_mamba": Family(
        reader=mamba,
        untraced=Untraced.LOOPS,
    ),
    "mamba2": Family(
        reader=mamba2,
        untraced=Untraced.WIDE_STREAM,
    ),
}
