"""BERT: an encoder with norms after each residual sum, trained to fill in masked words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.decoder import NormPlacement, norm_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import (
    Operation,
    OperationKind,
    Region,
    Tensor,
    norm,
    whole_matmul,
)
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family
from plimsoll.planners.families.reading.assembly import DecoderNames
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.gpt import GptDecoder, GptKeys
from plimsoll.planners.families.reading.own_code import OwnCode

BERT_IGNORED = (
    "attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing", "hidden_act", "hidden_dropout_prob",
    "position_embedding_type",
)  # fmt: skip
BERT = GptDecoder(
    keys=GptKeys(
        hidden=("hidden_size",),
        layers=("num_hidden_layers",),
        heads=("num_attention_heads",),
        inner=("intermediate_size",),
        positions=("max_position_embeddings",),
        positions_default=512,
    ),
    layer="bert.encoder.layer.{layer}",
    query_key_value=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    feed_forward=("intermediate.dense", "output.dense"),
    norm_names=("attention.output.LayerNorm", "output.LayerNorm"),
    norms=NormPlacement.POST_RESIDUAL,
    names=DecoderNames(embedding="bert.embeddings.word_embeddings.weight"),
    has_final_norm=False,
    is_bidirectional=True,
    position_name="bert.embeddings.position_embeddings.weight",
    embedding_norm="bert.embeddings.LayerNorm",
    ignored=BERT_IGNORED,
)
DEFAULT_TOKEN_TYPES = 2
# Whether the second sentence follows the first: yes or no.
NEXT_SENTENCE_CLASSES = 2


def bert(config: ConfigReader) -> ModelSpec:
    """Return a BERT with its masked-word head; `BertForPreTraining` has the pooler and next-sentence head too.

    Source: `transformers` 5.23, modeling_bert; Devlin et al. 2018, arXiv:1810.04805.
    """
    config.must_be("is_decoder", False)
    config.must_be("add_cross_attention", False)
    config.must_be("tie_word_embeddings", True)
    architectures = config.strings("architectures") or ("BertForMaskedLM",)
    config.must_be("architectures", "BertForMaskedLM", "BertForPreTraining")
    spec = BERT(config)
    hidden_size = spec.hidden_size
    token_types = config.size("type_vocab_size", default=DEFAULT_TOKEN_TYPES)
    types = Weight(
        name="bert.embeddings.token_type_embeddings.weight", shape=(token_types, hidden_size), part=Part.EMBEDDING
    )
    sentence = _sentence_weights(hidden_size) if "BertForPreTraining" in architectures else ()
    return dataclasses.replace(
        spec,
        embedding=dataclasses.replace(spec.embedding, weights=(*spec.embedding.weights, types)),
        head=_masked_word_head(spec.head, hidden_size, spec.vocabulary_size, sentence),
    )


def _masked_word_head(head: Block, hidden_size: int, vocabulary_size: int, sentence: tuple[Weight, ...]) -> Block:
    """Return the head: a matrix, an activation and a norm before the projection to the vocabulary."""
    projection = next(op for op in head.operations if op.matmul_shape)
    transform = (
        whole_matmul("head_transform", "residual", "head_inner", (hidden_size, hidden_size)),
        Operation(
            name="head_activation",
            kind=OperationKind.ACTIVATION,
            inputs=("head_inner",),
            output="head_activated",
            region=Region.SEQUENCE,
        ),
        norm("head_norm", "head_activated", "head_input"),
        dataclasses.replace(projection, inputs=("head_input",)),
    )
    dense = "cls.predictions.transform.dense"
    return dataclasses.replace(
        head,
        weights=(
            Weight(name="cls.predictions.bias", shape=(vocabulary_size,), part=Part.HEAD),
            Weight(name=f"{dense}.weight", shape=(hidden_size, hidden_size), part=Part.HEAD, is_linear=True),
            Weight(name=f"{dense}.bias", shape=(hidden_size,), part=Part.HEAD),
            *norm_weights("cls.predictions.transform.LayerNorm", hidden_size, bias=True),
            *sentence,
        ),
        tensors=(
            *head.tensors,
            *(Tensor(name=name, width=hidden_size) for name in ("head_inner", "head_activated", "head_input")),
        ),
        operations=(*transform, *(op for op in head.operations if not op.matmul_shape)),
    )


def _sentence_weights(hidden_size: int) -> tuple[Weight, ...]:
    """Return the pooler and the next-sentence head, which work on one token of a sequence."""
    return (
        Weight(name="bert.pooler.dense.weight", shape=(hidden_size, hidden_size), part=Part.HEAD, is_linear=True),
        Weight(name="bert.pooler.dense.bias", shape=(hidden_size,), part=Part.HEAD),
        Weight(name="cls.seq_relationship.weight", shape=(NEXT_SENTENCE_CLASSES, hidden_size), part=Part.HEAD),
        Weight(name="cls.seq_relationship.bias", shape=(NEXT_SENTENCE_CLASSES,), part=Part.HEAD),
    )


FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        reader=bert,
        own_code=OwnCode(
            dropout_key="hidden_dropout_prob",
            dropout=0.1,
            score_dropout_key="attention_probs_dropout_prob",
            score_dropout=0.1,
            softmax_in_fp32=False,
        ),
    ),
}
