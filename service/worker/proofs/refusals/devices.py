"""What is traced by shapes alone, or by telling two memories apart, and so is not run on a device."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import FP8_MIXED
from plimsoll.service.worker.jobs.kernel_rules import KERNEL_RULES
from plimsoll.service.worker.jobs.rule import Rule

ENGINE_RUNS = Rule(
    broken=lambda asked: asked.stack.has_own_engine,
    pointer="/layout/framework",
    words=lambda asked: f"{asked.stack.program}'s engine runs in a trace, and not on a device yet.",
)
WEIGHTS_HAVE_VALUES = Rule(
    broken=lambda asked: asked.job.method == "qlora",
    pointer="/training/method",
    words="4-bit weights are traced by shape and not run on a device yet.",
)
STATES_HAVE_VALUES = Rule(
    broken=lambda asked: asked.job.optimizer in KERNEL_RULES,
    pointer="/training/optimizer",
    words=lambda asked: f"The states of {asked.job.optimizer} are traced by rule and not run on a device yet.",
)
PRODUCTS_HAVE_VALUES = Rule(
    broken=lambda asked: asked.job.precision == FP8_MIXED,
    pointer="/training/precision",
    words="Products in fp8 are traced by torchao's code and not run on a device yet.",
)
RECURRENCES_HAVE_KERNELS = Rule(
    broken=lambda asked: asked.job.tracing.has_recurrent_kernels,
    pointer="/model/config/model_type",
    words=lambda asked: (
        f"The kernels of {asked.job.config['model_type']!r} are traced by shape and not run on a device yet."
    ),
)
NOTHING_WAITS_ON_THE_HOST = Rule(
    broken=lambda asked: asked.job.states_on_host or asked.job.activation_offload,
    pointer=lambda asked: "/layout/offload" if asked.job.states_on_host else "/layout/activation_offload",
    words="What waits on the host is told from what is on the device in a trace, and not run on one yet.",
)
REFERENCE_IS_TRACED = Rule(
    broken=lambda asked: asked.job.reference is not None,
    pointer="/training/companions",
    words="A reference model runs in a trace, by TRL's own code, and not on a device yet.",
)
EVALUATIONS_ARE_TRACED = Rule(
    broken=lambda asked: asked.job.evaluation is not None,
    pointer="/training/evaluation",
    words="Evaluations between steps run in a trace and not on a device yet.",
)
RULES = (
    ENGINE_RUNS,
    WEIGHTS_HAVE_VALUES,
    STATES_HAVE_VALUES,
    PRODUCTS_HAVE_VALUES,
    RECURRENCES_HAVE_KERNELS,
    NOTHING_WAITS_ON_THE_HOST,
    REFERENCE_IS_TRACED,
    EVALUATIONS_ARE_TRACED,
)
