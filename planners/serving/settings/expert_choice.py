"""What an engine computes experts with where it can be told: what the client named, and what is assumed otherwise."""

from __future__ import annotations

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.degrees import Degrees, has_experts
from plimsoll.planners.serving.formats.operand_formats import operand_formats
from plimsoll.planners.serving.formats.weight_format import weight_format
from plimsoll.planners.serving.releases.expert_kernels import expert_backends, expert_kernel
from plimsoll.planners.serving.releases.profile import EngineProfile

POINTER = "/serving/expert_backend"


def expert_backend(question: ServingQuestion, profile: EngineProfile) -> str | None:
    """Return the backend that was asked for, as the engine spells it; raise where it cannot be told, or lacks it."""
    asked = question.expert_backend
    if asked is None:
        return None
    if not has_experts(question.model):
        raise InvalidQuestion(f"{question.model.name} has no experts; omit expert_backend.", pointer=POINTER)
    known = expert_backends(profile.engine, question.hardware.gpu, _format(question))
    if not known:
        raise InvalidQuestion(
            f"{profile.title} {profile.version} is planned with the backend it chooses by itself; omit expert_backend.",
            pointer=POINTER,
        )
    if asked.upper() not in known:
        raise InvalidQuestion(
            f"{profile.title} computes experts in {question.weights} on {question.hardware.gpu.name} with "
            f"{' or '.join(known)}, not with {asked[:40]!r}.",
            pointer=POINTER,
        )
    return asked.upper()


def assumed_backend(question: ServingQuestion, profile: EngineProfile, degrees: Degrees) -> str | None:
    """Return the backend that a layout is planned with where none was named, None where the engine is told none."""
    if not has_experts(question.model):
        return None
    kernel = expert_kernel(
        profile.engine,
        profile.version,
        question.hardware.gpu,
        _format(question),
        tokens=1,
        inner=1,
        splits_experts=degrees.expert_parallel > 1,
        copies_attention=degrees.attention_data_parallel > 1,
    )
    return None if kernel is None else kernel.backend


def _format(question: ServingQuestion) -> str:
    weights = weight_format(question.weights)
    has_blocks = question.scale_block is not None
    return operand_formats(weights, question.hardware.gpu, has_scale_blocks=has_blocks).experts
