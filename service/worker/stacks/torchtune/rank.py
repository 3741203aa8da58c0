"""A rank of torchtune itself: its model, adapters, checkpointing, sharding, loss, and what its recipes do in a step.

A recipe reads files and datasets, so that what is called in between is after torchtune's own, 0.6.1:
recipes/full_finetune_distributed.py and lora_finetune_distributed.py (`_setup_model`, `train`).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from plimsoll.service.stacks.torchtune.models import adapter_arguments, builder_of, model_arguments
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.host_memory import on_host
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD
from plimsoll.service.worker.stacks.torchtune.offload import activations_kept_by
from plimsoll.service.worker.training.engine import Making, Standing
from plimsoll.service.worker.training.foreign_code import all_standing
from plimsoll.service.worker.training.optimizers import model_optimizer

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
FULL_SHARDING = 3
# After the second micro-batch of a step nothing is new.
MOST_MICRO_BATCHES = 2


class TorchtuneRank:
    """A rank's model with what trains it; it is made and run within `runnable_torchtune`."""

    def __init__(self, job: TraceJob, mesh: DeviceMesh | None) -> None:
        from torchtune import training
        from torchtune.modules.loss import CEWithChunkedOutputLoss

        self._job = job
        self._loss = CEWithChunkedOutputLoss()
        self._model = _model(job)
        _recompute(self._model, job)
        if mesh is not None:
            training.shard_model(
                self._model,
                [training.get_shard_conditions],
                cpu_offload=job.states_on_host,
                reshard_after_forward=job.zero_stage == FULL_SHARDING,
                dp_mesh=mesh,
            )
        self._model.set_num_output_chunks(self._loss.num_output_chunks)
        self._keeping = activations_kept_by(self._model, job.activation_offload)
        self._optimizer = model_optimizer(job.optimizer, self._model)
        self._batch = _batch(job)
        self._ignored = torch.full((job.micro_batch_size, 1), self._loss.ignore_index)

    @property
    def logit_shapes(self) -> frozenset[tuple[int, int]]:
        """Return the rows and columns of a chunk of the logits, the last one's too."""
        chunk = -(-self._job.sequence_length // self._loss.num_output_chunks)
        last = self._job.sequence_length % chunk
        return frozenset((self._job.micro_batch_size * tokens, self._job.vocabulary_size) for tokens in (chunk, last))

    @property
    def summed_shapes(self) -> frozenset[tuple[int, int]]:
        """Return the shape of the head, which multiplies every chunk of the hidden states by itself."""
        return frozenset({(self._job.vocabulary_size, int(self._job.config["hidden_size"]))})

    @property
    def learning(self) -> Sequence[torch.Tensor]:
        """Return the parameters that are not frozen."""
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    @property
    def layers_of_chunks(self) -> Sequence[Sequence[Any]]:
        """Return the decoder's layers."""
        return [list(self._model.layers)]

    def standing(self) -> Iterator[Standing]:
        """Yield the storages that have been made before the first step, and what each is for."""
        for name, parameter in self._model.named_parameters():
            for part in all_standing(name, _parts(parameter), Kind.PARAMETER):
                yield replace(part, on_host=self._job.states_on_host)
        for name, buffer in self._model.named_buffers():
            yield from all_standing(name, buffer, Kind.BUFFER)
        for name, tensor in {**self._batch, "ignored label": self._ignored}.items():
            yield from all_standing(name, tensor, Kind.INPUT)

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the optimizer's states."""
        return self._optimizer.named_states()

    @contextlib.contextmanager
    def attached(self, _making: Making) -> Iterator[None]:
        """Name nothing besides: FSDP2's own buffers are known."""
        yield

    def run_passes(self, begin_phase: Callable[[str], None]) -> None:
        """Run a step's micro-batches, as `train` does."""
        tokens: Any = 0
        losses: Any = 0
        for _ in range(min(self._job.accumulation_steps, MOST_MICRO_BATCHES)):
            begin_phase(FORWARD)
            labels = self._batch["labels"]
            count = (labels != self._loss.ignore_index).sum()
            tokens += count
            with self._keeping:
                logits = self._model(tokens=self._batch["tokens"])
            labels = torch.hstack((labels[..., 1:], self._ignored[: labels.shape[0]]))
            loss = self._loss(logits, labels) * count
            del logits
            losses += loss
            begin_phase(BACKWARD)
            loss.backward()
        dist.all_reduce(tokens)
        dist.all_reduce(losses)
        self._tokens = tokens

    def update(self) -> None:
        """Scale the gradients, and update the parameters."""
        from torchtune import training

        with on_host(self._job.states_on_host):
            training.scale_grads(self._model, self._job.world_size / self._tokens)
            self._optimizer.step()
            self._optimizer.zero_grad()


def _model(job: TraceJob) -> Any:
    """Return the model by torchtune's own builder, with adapters where the job trains them."""
    from torchtune import training
    from torchtune.modules.peft import get_adapter_params, set_trainable_params

    builder = builder_of(job.config)
    if builder is None:
        raise ValueError(f"No builder of torchtune's makes {job.model_name}.")
    folder = importlib.import_module(f"torchtune.models.{builder.folder}._component_builders")
    arguments = {**model_arguments(job.config, job.sequence_length), **builder.told}
    with training.set_default_dtype(DTYPES[job.precision]):
        if not job.trains_adapters:
            return getattr(folder, builder.folder)(**arguments)
        adapters = adapter_arguments(job.lora, in_four_bits=job.method == "qlora")
        model = getattr(folder, f"lora_{builder.folder}")(**adapters, **arguments)
    set_trainable_params(model, get_adapter_params(model))
    return model


def _recompute(model: Any, job: TraceJob) -> None:
    """Wrap the layers that are computed again: all, or every so-manieth."""
    from torchtune import modules, training
    from torchtune.training import activations

    if job.recompute != "full":
        return
    if job.recompute_every is None:
        training.set_activation_checkpointing(model, auto_wrap_policy={modules.TransformerSelfAttentionLayer})
        return
    vars(activations.checkpoint_wrapper).pop("_count", None)  # which goes on from model to model
    training.apply_selective_activation_checkpointing(model, "selective", job.recompute_every)


def _batch(job: TraceJob) -> dict[str, torch.Tensor]:
    """Return a micro-batch's inputs, all tokens zero."""
    shape = (job.micro_batch_size, job.sequence_length)
    return {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "labels")}


def _parts(parameter: Any) -> list[torch.Tensor]:
    """Return this rank's tensors of a parameter: one, or those that four-bit values are kept in."""
    local: Any = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
    if not hasattr(local, "__tensor_flatten__"):
        return [local]
    return [getattr(local, name) for name in local.__tensor_flatten__()[0]]
