"""torchtitan's options by our names for what they say, in its TOML and behind its command.

Source: torchtitan 0.2.2, config/job_config.py and config/manager.py: what the command says goes before the file.
"""

from __future__ import annotations

from plimsoll.service.workloads.commands.flags import Flag

FILE = "job.config-file"
# Lists of lists and of names, which a command cannot say or joins with commas.
MODULES = "parallelism.module-fqns-per-model-part"

WHOLE = {
    "training.local-batch-size": "local_batch_size",
    "training.seq-len": "sequence_length",
    "parallelism.data-parallel-replicate-degree": "replicas",
    "parallelism.tensor-parallel-degree": "tensor_parallel",
    "parallelism.context-parallel-degree": "context_parallel",
    "parallelism.expert-parallel-degree": "expert_parallel",
    "parallelism.expert-tensor-parallel-degree": "expert_tensor_parallel",
    "parallelism.pipeline-parallel-degree": "pipeline_parallel",
    "parallelism.pipeline-parallel-first-stage-less-layers": "fewer_first",
    "parallelism.pipeline-parallel-last-stage-less-layers": "fewer_last",
    "parallelism.pipeline-parallel-layers-per-stage": "layers_of_stage",
    "parallelism.pipeline-parallel-microbatch-size": "micro_batch_size",
}
WHOLE_OR_AUTO = {
    "training.global-batch-size": "global_batch_size",
    "parallelism.data-parallel-shard-degree": "shards",
}
TEXT = {
    "model.name": "model",
    "model.flavor": "flavor",
    "model.converters": "converters",
    "optimizer.name": "optimizer",
    "training.dtype": "dtype",
    "training.mixed-precision-param": "gathered_dtype",
    "parallelism.fsdp-reshard-after-forward": "reshards",
    "parallelism.expert-parallel-comm-backend": "exchange",
    "parallelism.pipeline-parallel-schedule": "schedule",
    "parallelism.pipeline-parallel-schedule-csv": "schedule_file",
    "activation-checkpoint.mode": "recompute",
    "activation-checkpoint.selective-ac-option": "recompute_selective",
    "compile.components": "compiled",
    "job.custom-config-module": "custom_config",
    "experimental.custom-import": "custom_import",
    "experimental.custom-args-module": "custom_arguments",
}
SWITCHES = {
    "training.enable-cpu-offload": "offloads",
    "optimizer.early-step-in-backward": "steps_early",
    "compile.enable": "compiles",
    "parallelism.enable-async-tensor-parallel": "overlap_tensor_parallel",
    "fault-tolerance.enable": "tolerates_faults",
}


def _refused(name: str) -> str:
    """Return the name that turns a switch off."""
    table, _, key = name.rpartition(".")
    return f"{table}.no-{key}"


FLAGS = (
    Flag(names=(FILE,), field="file", form="text"),
    *(Flag(names=(name,), field=field, form="whole") for name, field in WHOLE.items()),
    *(Flag(names=(name,), field=field, form="whole-or-auto") for name, field in WHOLE_OR_AUTO.items()),
    *(Flag(names=(name,), field=field, form="text") for name, field in TEXT.items()),
    *(Flag(names=(name,), field=field, form="switch") for name, field in SWITCHES.items()),
    *(Flag(names=(_refused(name),), field=field, form="switched-off") for name, field in SWITCHES.items()),
)
