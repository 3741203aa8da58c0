"""Which jobs accelerate's own code is not traced with: kernels that name another time's transformers."""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Rule

# Variants of planners/stacks/accelerate/stack.toml, as runs of those versions were measured.
OF_OTHER_VERSIONS = ("eager", "foak")

VERSIONS_ARE_THE_WORKER_S = Rule(
    broken=lambda asked: asked.job.kernels in OF_OTHER_VERSIONS,
    pointer="/training/kernels",
    words=lambda asked: (
        f"The kernels {asked.job.kernels!r} are those of transformers before 4.48 under FSDP1; a trace runs the "
        'versions that this worker has. Without training.kernels, or with "fused", plan and trace are of those.'
    ),
)
