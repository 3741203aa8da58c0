"""What serving engines check of their own arguments before they start, whatever the model and the card."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.ground.figures import figure
from plimsoll.planners.serving.settings.lengths import LONG_POSITIONS
from plimsoll.service.engines.command import EngineCommand
from plimsoll.service.engines.nodes import broken_node_rules, other_options
from plimsoll.service.workloads.commands.flags import Arguments
from plimsoll.service.workloads.objects.pods import Container

# What a degree of 0 leaves nothing to divide by; engines that check no range end in that division.
DEGREES = {"tensor_parallel": "tensor parallelism", "pipeline_parallel": "pipeline parallelism"}
LEAST_ONE = ("max_num_seqs", "max_num_batched_tokens")
# Variables that let requests be longer than the model has positions for.
LONGER_ALLOWED = ("ALLOW_LONG_MAX_MODEL_LEN", "ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")


def broken_rules(command: EngineCommand, read: Arguments, version: str | None) -> tuple[str, ...]:
    """Return why the engine refuses these arguments, each with what it takes; `version` is its image's."""
    return (
        *_out_of_range(read),
        *command.at_odds(read),
        *broken_node_rules(command, read),
        *command.unknown_options(read, version),
    )


def unchecked_rules(container: Container, *, is_own_image: bool) -> frozenset[str]:
    """Return the rules that the engine may have been told not to check: by a variable, or by what an image sets."""
    texts = (*container.command, *container.args, *container.files.values(), str(container.definition.get("env")))
    told = any(name in text for text in (*texts, *container.env) for name in LONGER_ALLOWED)
    unseen = bool(container.unread) or bool(container.definition.get("envFrom"))
    return frozenset() if is_own_image and not told and not unseen else frozenset({LONG_POSITIONS})


def waived_rules(command: EngineCommand, read: Arguments) -> frozenset[str]:
    """Return the planner's rules that a command's options switch off."""
    return frozenset(command.waived_rules[name] for name in command.waived_rules.keys() & other_options(read))


def _out_of_range(read: Arguments) -> Iterator[str]:
    for field, name in DEGREES.items():
        if read.values.get(field, 1) == 0:
            yield f"{name} of 0 leaves no rank; 1 is the least"
    fraction = read.values.get("gpu_memory_utilization")
    if fraction is not None and not 0 < float(fraction) <= 1:
        yield f"its share of the GPU's memory is {figure(float(fraction))}, and must be above 0 and at most 1"
    for field in LEAST_ONE:
        # SGLang takes -1 for its prefill chunk, and no sign is read as a number.
        if read.values.get(field, 1) == 0:
            yield f"{field} is 0; 1 is the least"
