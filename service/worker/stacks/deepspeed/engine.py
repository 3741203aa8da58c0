"""DeepSpeed's own engine over a rank's model: its parameters, gradients and optimizer, and what runs between them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from plimsoll.service.stacks.deepspeed.launch import (
    gradient_section,
    optimizer_section,
    precision_section,
    zero_section,
)
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.host_memory import HOST
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.stacks.deepspeed.runnable import load_deepspeed
from plimsoll.service.worker.training.engine import Evaluating, Making, Objective, Standing
from plimsoll.service.worker.training.foreign_code import (
    MadeStorages,
    ScalarsOfFakeTensors,
    all_standing,
    left_in_place,
    making_method,
)

# After the second micro-batch of a step nothing is new.
MOST_MICRO_BATCHES = 2
# What the methods of DeepSpeed's classes allocate; classes by their module in deepspeed.runtime.
ALLOCATED: Mapping[str, Mapping[str, Kind]] = {
    "engine.DeepSpeedEngine": {"allreduce_gradients": Kind.COMMUNICATION},
    "zero.stage_1_and_2.DeepSpeedZeroOptimizer": {
        "setup_buckets": Kind.COMMUNICATION,
        "average_tensor": Kind.COMMUNICATION,
        "copy_grads_in_partition": Kind.GRADIENT,
        "set_norm_for_param_grad_in_gpu": Kind.COMMUNICATION,
        "async_inplace_copy_grad_to_fp32_buffer_from_gpu": Kind.COMMUNICATION,
        "_build_compact_grad_partition_buffer": Kind.GRADIENT,
        "get_flat_partition": Kind.OPTIMIZER_TEMPORARY,
    },
    "zero.stage3.DeepSpeedZeroOptimizer_Stage3": {
        "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads": Kind.COMMUNICATION,
        "_muon_update_sub_group": Kind.OPTIMIZER_TEMPORARY,
        "_post_step": Kind.GATHERED_PARAMETER,
    },
    "zero.partition_parameters.Init": {"_partition_param_sec": Kind.PARAMETER},
    "zero.partitioned_param_coordinator.PartitionedParameterCoordinator": {
        "fetch_sub_module": Kind.GATHERED_PARAMETER,
    },
}
# What attributes of its optimizers are for.
STANDING: Mapping[str, Kind] = {
    "bit16_groups_flat": Kind.PARAMETER,
    "fp16_groups_flat": Kind.PARAMETER,
    "fp16_partitioned_groups_flat": Kind.PARAMETER,
    "fp32_groups_flat": Kind.OPTIMIZER_STATE,
    "fp32_groups": Kind.OPTIMIZER_STATE,
    "single_partition_of_fp32_groups": Kind.OPTIMIZER_STATE,
    "fp32_partitioned_groups_flat": Kind.OPTIMIZER_STATE,
    # Of the optimizer that stage 1 has over gradients in fp32 (runtime/bf16_optimizer.py).
    "bf16_groups_flat": Kind.PARAMETER,
    "fp32_groups_flat_partition": Kind.OPTIMIZER_STATE,
    "fp32_groups_gradients_flat": Kind.GRADIENT,
    "grad_partitions_flat_buffer": Kind.GRADIENT,
    "param_groups_fp16_flat_cpu_memory": Kind.PARAMETER,
    "param_buffer_of_bit16_for_cpu_offload_groups": Kind.COMMUNICATION,
    "temp_grad_buffer_for_cpu_offload": Kind.COMMUNICATION,
    "temp_grad_buffer_for_gpu_offload": Kind.COMMUNICATION,
}


def engine_config(job: TraceJob) -> dict[str, Any]:
    """Return DeepSpeed's config of a job, as its launch file has it, with no more micro-batches than are traced."""
    return {
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": min(job.accumulation_steps, MOST_MICRO_BATCHES),
        "zero_optimization": zero_section(
            job.framework,
            job.zero_stage,
            optimizer=job.optimizer,
            offload=job.offload,
            offload_target=job.offload_target,
            secondary_group=job.secondary_shard_group,
        ),
        **precision_section(job.precision),
        **optimizer_section(job.optimizer),
        **gradient_section(job.gradient_dtype),
    }


class DeepSpeedEngine:
    """The engine on fake tensors in a fake process group; it is made and run within `runnable_deepspeed`."""

    objective: Objective | None = None
    evaluation: Evaluating | None = None

    def __init__(self, job: TraceJob, model: Any) -> None:
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._made = MadeStorages("DeepSpeed's own")
        # What DeepSpeed makes without a word of where lies on the host.
        with left_in_place(model), HOST, ScalarsOfFakeTensors(), self._made:
            self._engine, self._optimizer, *_ = load_deepspeed().initialize(
                model=model, model_parameters=learning, config=engine_config(job)
            )

    @property
    def model(self) -> Any:
        """Return what is called for a forward pass."""
        return self._engine

    @contextlib.contextmanager
    def attach(self, making: Making) -> Iterator[None]:
        """Name what DeepSpeed's methods allocate within the block."""
        with contextlib.ExitStack() as stack:
            for place, methods in ALLOCATED.items():
                module, _, name = place.rpartition(".")
                owner = getattr(importlib.import_module(f"deepspeed.runtime.{module}"), name)
                for method, kind in methods.items():
                    stack.enter_context(replaced(owner, method, making_method(kind, making, owner.__dict__[method])))
            stack.enter_context(ScalarsOfFakeTensors())
            yield

    def micro_batch(self, *, is_last: bool) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Return no context: `backward` is told which micro-batch is the last."""
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        """Differentiate a micro-batch's loss; after the step's last the update is still to come."""
        self._engine.backward(loss)
        if not is_last:
            self._engine.step()

    def step(self) -> None:
        """Update the parameters."""
        self._engine.step()

    def zero_grad(self) -> None:
        """Do nothing: the update has dropped the gradients."""

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the fp32 copies and the optimizer's states."""
        for attribute, kind in STANDING.items():
            if kind is Kind.OPTIMIZER_STATE:
                yield from (("fp32 copy", copy) for copy in tree_leaves(getattr(self._optimizer, attribute, ())))
        for state in self._optimizer.optimizer.state.values():
            yield from ((name, value) for name, value in state.items() if isinstance(value, torch.Tensor))
        # Muon's momentum of a step that may yet be discarded.
        for staged, _partition in getattr(self._optimizer, "_muon_pending_momentum", {}).values():
            yield "staged momentum", staged

    def standing(self) -> Iterator[Standing]:
        """Yield what lives of what the engine's making has allocated, and what each is for."""
        yield from self._made.living()
        for bucket in getattr(self._optimizer, "ipg_buckets", {}).values():
            yield from all_standing("reduction's bucket", bucket.buffer, Kind.COMMUNICATION)
        for attribute, kind in STANDING.items():
            held = getattr(self._optimizer, attribute, ())
            yield from all_standing(attribute, held, kind)
            gradients = [tensor.grad for tensor in tree_leaves(held) if isinstance(tensor, torch.Tensor)]
            yield from all_standing("fp32 gradient", gradients, Kind.GRADIENT)
        for parameter in self._engine.module.parameters():
            yield from all_standing("parameter", parameter.data, Kind.PARAMETER)
            yield from all_standing("parameter's partition", getattr(parameter, "ds_tensor", None), Kind.PARAMETER)
