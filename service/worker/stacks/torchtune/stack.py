"""torchtune: its own models, adapters, checkpointing, sharding and loss run in a trace."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.rule import Subject
from plimsoll.service.worker.jobs.stack import Notes, Stack
from plimsoll.service.worker.stacks.torchtune.rules import RULES_OF_LAYOUTS, RULES_OF_MODELS, RUNS_IN_A_TRACE


def _every(_job: TraceJob) -> bool:
    """Return that the rules leave only jobs of its own code."""
    return True


STACK = Stack(
    name="torchtune",
    program="torchtune",
    trains_adapters=True,
    own_model="torchtune",
    runs_own_model=_every,
    notes=Notes(
        model=(
            "torchtune's own code ran: its model builder, adapters, checkpointing, sharding, offload and loss in "
            "chunks, and between them what its recipes do in a step. Attention is torch's flash kernel, by shape."
        ),
    ),
    rules={
        Subject.STACK: RULES_OF_MODELS,
        Subject.SHARDING: RULES_OF_LAYOUTS,
        Subject.DEVICE: (RUNS_IN_A_TRACE,),
    },
    own_code=f"{__package__}.own_code",
)
