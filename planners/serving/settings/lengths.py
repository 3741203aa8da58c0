"""How long requests are: the longest that is served, and those of the traffic."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.families.reading.rope_scaling import FROM_ORIGINAL, stretched_by
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import LengthDistribution, RopeScaling, ServingQuestion
from plimsoll.planners.serving.traffic import Traffic, mean_tokens, sample_tokens

# The traffic assumed where the client states none: the 1k/1k scenario of InferenceX
# (github.com/SemiAnalysisAI/InferenceX), the commonest shape in public measurements.
ASSUMED_INPUT_TOKENS = 1024
ASSUMED_OUTPUT_TOKENS = 1024
INPUT_LENGTH, OUTPUT_LENGTH = "/serving/input_length", "/serving/output_length"
# Name of the rule, in refusals.
LONG_POSITIONS = "length-within-positions"


def max_model_len(question: ServingQuestion, notes: list[str]) -> int:
    """Return the longest request's tokens, the model's own limit where the client states none."""
    limit = longest_positions(question)
    length = question.max_model_len
    if length is None:
        if limit is None:
            raise InvalidQuestion(
                f"{question.model.name} does not state its longest context; give max_model_len.",
                pointer="/serving/max_model_len",
            )
        notes.append(f"max_model_len {limit}, the model's own limit, as the engine takes it.")
        return limit
    if limit is not None and length > limit:
        raise InvalidQuestion(
            f"max_model_len {length} is beyond the {limit} positions of {question.model.name}: allowed are 1 to "
            f"{limit}, or more where rope_scaling is stated, by the model's config or by serving.rope_scaling.",
            pointer="/serving/max_model_len",
            rule=LONG_POSITIONS,
        )
    return length


def longest_positions(question: ServingQuestion) -> int | None:
    """Return the model's longest context, as the question stretches it; None where the model states none.

    Raises `InvalidQuestion` where there is nothing to stretch.
    """
    stated, scaling = question.model.max_position_embeddings, question.rope_scaling
    if scaling is None:
        return stated
    turns = any(
        operation.kind is OperationKind.ROTARY for block in question.model.layers for operation in block.operations
    )
    if stated is None or not turns:
        raise InvalidQuestion(
            f"{question.model.name} has no rotary positions of a stated number to stretch.",
            pointer="/serving/rope_scaling",
        )
    reach = stretched_by(scaling.in_config, stated)
    if reach <= stated:
        raise InvalidQuestion(
            f"rope_scaling reaches {reach} positions, and {question.model.name} has {stated} without it.",
            pointer="/serving/rope_scaling",
        )
    return reach


def stated_scaling(question: ServingQuestion) -> RopeScaling | None:
    """Return how positions are stretched, with the original ones that YaRN takes the config's own for."""
    scaling = question.rope_scaling
    if (
        scaling is None
        or scaling.rope_type not in FROM_ORIGINAL
        or scaling.original_max_position_embeddings is not None
    ):
        return scaling
    return dataclasses.replace(scaling, original_max_position_embeddings=question.model.max_position_embeddings)


def mean_request(question: ServingQuestion, max_model_len: int, notes: list[str]) -> tuple[int, int]:
    """Return a request's input and output tokens, assumed where absent and never beyond the context."""
    given_input = _given_tokens(question.input_tokens, question.input_length, "input")
    given_output = _given_tokens(question.output_tokens, question.output_length, "output")
    if max_model_len < 2:
        raise InvalidQuestion("max_model_len must hold one token in and one out.", pointer="/serving/max_model_len")
    room = max_model_len - (given_input or 0) - (given_output or 0)
    if given_input is None and given_output is None:
        input_tokens = min(ASSUMED_INPUT_TOKENS, max_model_len // 2)
        output_tokens = min(ASSUMED_OUTPUT_TOKENS, max_model_len - input_tokens)
    else:
        input_tokens = given_input if given_input is not None else min(ASSUMED_INPUT_TOKENS, max(room, 1))
        output_tokens = given_output if given_output is not None else min(ASSUMED_OUTPUT_TOKENS, max(room, 1))
    if input_tokens + output_tokens > max_model_len:
        side, length = (
            ("input", question.input_length) if given_input is not None else ("output", question.output_length)
        )
        pointer = f"/serving/{side}_{'tokens' if length is None else 'length'}"
        raise InvalidQuestion(
            f"{input_tokens} tokens in and {output_tokens} out do not fit max_model_len {max_model_len}.",
            pointer=pointer,
        )
    if given_input is None:
        notes.append(f"input_tokens {input_tokens}, assumed.")
    if given_output is None:
        notes.append(f"output_tokens {output_tokens}, assumed.")
    return input_tokens, output_tokens


def _given_tokens(tokens: int | None, length: LengthDistribution | None, side: str) -> int | None:
    """Return the tokens asked for, a distribution's mean where one is given instead."""
    if length is None:
        return tokens
    if tokens is not None:
        raise InvalidQuestion(f"Give {side}_tokens or {side}_length.", pointer=f"/serving/{side}_length")
    return mean_tokens(length, f"/serving/{side}_length")


def longest_prompt(question: ServingQuestion, input_tokens: int, max_model_len: int) -> int:
    """Return the tokens of the longest prompt of the traffic, one less than the context at most."""
    inputs, _ = sampled_lengths(question, input_tokens, 1)
    return min(max(inputs), max_model_len - 1)


def sampled_lengths(
    question: ServingQuestion, input_tokens: int, output_tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return tokens in and tokens out, each for an equal part of the requests; without a distribution all have one."""
    inputs = (input_tokens,) if question.input_length is None else sample_tokens(question.input_length, INPUT_LENGTH)
    if question.output_length is None:
        return inputs, (output_tokens,)
    return inputs, sample_tokens(question.output_length, OUTPUT_LENGTH)


def traffic_of(
    question: ServingQuestion, input_tokens: int, output_tokens: int, max_model_len: int
) -> tuple[Traffic, tuple[tuple[int, int], ...]]:
    """Return the mean request, and the tokens in and out of all that differ, cut at the longest context."""
    draft = question.speculative
    traffic = Traffic(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_fraction=question.prefix_cache_hit_rate,
        draft_tokens=0 if draft is None else draft.tokens,
        acceptance_fraction=0.0 if draft is None else draft.acceptance_rate,
    )
    inputs, outputs = sampled_lengths(question, input_tokens, output_tokens)
    if any(block.cross is not None for block in question.model.layers):
        # The prompt is the encoder's: the decoder's own sequence is what it puts out.
        return traffic, tuple((0, min(max_model_len, last)) for last in outputs)
    shortest = [min(first, max_model_len - 1) for first in inputs]
    return traffic, tuple((first, min(max_model_len - first, last)) for first in shortest for last in outputs)
