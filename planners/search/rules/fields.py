"""Where the fields of a layout stand in a training request, and which of them a client fixed."""

from __future__ import annotations

from plimsoll.planners.questions import TrainingQuestion

# The degrees whose product is the number of GPUs, and all of them.
DEGREES_OF_GPUS = ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel")
DEGREES = (*DEGREES_OF_GPUS, "virtual_pipeline", "expert_parallel")
# Fields of a layout that a request has beside the job, not among the degrees.
TRAINING_FIELDS = ("micro_batch_size", "recompute", "fused_cross_entropy", "activation_offload")
# Fields of the job itself that a stack may take in some layouts alone.
STATE_FIELDS = ("gradient_dtype", "optimizer_state_dtype")


def request_pointer(field: str) -> str:
    """Return the JSON pointer of a field in a training request."""
    if field == "framework":
        return "/framework"
    part = "/training" if field in (*TRAINING_FIELDS, *STATE_FIELDS) else "/layout"
    return f"{part}/{field}" if field else part


def named_fields(question: TrainingQuestion) -> frozenset[str]:
    """Return the fields of layout and training that the client fixed, by what leads to them."""
    request = question.layout
    names = {name for name in request.__dataclass_fields__ if name != "overlap" and getattr(request, name) is not None}
    if request.overlap is not None:
        hidden = request.overlap
        names |= {f"overlap/{name}" for name in hidden.__dataclass_fields__ if getattr(hidden, name) is not None}
    return frozenset(names | {name for name in TRAINING_FIELDS if getattr(question, name) is not None})
