"""What a model family is: how its configs are read, and what is true of it that no config says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.own_code import LIKE_LLAMA, OwnCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
    """Where transformers' decoder has its parts: `decoder` is the path of the module that holds all but `lm_head`."""

    decoder: str = "model"
    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"


LLAMA_PARTS = PartNames()
# What describes the models of a family.
Reader: TypeAlias = Callable[[ConfigReader], ModelSpec]


class Untraced(StrEnum):
    """Why a family that transformers can build is not traced."""

    LOOPS = (
        "transformers goes through its recurrence in a loop of its own where the kernels that train it are not there"
    )
    WIDE_STREAM = "its residual stream is in fp32 between layers in 16 bits, which no plan counts"
    EVERY_EXPERT = (
        "transformers' code gives every token to every expert, where a plan counts the chosen ones alone: send a "
        "measured peak instead"
    )
    BY_VALUE = "transformers sends tokens to its experts by their values, which a trace has not"
    OWN_ATTENTION = "transformers' code computes its attention in no kernel that a trace knows"
    TOWER = "the tower beside its text model is not; the model that its text_config describes is"
    REMOTE_CODE = "its code lies beside its weights and is not transformers'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Liger:
    """How Liger's kernels run a family: what its norms add to their weight, and whether gradients overwrite what came.

    Source: linkedin/Liger-Kernel 0.8.5, `transformers/monkey_patch.py`.
    """

    norm_offset: float = 0.0
    norms_in_place: bool = True
    has_fused_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """How transformers' code of a family is traced.

    `has_llama_matrices`: its layers' matrices have the names and the order of Llama's, which tensor parallelism and
    fused kernels know. `groups_experts`: its experts are traced as Megatron-Core has them. `has_latent_attention`: keys
    and values are kept as one compressed vector, and values have other lengths than keys. `has_transposed_matrices`:
    they are transformers' Conv1D, with the input's features first. `gated_delta_module` is the module of transformers'
    models that calls the kernels of a gated delta rule, for which shapes stand in, `state_space_module` the one that
    calls Mamba-2's. `liger` is None where Liger has no patch.
    """

    has_llama_matrices: bool = False
    groups_experts: bool = False
    has_latent_attention: bool = False
    has_transposed_matrices: bool = False
    gated_delta_module: str = ""
    state_space_module: str = ""
    liger: Liger | None = None

    @property
    def has_recurrent_kernels(self) -> bool:
        """Return whether kernels train its recurrent layers, for which shapes stand in."""
        return bool(self.gated_delta_module or self.state_space_module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a serving proof runs a family: divided over ranks or whole, and with which formats of its own."""

    is_divided: bool = True
    has_mxfp4_experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is true of a family that no config says; the defaults are those of a type that nobody knows.

    `parts` are where transformers' module has its decoder's. `tracing` is None for a family that is not traced,
    `untraced` says why where that is known; `serving` is None for one that no serving proof runs. `has_experts`:
    feed-forwards are mixtures, of some models at least. `needs_remote_code`: its published repositories bring a config,
    a tokenizer or a module of their own, which a program runs only where it is told to (vllm 0.33,
    tests/models/registry.py, trust_remote_code, less what transformers 5.23 reads without it). `class_sizes` are what
    its config class fills in where a wrapper's `text_config` leaves it out. `rotary_fraction` is the part of a key's
    features that turn where a config does not say. `interpolates_positions`: full layers interpolate positions, beside
    the plain ones of windows. `states_stretched_positions`: `max_position_embeddings` counts the scaling in already.
    `wrapped_layers` are the classes of its text model's layers, where transformers' own list of what FSDP is to wrap
    (`_no_split_modules`) has one that the loaded model lacks, at which accelerate gives up.

    Source of every family's: its modelling and configuration files in transformers 5.23, or the file named beside it.
    """

    parts: PartNames = LLAMA_PARTS
    tracing: Tracing | None = None
    untraced: Untraced | None = None
    serving: Serving | None = None
    has_experts: bool = False
    needs_remote_code: bool = False
    own_code: OwnCode = LIKE_LLAMA
    class_sizes: Mapping[str, int] = field(default_factory=dict)
    rotary_fraction: float = 1.0
    interpolates_positions: bool = False
    states_stretched_positions: bool = False
    wrapped_layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Traits):
    """One `model_type`: what describes its configs, or what it puts around another family's text model, and its traits.

    A module of this package lists its own under `FAMILIES`; nothing else names them.
    """

    reader: Reader | Wrapper
