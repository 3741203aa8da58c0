"""A model: blocks of weights and operations, in the order they are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.planners.architecture.operation import Operation, Tensor
from plimsoll.planners.architecture.sequence_state import KvState
from plimsoll.planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of like layers, or the embedding or the head.

    `layers` are the indices of the decoder layers that are made like this one;
    it is empty for the embedding and for the head, which stand once. Weights are
    named by the index less `first_named`: an encoder-decoder's decoder counts its
    layers from zero again. `kv` is what a layer caches of its own sequence, `cross`
    what it caches of an encoder's.
    """

    kind: str
    weights: tuple[Weight, ...]
    operations: tuple[Operation, ...]
    tensors: tuple[Tensor, ...]
    layers: tuple[int, ...] = ()
    first_named: int = 0
    kv: KvState | None = None
    cross: KvState | None = None

    @property
    def repeats(self) -> int:
        """Return how many times the block stands in the model."""
        return len(self.layers) or 1

    @property
    def elements(self) -> int:
        """Return the elements of the weights of one such layer."""
        return sum(weight.elements for weight in self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model, described once; every count, shard and cost derives from it.

    When `tied_head` is true the head multiplies by the embedding's matrix and
    has no weight of its own. `experts_per_token` of each layer's experts work on
    a token. `rotary_fraction` of a key's features turn with its position, which
    `scales_positions` says is scaled, and of interpolated positions, or those of another
    base, there are `interpolated_tables` beside the plain ones. `multi_token` is what
    joins layers for multi-token prediction to the model, which are the last of `layers`;
    None where it is trained without.
    """

    name: str
    model_type: str
    hidden_size: int
    vocabulary_size: int
    max_position_embeddings: int | None
    attention_heads: int
    key_value_heads: int
    embedding: Block
    layers: tuple[Block, ...]
    head: Block
    tied_head: bool
    multi_token: Block | None = None
    experts_per_token: int = 0
    rotary_fraction: float = 1.0
    scales_positions: bool = False
    interpolated_tables: int = 0
    assumptions: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        """Return the number of decoder layers, without those for multi-token prediction."""
        return sum(block.repeats for block in self.layers) - self.multi_token_layers

    @property
    def multi_token_layers(self) -> int:
        """Return how many layers predict tokens behind the next one."""
        return 0 if self.multi_token is None else self.multi_token.repeats

    @property
    def heads(self) -> int:
        """Return how often the head is multiplied by: for the next token, and for each behind it."""
        return 1 + self.multi_token_layers

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return embedding, layers, what joins further ones, and head in order."""
        return (self.embedding, *self.layers, *([self.multi_token] if self.multi_token else ()), self.head)

    @property
    def parameters(self) -> int:
        """Return the exact number of parameters, tied weights counted once."""
        return sum(block.elements * block.repeats for block in self.blocks)

    @property
    def active_parameters(self) -> int:
        """Return the parameters that work on one token: a few of each layer's experts."""
        idle = sum(
            weight.elements // weight.experts * (weight.experts - self.experts_per_token) * block.repeats
            for block in self.layers
            for weight in block.weights
            if weight.experts > 1
        )
        return self.parameters - idle

    @property
    def has_learned_positions(self) -> bool:
        """Return whether positions have rows of an embedding, beyond which the model cannot look at all."""
        limit = self.max_position_embeddings
        return limit is not None and any(
            weight.part is Part.EMBEDDING and weight.split is Split.REPLICATED and weight.shape[0] >= limit
            for weight in self.embedding.weights
        )

    def parameters_by_part(self) -> dict[Part, int]:
        """Return the number of parameters of each part of the model."""
        counts: Counter[Part] = Counter()
        for block in self.blocks:
            for weight in block.weights:
                counts[weight.part] += weight.elements * block.repeats
        return dict(counts)

    def named_weights(self) -> Iterator[tuple[str, Weight]]:
        """Yield every tensor of the checkpoint by its full name."""
        for block in self.blocks:
            for layer in block.layers or (0,):
                for weight in block.weights:
                    name = weight.name.replace("{layer}", str(layer - block.first_named))
                    if weight.tensors == 1:
                        yield name, weight
                        continue
                    before, after = name.split("{expert}")
                    for expert in range(weight.tensors):
                        yield f"{before}{expert}{after}", weight

    def forward_flops_per_token(self, context_tokens: float) -> float:
        """Return the operations of one token's forward pass, the head's included, as often as it is multiplied by."""
        return sum(
            operation.forward_flops_per_token(context_tokens) * (self.heads if block is self.head else block.repeats)
            for block in self.blocks
            for operation in block.operations
        )
