"""The mixers of Mamba and Mamba-2: their sizes and their weights."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture.operation import Scan, ScanKernel
from plimsoll.planners.architecture.recurrent import Projection, RecurrentMixer, Selection
from plimsoll.planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """The sizes of one selective state space layer (Gu & Dao 2023, arXiv:2312.00752).

    `has_selection_norms` is true where step, B and C are each normed
    (Jamba, arXiv:2403.19887, section 6.4).
    """

    hidden_size: int
    inner_width: int
    state_size: int
    kernel: int
    step_rank: int
    projection_bias: bool = False
    convolution_bias: bool = True
    has_selection_norms: bool = False

    @property
    def selection_width(self) -> int:
        """Return the features of step, B and C together."""
        return self.step_rank + 2 * self.state_size

    def mixer(self) -> RecurrentMixer:
        """Return what the layer costs and remembers."""
        return RecurrentMixer(
            hidden_size=self.hidden_size,
            projections=(Projection(name="projected", width=2 * self.inner_width),),
            convolution_channels=self.inner_width,
            kernel=self.kernel,
            memory_elements=self.inner_width * self.state_size,
            inner_width=self.inner_width,
            selection=Selection(width=self.selection_width, rank=self.step_rank),
            scan=Scan(
                # The fused kernel knows no norms of step, B and C (`transformers`, modeling_jamba).
                kernel=ScanKernel.SELECTIVE_APART if self.has_selection_norms else ScanKernel.SELECTIVE,
                heads=self.inner_width,
                key_dim=self.state_size,
                value_dim=1,
            ),
        )

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return the layer's weights; channels are divided, what mixes them to B, C and the step is divided by row."""
        inner, hidden = self.inner_width, self.hidden_size
        both = ((inner, 0), (inner, 0))  # channels, then their gate
        norms = (("dt", self.step_rank), ("b", self.state_size), ("c", self.state_size))
        return (
            channels(f"{prefix}.A_log", (inner, self.state_size)),
            channels(f"{prefix}.D", (inner,)),
            channels(f"{prefix}.conv1d.weight", (inner, 1, self.kernel)),
            *_optional(self.convolution_bias, channels(f"{prefix}.conv1d.bias", (inner,))),
            channels(f"{prefix}.in_proj.weight", (2 * inner, hidden), sections=both, is_linear=True),
            *_optional(self.projection_bias, channels(f"{prefix}.in_proj.bias", (2 * inner,), sections=both)),
            row(f"{prefix}.x_proj.weight", (self.selection_width, inner)),
            channels(f"{prefix}.dt_proj.weight", (inner, self.step_rank), is_linear=True),
            channels(f"{prefix}.dt_proj.bias", (inner,)),
            row(f"{prefix}.out_proj.weight", (hidden, inner)),
            *_optional(self.projection_bias, whole(f"{prefix}.out_proj.bias", (hidden,))),
            *(
                Weight(name=f"{prefix}.{name}_layernorm.weight", shape=(width,), part=Part.NORM)
                for name, width in norms
                if self.has_selection_norms
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """The sizes of one structured state space layer (Dao & Gu 2024, arXiv:2405.21060).

    Each of `heads` has `head_dim` channels; `groups` of heads share B and C. A training kernel goes through
    `chunk` tokens at once.
    """

    hidden_size: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    kernel: int
    chunk: int
    projection_bias: bool = False
    convolution_bias: bool = True

    @property
    def inner_width(self) -> int:
        """Return the channels of all heads."""
        return self.heads * self.head_dim

    @property
    def group_width(self) -> int:
        """Return the features of B (or C) of all groups."""
        return self.groups * self.state_size

    @property
    def convolution_channels(self) -> int:
        """Return the channels of x, B and C, which pass the convolution together."""
        return self.inner_width + 2 * self.group_width

    @property
    def projected_width(self) -> int:
        """Return gate, convolved channels and one step size for each head."""
        return self.inner_width + self.convolution_channels + self.heads

    def mixer(self) -> RecurrentMixer:
        """Return what the layer costs and remembers."""
        return RecurrentMixer(
            hidden_size=self.hidden_size,
            projections=(Projection(name="projected", width=self.projected_width),),
            convolution_channels=self.convolution_channels,
            kernel=self.kernel,
            memory_elements=self.inner_width * self.state_size,
            inner_width=self.inner_width,
            has_output_norm=True,
            scan=Scan(
                kernel=ScanKernel.STATE_SPACE,
                heads=self.heads,
                key_dim=self.state_size,
                value_dim=self.head_dim,
                groups=self.groups,
                chunk_tokens=self.chunk,
            ),
        )

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return the layer's weights; heads are divided whole, groups fewer than the ranks are replicated.

        Source: vLLM, model_executor/layers/mamba/mamba_mixer2.py, which splits
        gate, x, B, C and step each on its own.
        """
        hidden, heads, width = self.hidden_size, self.heads, self.convolution_channels
        convolved = ((self.inner_width, heads), (self.group_width, self.groups), (self.group_width, self.groups))
        projected = ((self.inner_width, heads), *convolved, (heads, heads))
        return (
            channels(f"{prefix}.A_log", (heads,), heads),
            channels(f"{prefix}.D", (heads,), heads),
            channels(f"{prefix}.dt_bias", (heads,), heads),
            channels(f"{prefix}.conv1d.weight", (width, 1, self.kernel), sections=convolved),
            *_optional(self.convolution_bias, channels(f"{prefix}.conv1d.bias", (width,), sections=convolved)),
            channels(f"{prefix}.in_proj.weight", (self.projected_width, hidden), sections=projected, is_linear=True),
            *_optional(
                self.projection_bias, channels(f"{prefix}.in_proj.bias", (self.projected_width,), sections=projected)
            ),
            Weight(
                name=f"{prefix}.norm.weight",
                shape=(self.inner_width,),
                part=Part.NORM,
                split=Split.COLUMN,
                dim=0,
                units=heads,
            ),
            row(f"{prefix}.out_proj.weight", (hidden, self.inner_width), heads),
            *_optional(self.projection_bias, whole(f"{prefix}.out_proj.bias", (hidden,))),
        )


def channels(
    name: str,
    shape: tuple[int, ...],
    units: int = 0,
    *,
    sections: tuple[tuple[int, int], ...] = (),
    is_linear: bool = False,
) -> Weight:
    """Return a recurrent layer's weight whose first dimension is divided by channel or, with `units`, by head."""
    return Weight(
        name=name,
        shape=shape,
        part=Part.RECURRENT,
        split=Split.COLUMN,
        dim=0,
        units=units,
        sections=sections,
        is_linear=is_linear,
    )


def row(name: str, shape: tuple[int, int], units: int = 0) -> Weight:
    """Return a recurrent layer's matrix whose input features are divided."""
    return Weight(name=name, shape=shape, part=Part.RECURRENT, split=Split.ROW, dim=1, units=units, is_linear=True)


def whole(name: str, shape: tuple[int, ...], *, is_linear: bool = False) -> Weight:
    """Return a recurrent layer's weight that every rank holds whole."""
    return Weight(name=name, shape=shape, part=Part.RECURRENT, is_linear=is_linear)


def _optional(wanted: bool, weight: Weight) -> tuple[Weight, ...]:
    return (weight,) if wanted else ()
