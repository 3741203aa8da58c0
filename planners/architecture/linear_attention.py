"""Linear attention whose state is a matrix for each head: gated delta rules and lightning attention."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture.mamba import channels, row, whole
from plimsoll.planners.architecture.operation import Scan, ScanKernel
from plimsoll.planners.architecture.recurrent import DELTA_FLOPS_PER_STATE_ELEMENT, Projection, RecurrentMixer
from plimsoll.planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """The sizes of one layer of the gated delta rule (Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464).

    Several of the `value_heads` share the query and key of one of `key_heads`. When
    `is_grouped`, queries, keys, values and gates of each key head stand together
    in one matrix (Qwen3-Next), else each kind in its own (Qwen3.5).
    """

    hidden_size: int
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel: int
    is_grouped: bool

    @property
    def key_width(self) -> int:
        """Return the features of all keys (or all queries)."""
        return self.key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Return the features of all values (or all output gates)."""
        return self.value_heads * self.value_head_dim

    @property
    def convolution_channels(self) -> int:
        """Return the channels of queries, keys and values, which pass the convolution together."""
        return 2 * self.key_width + self.value_width

    def mixer(self) -> RecurrentMixer:
        """Return what the layer costs and remembers."""
        convolved, gate, heads = self.convolution_channels, self.value_width, self.value_heads
        widths = (
            (("query_key_value_gate", convolved + gate), ("strength_decay", 2 * heads))
            if self.is_grouped
            else (("query_key_value", convolved), ("gate", gate), ("strength", heads), ("decay", heads))
        )
        return RecurrentMixer(
            hidden_size=self.hidden_size,
            projections=tuple(Projection(name=name, width=width) for name, width in widths),
            convolution_channels=convolved,
            kernel=self.kernel,
            memory_elements=self.value_heads * self.key_head_dim * self.value_head_dim,
            inner_width=self.value_width,
            has_output_norm=True,
            flops_per_state_element=DELTA_FLOPS_PER_STATE_ELEMENT,
            scan=Scan(
                kernel=ScanKernel.GATED_DELTA,
                heads=self.value_heads,
                key_dim=self.key_head_dim,
                value_dim=self.value_head_dim,
                groups=self.key_heads,
            ),
        )

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return the layer's weights; heads are divided whole.

        Source: `transformers` 5.23, modeling_qwen3_next and modeling_qwen3_5;
        split as by vLLM, model_executor/layers/mamba/gdn.
        """
        hidden, heads = self.hidden_size, self.value_heads
        convolved = (
            (self.key_width, self.key_heads),
            (self.key_width, self.key_heads),
            (self.value_width, heads),
        )
        return (
            channels(f"{prefix}.A_log", (heads,), heads),
            channels(f"{prefix}.dt_bias", (heads,), heads),
            channels(f"{prefix}.conv1d.weight", (self.convolution_channels, 1, self.kernel), sections=convolved),
            *(self._grouped(prefix) if self.is_grouped else self._separate(prefix, convolved)),
            Weight(name=f"{prefix}.norm.weight", shape=(self.value_head_dim,), part=Part.NORM),
            row(f"{prefix}.out_proj.weight", (hidden, self.value_width), heads),
        )

    def _grouped(self, prefix: str) -> tuple[Weight, ...]:
        first = (self.convolution_channels + self.value_width, self.hidden_size)
        second = (2 * self.value_heads, self.hidden_size)
        return (
            channels(f"{prefix}.in_proj_qkvz.weight", first, self.key_heads, is_linear=True),
            channels(f"{prefix}.in_proj_ba.weight", second, self.key_heads, is_linear=True),
        )

    def _separate(self, prefix: str, convolved: tuple[tuple[int, int], ...]) -> tuple[Weight, ...]:
        hidden, heads = self.hidden_size, self.value_heads
        first = (self.convolution_channels, hidden)
        return (
            channels(f"{prefix}.in_proj_qkv.weight", first, sections=convolved, is_linear=True),
            channels(f"{prefix}.in_proj_z.weight", (self.value_width, hidden), heads, is_linear=True),
            channels(f"{prefix}.in_proj_b.weight", (heads, hidden), heads, is_linear=True),
            channels(f"{prefix}.in_proj_a.weight", (heads, hidden), heads, is_linear=True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """The sizes of one layer of Kimi Delta Attention: a delta rule that decays each channel on its own.

    Decay and output gate pass a latent of one head's width.

    Source: Kimi Team 2025, arXiv:2510.26692, section 3.
    """

    hidden_size: int
    heads: int
    head_dim: int
    kernel: int

    @property
    def width(self) -> int:
        """Return the features of all queries (or keys, values, gates)."""
        return self.heads * self.head_dim

    def mixer(self) -> RecurrentMixer:
        """Return what the layer costs and remembers."""
        return RecurrentMixer(
            hidden_size=self.hidden_size,
            projections=(
                Projection(name="query_key_value", width=3 * self.width),
                Projection(name="strength", width=self.heads),
                Projection(name="decay", width=self.width, rank=self.head_dim),
                Projection(name="gate", width=self.width, rank=self.head_dim),
            ),
            convolution_channels=3 * self.width,
            kernel=self.kernel,
            memory_elements=self.heads * self.head_dim**2,
            inner_width=self.width,
            has_output_norm=True,
            flops_per_state_element=DELTA_FLOPS_PER_STATE_ELEMENT,
            scan=Scan(
                kernel=ScanKernel.CHANNEL_DELTA, heads=self.heads, key_dim=self.head_dim, value_dim=self.head_dim
            ),
        )

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return the layer's weights; heads are divided whole and the latents of the gates stand on every rank.

        Source: `transformers` 5.23, modeling_kimi_linear, under the checkpoint's
        names; split as by vLLM, model_executor/layers/kda.py.
        """
        hidden, heads, width, latent = self.hidden_size, self.heads, self.width, self.head_dim
        return (
            *(channels(f"{prefix}.{short}_proj.weight", (width, hidden), heads, is_linear=True) for short in "qkv"),
            *(channels(f"{prefix}.{short}_conv1d.weight", (width, 1, self.kernel), heads) for short in "qkv"),
            Weight(
                name=f"{prefix}.A_log",
                shape=(1, 1, heads, 1),
                part=Part.RECURRENT,
                split=Split.COLUMN,
                dim=2,
                units=heads,
            ),
            channels(f"{prefix}.dt_bias", (width,), heads),
            whole(f"{prefix}.f_a_proj.weight", (latent, hidden), is_linear=True),
            channels(f"{prefix}.f_b_proj.weight", (width, latent), heads, is_linear=True),
            channels(f"{prefix}.b_proj.weight", (heads, hidden), heads, is_linear=True),
            whole(f"{prefix}.g_a_proj.weight", (latent, hidden), is_linear=True),
            channels(f"{prefix}.g_b_proj.weight", (width, latent), heads, is_linear=True),
            Weight(name=f"{prefix}.o_norm.weight", shape=(self.head_dim,), part=Part.NORM),
            row(f"{prefix}.o_proj.weight", (hidden, width), heads),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttention:
    """The sizes of one layer of lightning attention: linear attention with a fixed decay for each head.

    Source: MiniMax 2025, arXiv:2501.08313, section 2.2.
    """

    hidden_size: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Return the features of all queries (or keys, values, gates)."""
        return self.heads * self.head_dim

    def mixer(self) -> RecurrentMixer:
        """Return what the layer costs and remembers."""
        return RecurrentMixer(
            hidden_size=self.hidden_size,
            projections=(
                Projection(name="query_key_value", width=3 * self.width),
                Projection(name="gate", width=self.width),
            ),
            convolution_channels=0,
            kernel=1,
            memory_elements=self.heads * self.head_dim**2,
            inner_width=self.width,
            has_output_norm=True,
        )

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return the layer's weights; query, key and value of a head stand together.

        Source: `transformers` 5.23, modeling_minimax. The decays follow from the
        head's and the layer's index and are no weights.
        """
        hidden, heads, width = self.hidden_size, self.heads, self.width
        return (
            channels(f"{prefix}.qkv_proj.weight", (3 * width, hidden), heads, is_linear=True),
            channels(f"{prefix}.output_gate.weight", (width, hidden), heads, is_linear=True),
            Weight(
                name=f"{prefix}.norm.weight", shape=(width,), part=Part.NORM, split=Split.COLUMN, dim=0, units=heads
            ),
            row(f"{prefix}.out_proj.weight", (hidden, width), heads),
        )
