"""Mixtures of experts as configs tell their sizes and checkpoints name their weights."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.architecture.decoder import mixture_half
from plimsoll.planners.architecture.mixture_of_experts import (
    FusedExperts,
    MixtureOfExperts,
    expert_weights,
    fused_expert_weights,
    router_weight,
    shared_expert_weights,
)
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.sublayers import LAYER, Sublayer, gated_sublayer

GATED_NAMES = ("gate_proj", "up_proj", "down_proj")
# Mixtral's, and of those that follow it: gate, up, down.
NUMBERED_NAMES = ("w1", "w3", "w2")


@dataclass(frozen=True, slots=True)
class Sized:
    """A number of the config: its key, which may go by others, and its config class's default where it has one."""

    key: str
    default: int | None = None
    other_keys: tuple[str, ...] = ()
    may_be_zero: bool = False

    def read(self, config: ConfigReader, *, default: int | None = None) -> int:
        """Return the number; `default` stands for one that neither config nor class gives."""
        key, default = self.named(config), default if self.default is None else self.default
        if self.may_be_zero:
            return config.count(key, default=default or 0)
        return config.size(key, default=default)

    def named(self, config: ConfigReader) -> str:
        """Return the key that the config uses."""
        return config.named(self.key, *self.other_keys) if self.other_keys else self.key


def counted(key: str, default: int = 0, *other_keys: str) -> Sized:
    """Return a number that may be zero, and is where nothing says it."""
    return Sized(key, default, other_keys, may_be_zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedExperts:
    """The feed-forward that works on every token: `count` experts' (None: one), each of `width` (None: an expert's).

    `is_as_wide` means that a config without the width has an expert's.
    """

    count: Sized | None = None
    width: Sized | None = None
    is_as_wide: bool = False

    def features(self, config: ConfigReader, expert_width: int) -> int:
        """Return the features of all shared experts together."""
        count = 1 if self.count is None else self.count.read(config)
        if self.width is None:
            return count * expert_width
        return count * self.width.read(config, default=expert_width if self.is_as_wide else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureNames:
    """What a checkpoint calls a mixture's weights; all names stand within `prefix`.

    With `fused` all experts' gates and ups are one tensor and their downs another. Experts with two names have no gate.
    """

    prefix: str = f"{LAYER}.mlp"
    router: str = "gate"
    balancing_bias: str | None = None
    experts: tuple[str, ...] = GATED_NAMES
    fused: FusedExperts | None = None
    fused_names: tuple[str, str] = ("experts.gate_up_proj", "experts.down_proj")
    shared: str = "shared_experts"
    shared_names: tuple[str, str, str] = GATED_NAMES
    shared_gate: str | None = None

    def weights(self, size: MixtureOfExperts) -> tuple[Weight, ...]:
        """Return the weights of a mixture: router, experts, and the shared ones where it has any."""
        prefix = self.prefix
        weights = [router_weight(f"{prefix}.{self.router}.weight", size)]
        if self.balancing_bias is not None:
            weights.append(balancing_bias_weight(f"{prefix}.{self.balancing_bias}", size))
        if self.fused is None:
            weights.extend(expert_weights(f"{prefix}.experts.{{expert}}", size, names=self.experts))
        else:
            first, second = self.fused_names
            weights.extend(fused_expert_weights((f"{prefix}.{first}", f"{prefix}.{second}"), size, self.fused))
        weights.extend(shared_expert_weights(f"{prefix}.{self.shared}", size, names=self.shared_names))
        if self.shared_gate is not None:
            gate = (1, size.hidden_size)
            weights.append(Weight(name=f"{prefix}.{self.shared_gate}.weight", shape=gate, part=Part.ROUTER))
        return tuple(weights)


GATED_EXPERTS = MixtureNames()


def read_mixture(
    config: ConfigReader,
    hidden_size: int,
    *,
    experts: Sized,
    per_token: Sized = Sized("num_experts_per_tok"),
    width: Sized = Sized("moe_intermediate_size"),
    shared: SharedExperts | None = None,
    groups: str | None = None,
    has_shared_gate: bool = False,
    is_gated: bool = True,
    latent_size: int | None = None,
) -> MixtureOfExperts:
    """Return a mixture's sizes; raise for more chosen experts than there are, or `groups` that do not divide them."""
    number, chosen_key, chosen = experts.read(config), per_token.named(config), per_token.read(config)
    inner = width.read(config)
    if chosen > number:
        raise config.error(chosen_key, f"'{chosen_key}' is {chosen}, but a layer has {number} experts.")
    if groups is not None:
        config.must_divide(groups, config.size(groups, default=1), experts.named(config), number)
    return MixtureOfExperts(
        hidden_size=hidden_size,
        intermediate_size=inner,
        experts=number,
        experts_per_token=chosen,
        shared_intermediate_size=0 if shared is None else shared.features(config, inner),
        has_shared_gate=has_shared_gate,
        is_gated=is_gated,
        latent_size=latent_size,
    )


def mixture_sublayer(size: MixtureOfExperts, names: MixtureNames) -> Sublayer:
    """Return a mixture of experts as the feed-forward of a layer."""
    return Sublayer(half=mixture_half(size), weights=names.weights(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwards:
    """The feed-forwards of a model whose layers have experts, or are dense and `dense_width` wide."""

    dense_width: int
    mixture: MixtureOfExperts
    names: MixtureNames
    dense_prefix: str = f"{LAYER}.mlp"

    def sublayer(self, *, is_dense: bool) -> Sublayer:
        """Return the feed-forward of one kind of layer."""
        if is_dense:
            return gated_sublayer(self.mixture.hidden_size, self.dense_width, prefix=self.dense_prefix)
        return mixture_sublayer(self.mixture, self.names)


def layer_kind(*, is_dense: bool) -> str:
    """Return what a layer is called whose feed-forward is dense, or a mixture."""
    return "dense_layer" if is_dense else "expert_layer"


def balancing_bias_weight(name: str, mixture: MixtureOfExperts) -> Weight:
    """Return the bias that balances the experts' load, kept in the checkpoint but not trained by gradients.

    Source: Wang et al. 2024, arXiv:2408.15664.
    """
    return Weight(name=name, shape=(mixture.experts,), part=Part.ROUTER, is_buffer=True)
