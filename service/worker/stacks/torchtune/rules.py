"""Which jobs torchtune's own code is not traced with: models that no builder makes, and what its recipes lack."""

from __future__ import annotations

from plimsoll.service.stacks.torchtune.models import builder_of, names_adapters
from plimsoll.service.worker.jobs.rule import Asked, Rule

# A recipe computes in the dtype of its weights.
PRECISIONS = ("bf16", "fp32")

A_BUILDER_MAKES_THE_MODEL = Rule(
    broken=lambda asked: builder_of(asked.job.config) is None,
    pointer="/model/config/model_type",
    words=(
        "torchtune is traced by its own models: it has builders for Llama 2 to 3.2, Mistral, Qwen 2 and 2.5 and Gemma, "
        "of their matrices and rotary positions."
    ),
)
WEIGHTS_HAVE_ONE_FORMAT = Rule(
    broken=lambda asked: asked.job.precision not in PRECISIONS,
    pointer="/training/precision",
    words=lambda asked: (
        f"torchtune's recipes have no mixed precision: they are traced in {' and '.join(PRECISIONS)}, not in "
        f"{asked.job.precision}."
    ),
)
ATTENTION_IS_ONE_KERNEL = Rule(
    broken=lambda asked: asked.job.attention != "flash",
    pointer="/training/attention",
    words="torchtune's attention is torch's, in one kernel.",
)


def _adapts_otherwise(asked: Asked) -> bool:
    return asked.job.trains_adapters and not names_adapters(asked.job.lora)


ADAPTERS_HAVE_AN_OPTION = Rule(
    broken=_adapts_otherwise,
    pointer="/training/lora/target_modules",
    words="torchtune has no option for adapters beside these matrices alone.",
)


def _divides_otherwise(asked: Asked) -> bool:
    job = asked.job
    is_whole = job.zero_stage == 0 and job.data_parallel > 1
    return is_whole or job.tensor_parallel > 1 or job.context_parallel > 1


RANKS_SHARE_THE_WEIGHTS = Rule(
    broken=_divides_otherwise,
    pointer="/layout",
    words="torchtune 0.6.1 is traced with its weights sharded over data-parallel ranks, and not split otherwise.",
)
RUNS_IN_A_TRACE = Rule(
    broken=lambda _asked: True,
    pointer="/layout/framework",
    words="torchtune's own code runs in a trace, and not on a device yet.",
)
RULES_OF_MODELS = (
    A_BUILDER_MAKES_THE_MODEL,
    WEIGHTS_HAVE_ONE_FORMAT,
    ATTENTION_IS_ONE_KERNEL,
    ADAPTERS_HAVE_AN_OPTION,
)
RULES_OF_LAYOUTS = (RANKS_SHARE_THE_WEIGHTS,)
