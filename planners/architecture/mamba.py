"""The mixers of Mamba and Mamba-2: their sizes and their weights."""

from __future__ import annotations

from dataclasses import dataclass

from planners.architecture.recurrent import RecurrentMixer
from planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """The sizes of one selective state space layer (Gu & Dao 2023, arXiv:2312.00752)."""

    hidden_size: int
    inner_width: int
    state_size: int
    kernel: int
    step_rank: int
    projection_bias: bool = False
    convolution_bias: bool = True

    def mixer(self) -> RecurrentMixer:
        """Return what the layer costs and remembers."""
        return RecurrentMixer(
            hidden_size=self.hidden_size,
            projected_width=2 * self.inner_width,
            convolution_channels=self.inner_width,
            kernel=self.kernel,
            memory_elements=self.inner_width * self.state_size,
            inner_width=self.inner_width,
            inner_matmuls=(
                (self.inner_width, self.step_rank + 2 * self.state_size),
                (self.step_rank, self.inner_width),
            ),
        )

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return the layer's weights; channels are divided, what mixes them to B, C and the step is divided by row."""
        inner, hidden = self.inner_width, self.hidden_size
        return (
            _channels(f"{prefix}.A_log", (inner, self.state_size)),
            _channels(f"{prefix}.D", (inner,)),
            _channels(f"{prefix}.conv1d.weight", (inner, 1, self.kernel)),
            *_optional(self.convolution_bias, _channels(f"{prefix}.conv1d.bias", (inner,))),
            _channels(f"{prefix}.in_proj.weight", (2 * inner, hidden), is_linear=True),
            *_optional(self.projection_bias, _channels(f"{prefix}.in_proj.bias", (2 * inner,))),
            _row(f"{prefix}.x_proj.weight", (self.step_rank + 2 * self.state_size, inner)),
            _channels(f"{prefix}.dt_proj.weight", (inner, self.step_rank), is_linear=True),
            _channels(f"{prefix}.dt_proj.bias", (inner,)),
            _row(f"{prefix}.out_proj.weight", (hidden, inner)),
            *_optional(self.projection_bias, _whole(f"{prefix}.out_proj.bias", (hidden,))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """The sizes of one structured state space layer (Dao & Gu 2024, arXiv:2405.21060).

    Each of `heads` has `head_dim` channels; `groups` of heads share B and C.
    """

    hidden_size: int
    heads: int
    head_dim: int
    groups: int
    state_size: int
    kernel: int
    projection_bias: bool = False
    convolution_bias: bool = True

    @property
    def inner_width(self) -> int:
        """Return the channels of all heads."""
        return self.heads * self.head_dim

    @property
    def convolution_channels(self) -> int:
        """Return the channels of x, B and C, which pass the convolution together."""
        return self.inner_width + 2 * self.groups * self.state_size

    @property
    def projected_width(self) -> int:
        """Return gate, convolved channels and one step size for each head."""
        return self.inner_width + self.convolution_channels + self.heads

    def mixer(self) -> RecurrentMixer:
        """Return what the layer costs and remembers."""
        return RecurrentMixer(
            hidden_size=self.hidden_size,
            projected_width=self.projected_width,
            convolution_channels=self.convolution_channels,
            kernel=self.kernel,
            memory_elements=self.inner_width * self.state_size,
            inner_width=self.inner_width,
        )

    def weights(self, prefix: str) -> tuple[Weight, ...]:
        """Return the layer's weights; heads are divided whole."""
        hidden, heads, channels = self.hidden_size, self.heads, self.convolution_channels
        return (
            _channels(f"{prefix}.A_log", (heads,)),
            _channels(f"{prefix}.D", (heads,)),
            _channels(f"{prefix}.dt_bias", (heads,)),
            _channels(f"{prefix}.conv1d.weight", (channels, 1, self.kernel)),
            *_optional(self.convolution_bias, _channels(f"{prefix}.conv1d.bias", (channels,))),
            _channels(f"{prefix}.in_proj.weight", (self.projected_width, hidden), is_linear=True),
            *_optional(self.projection_bias, _channels(f"{prefix}.in_proj.bias", (self.projected_width,))),
            Weight(name=f"{prefix}.norm.weight", shape=(self.inner_width,), part=Part.NORM, split=Split.COLUMN, dim=0),
            _row(f"{prefix}.out_proj.weight", (hidden, self.inner_width)),
            *_optional(self.projection_bias, _whole(f"{prefix}.out_proj.bias", (hidden,))),
        )


def _channels(name: str, shape: tuple[int, ...], *, is_linear: bool = False) -> Weight:
    return Weight(name=name, shape=shape, part=Part.RECURRENT, split=Split.COLUMN, dim=0, is_linear=is_linear)


def _row(name: str, shape: tuple[int, int]) -> Weight:
    return Weight(name=name, shape=shape, part=Part.RECURRENT, split=Split.ROW, dim=1, is_linear=True)


def _whole(name: str, shape: tuple[int, ...]) -> Weight:
    return Weight(name=name, shape=shape, part=Part.RECURRENT)


def _optional(wanted: bool, weight: Weight) -> tuple[Weight, ...]:
    return (weight,) if wanted else ()
