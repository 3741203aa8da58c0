"""accelerate's own `Accelerator` over a rank's model, used as transformers' Trainer uses it.

Source: transformers 5.23, trainer.py, `_prepare_for_training`, `_run_epoch` and `training_step`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.nn.parallel import DistributedDataParallel

from plimsoll.planners.families import traits
from plimsoll.service.stacks.accelerate.launch import MIXED_PRECISION
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.kernel_rules import KERNEL_RULES
from plimsoll.service.worker.jobs.states import FULL_SHARDING_STAGES
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import local_tensor
from plimsoll.service.worker.stacks.accelerate.evaluation import TrainerEvaluation
from plimsoll.service.worker.stacks.accelerate.jobs import recomputes_every_layer
from plimsoll.service.worker.stacks.accelerate.runnable import as_it_is, load_accelerate, numbered
from plimsoll.service.worker.stacks.accelerate.stack import STACK
from plimsoll.service.worker.training.engine import Evaluating, Making, Objective, Standing
from plimsoll.service.worker.training.foreign_code import MadeStorages, ScalarsOfFakeTensors, left_in_place
from plimsoll.service.worker.training.optimizers import Optimizer, TorchOptimizer, model_optimizer, torch_optimizer
from plimsoll.service.worker.training.recompute import recompute_activations

FP16 = "fp16"


class AccelerateEngine:
    """What `Accelerator.prepare` makes of model and optimizer; it is made and run within `runnable_accelerate`."""

    objective: Objective | None = None
    evaluation: Evaluating | None = None

    def __init__(self, job: TraceJob, model: Any) -> None:
        with unset_fake_temporarily():
            self._accelerator = accelerator_of(job)
        self._reduces_each = job.zero_stage in FULL_SHARDING_STAGES
        if not (self._reduces_each and recomputes_every_layer(job)):
            recompute_activations(model, job, STACK)
        updating = _optimizer_to_wrap(job, model)
        self._made = MadeStorages("gradient bucket")
        with left_in_place(model), numbered(model), ScalarsOfFakeTensors(), self._made:
            self._model, self._updating = self._accelerator.prepare(model, updating)
        if isinstance(self._model, DistributedDataParallel):
            self._model.register_comm_hook(None, as_it_is)
        if job.evaluation is not None:
            self.evaluation = TrainerEvaluation(job, job.evaluation, self._accelerator, own=model, wrapped=self._model)
        # The states of a kernel's optimizer are made by rule, of what the parameters have become.
        self._by_rule = model_optimizer(job.optimizer, model) if job.optimizer in KERNEL_RULES else None
        self._states: Optimizer = self._by_rule or TorchOptimizer(updating)

    @property
    def model(self) -> Any:
        """Return what is called for a forward pass."""
        return self._model

    @contextlib.contextmanager
    def attach(self, making: Making) -> Iterator[None]:  # noqa: ARG002 - FSDP2's buffers are known by its own methods
        """Answer what accelerate asks of values within the block."""
        with ScalarsOfFakeTensors():
            yield

    @contextlib.contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Reduce gradients behind the last micro-batch alone, but of shards behind each, as the launch files ask."""
        self._accelerator.gradient_state._set_sync_gradients(is_last)
        waits = not (is_last or self._reduces_each)
        with self._accelerator.no_sync(self._model) if waits else contextlib.nullcontext():
            yield

    def backward(self, loss: torch.Tensor, *, is_last: bool) -> None:  # noqa: ARG002 - `micro_batch` was told
        """Differentiate a micro-batch's loss."""
        self._accelerator.backward(loss)

    def step(self) -> None:
        """Update the parameters."""
        (self._by_rule or self._updating).step()

    def clip(self, most: float) -> None:
        """Clip the gradients, which takes a number for each parameter; a step leaves it out."""
        self._accelerator.clip_grad_norm_(self._model.parameters(), most)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._model.zero_grad()

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the optimizer's states."""
        return self._states.named_states()

    def standing(self) -> Iterator[Standing]:
        """Yield DistributedDataParallel's buckets: what making it has left beside the model's own tensors."""
        if not isinstance(self._model, DistributedDataParallel):
            return
        tensors = (*self._model.parameters(), *self._model.buffers())
        own = {local_tensor(tensor).untyped_storage()._cdata for tensor in tensors}
        for part in self._made.living():
            if part.storage._cdata not in own:
                yield Standing(name=part.name, storage=part.storage, kind=Kind.COMMUNICATION, device=part.device)


def accelerator_of(job: TraceJob) -> Any:
    """Return the `Accelerator` that a job's launch files make; call it outside the fake mode."""
    accelerate = load_accelerate()
    # As the Trainer sets it, for a checkpoint's second run of a layer confuses the search.
    replicas = accelerate.DistributedDataParallelKwargs(find_unused_parameters=job.recompute == "none")
    precision = MIXED_PRECISION[job.precision]
    accelerator = accelerate.Accelerator(
        mixed_precision=precision,
        fsdp_plugin=_sharding(job) if job.zero_stage in FULL_SHARDING_STAGES else None,
        parallelism_config=_groups(job) if job.shard_group < job.data_parallel else None,
        kwargs_handlers=[replicas],
    )
    if precision == FP16:  # which it does not take on a CPU
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")
    return accelerator


def _sharding(job: TraceJob) -> Any:
    """Return FSDP2's plugin as the launch files set it, but that no weights are loaded from the first rank."""
    return load_accelerate().FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=job.zero_stage == max(FULL_SHARDING_STAGES),
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        transformer_cls_names_to_wrap=list(traits(job.config["model_type"]).wrapped_layers) or None,
        activation_checkpointing=recomputes_every_layer(job),
        cpu_ram_efficient_loading=False,
        # Pinned or not, the host's memory is as much; a trace has none to pin.
        cpu_offload=CPUOffloadPolicy(pin_memory=False) if job.states_on_host else OffloadPolicy(),
    )


def _groups(job: TraceJob) -> Any:
    """Return the groups of hybrid sharding."""
    return load_accelerate().ParallelismConfig(
        dp_replicate_size=job.data_parallel // job.shard_group, dp_shard_size=job.shard_group
    )


def _optimizer_to_wrap(job: TraceJob, model: Any) -> torch.optim.Optimizer:
    """Return the optimizer that accelerate is handed; one of a kernel's is stood in for by one without states."""
    if job.optimizer in KERNEL_RULES:
        return torch_optimizer("sgd", [each for each in model.parameters() if each.requires_grad])
    made = model_optimizer(job.optimizer, model)
    if not isinstance(made, TorchOptimizer) or len(made.inner) > 1:
        raise TypeError(f"accelerate is handed one optimizer, and {job.optimizer} is not one.")
    return made.inner[0]
