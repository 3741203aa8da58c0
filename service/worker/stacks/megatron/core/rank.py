"""A rank of Megatron-Core itself: its GPT model, its gradient buffers, its optimizer and its schedule.

What a training script does between them is after Megatron-LM's own (pretrain_gpt.py, `loss_func` and `forward_step`;
training/training.py, `get_model` and `train_step`), which is no part of the package.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.jobs.config_keys import number_of_layers
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD
from plimsoll.service.worker.stacks.megatron.core.arguments import (
    data_parallel_config,
    optimizer_config,
    padded_vocabulary,
    transformer_config,
)
from plimsoll.service.worker.stacks.megatron.core.dealing import fullest_rank
from plimsoll.service.worker.stacks.megatron.core.jobs import MUON, deals_parameters
from plimsoll.service.worker.stacks.megatron.core.model_fields import has_latents, rotary_fraction
from plimsoll.service.worker.training.engine import Making, Standing
from plimsoll.service.worker.training.foreign_code import MadeStorages, all_standing, making_method, names_given
from plimsoll.service.worker.training.parallel.pipeline import traced_micro_batches
from plimsoll.service.worker.training.parallel.ring_attention import context_mesh

# After the second micro-batch of a step nothing is new.
MOST_MICRO_BATCHES = 2


class MegatronRank:
    """A rank's model chunks with what trains them; it is made and run within `runnable_megatron`."""

    def __init__(self, job: TraceJob, stage: PipelineStage) -> None:
        self._job, self._stage = job, stage
        self._made = MadeStorages("Megatron-Core's own")
        with self._made:
            self._config = transformer_config(job)
            self._chunks = _wrapped(job, self._config, _models(job, self._config, stage))
            self._optimizer = _optimizer(job, self._chunks)
            self._batch = _batch(job)
        if job.states_on_host:
            # Copies of whole parameters, of a first hybrid optimizer, which only the garbage collector frees.
            gc.collect()
        self._settle()

    def _settle(self) -> None:
        """Tell the schedule what it is to call, as `train` does."""
        from megatron.core.distributed import finalize_model_grads

        config, is_overlapped = self._config, self._job.data_parallel > 1
        config.finalize_model_grads_func = finalize_model_grads
        config.grad_scale_func = self._optimizer.scale_loss
        if is_overlapped:
            hooks = [chunk.no_sync for chunk in self._chunks]
            config.no_sync_func = hooks if len(hooks) > 1 else hooks[0]

    @property
    def logit_shapes(self) -> frozenset[tuple[int, int]]:
        """Return the rows and columns of a rank's logits."""
        return frozenset({(self._job.micro_batch_tokens, padded_vocabulary(self._job) // self._job.tensor_parallel)})

    @property
    def summed_shapes(self) -> frozenset[tuple[int, int]]:
        """Return none: gradients are added up in buffers."""
        return frozenset()

    @property
    def learning(self) -> Sequence[torch.Tensor]:
        """Return none: buffers have the gradients."""
        return ()

    @property
    def layers_of_chunks(self) -> Sequence[Sequence[Any]]:
        """Return the decoder's layers of each chunk of the rank's stage."""
        return [_layers(chunk.module) for chunk in self._chunks]

    def standing(self) -> Iterator[Standing]:
        """Yield the storages that have been made before the first step, and what each is for."""
        yield from self._made.living()
        for copy in self._copies_on_host():
            yield from all_standing("fp32 copy", copy, Kind.OPTIMIZER_STATE)
        for chunk in self._chunks:
            for name, parameter in chunk.named_parameters():
                yield from all_standing(name, parameter.data, Kind.PARAMETER)
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                yield from all_standing("gradients", buffer.grad_data, Kind.GRADIENT)
        for name, state in self.named_states():
            yield from all_standing(name, state, Kind.OPTIMIZER_STATE)
        for name, tensor in self._batch.items():
            yield from all_standing(name, tensor, Kind.INPUT)

    def named_states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the fp32 copies and the optimizer's states."""
        for optimizer in getattr(self._optimizer, "chained_optimizers", [self._optimizer]):
            for group in optimizer.optimizer.param_groups:
                yield from (("fp32 copy", copy) for copy in group["params"] if self._is_copy(copy))
            for state in optimizer.optimizer.state.values():
                yield from ((name, value) for name, value in state.items() if isinstance(value, torch.Tensor))

    def _copies_on_host(self) -> Iterator[torch.Tensor]:
        """Yield the host's copies of parameters, none where states are on the device."""
        for optimizer in getattr(self._optimizer, "chained_optimizers", [self._optimizer]):
            yield from getattr(optimizer.optimizer, "gpu_params_map_cpu_copy", {}).values()

    def _is_copy(self, parameter: torch.Tensor) -> bool:
        """Return whether the optimizer has a copy, and not the model's own parameter or a part of it."""
        return parameter.dtype is torch.float32 and self._config.params_dtype is not torch.float32

    @contextlib.contextmanager
    def attached(self, making: Making) -> Iterator[None]:
        """Name what is made for good: empty gradients, where the head's input is gathered, gradients on the host."""
        from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
        from megatron.core.tensor_parallel import layers
        from megatron.core.utils import GlobalMemoryBuffer

        sends = HybridDeviceOptimizer._set_sub_optimizer_grads
        dummies = type(layers.get_dummy_wgrad)
        with (
            replaced(dummies, "__call__", making_method(Kind.DUMMY_GRADIENT, making, dummies.__call__)),
            replaced(
                GlobalMemoryBuffer,
                "get_tensor",
                making_method(Kind.COMMUNICATION, making, GlobalMemoryBuffer.get_tensor),
            ),
            replaced(HybridDeviceOptimizer, "_set_sub_optimizer_grads", making_method(Kind.GRADIENT, making, sends)),
        ):
            yield

    def run_passes(self, begin_phase: Callable[[str], None]) -> None:
        """Run a step's forward and backward passes by Megatron-Core's own schedule."""
        from megatron.core.pipeline_parallel import combined_1f1b, get_forward_backward_func, schedules
        from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

        phases = _Phases(begin_phase)
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self._optimizer.zero_grad()
        with (
            replaced(schedules, "forward_step", phases.telling(schedules.forward_step, FORWARD)),
            replaced(schedules, "backward_step", phases.telling(schedules.backward_step, BACKWARD)),
            replaced(
                combined_1f1b,
                "combined_forward_backward_step",
                phases.telling_pairs(combined_1f1b.combined_forward_backward_step),
            ),
            replaced(P2PCommunicator, "_communicate_shapes", lambda *_messages: self._received_shapes()),
        ):
            get_forward_backward_func()(
                forward_step_func=self._forward_step,
                data_iterator=[None] * len(self._chunks),
                model=self._chunks,
                num_microbatches=self._micro_batches,
                seq_length=self._job.sequence_length,
                micro_batch_size=self._job.micro_batch_size,
            )

    def update(self) -> None:
        """Update the parameters."""
        self._optimizer.step()

    @property
    def fullest_rank(self) -> int:
        """Return the place in the stage of the rank that most states are dealt to."""
        return fullest_rank(self._job, self._optimizer)

    @property
    def _micro_batches(self) -> int:
        stage, every, chunks = self._stage, self._job.accumulation_steps, self._job.virtual_pipeline
        if stage.stages == 1:
            return min(every, MOST_MICRO_BATCHES)
        if chunks == 1:
            return traced_micro_batches(stage, every)
        # What the schedule still holds of the passes that filled the pipeline is there a round later.
        return min(every, traced_micro_batches(stage, every, chunks=chunks) + stage.stages)

    def _received_shapes(self) -> tuple[list[int], list[int]]:
        """Return the shapes of what is received from the stage before and from the next one, which they would tell.

        Stages ask where further layers do not stand by the head: their outputs are sent behind the model's.
        """
        job, number = self._job, self._stage.number
        split = job.tensor_parallel if job.sequence_parallel else 1
        tokens, further = job.local_sequence_length // split, job.pipeline.division.multi_token

        def shape(sender: int) -> list[int]:
            outputs = 1 + job.multi_token_prediction if sender == further else 1
            return [outputs * tokens, job.micro_batch_size, int(job.config["hidden_size"])]

        return shape(number - 1), shape(number)

    def _forward_step(
        self, _data: Any, model: Any, return_schedule_plan: bool = False
    ) -> tuple[Any, Callable[..., Any]]:
        """Return a micro-batch's output, or its plan part by part, and what makes a loss of it (pretrain_gpt.py)."""
        batch = self._batch
        run = model.build_schedule_plan if return_schedule_plan else model
        output = run(
            batch["input_ids"], batch["position_ids"], None, labels=batch["labels"], loss_mask=batch["loss_mask"]
        )
        return output, functools.partial(_loss, batch["loss_mask"])


def _loss(mask: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Mapping[str, torch.Tensor]]:
    """Return the sum of the losses, the tokens and what is reported (pretrain_gpt.py, `loss_func`)."""
    loss = torch.sum(output.view(-1).float() * mask.view(-1).float())
    tokens = mask.view(-1).sum().clone().detach().to(torch.int)
    return loss, tokens, {"lm loss": torch.cat([loss.clone().detach().view(1), tokens.view(1)])}


class _Phases:
    """Tells which pass of a step begins; the first has begun with the step."""

    def __init__(self, begin: Callable[[str], None]) -> None:
        self._begin, self._has_begun = begin, True
        begin(FORWARD)

    def telling_pairs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs one micro-batch forward beside another's backward pass, told as that where there is one."""
        given = inspect.signature(function)
        forward, backward = (self.telling(function, phase) for phase in (FORWARD, BACKWARD))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            differentiates = given.bind(*args, **kwargs).arguments["b_model"] is not None
            return (backward if differentiates else forward)(*args, **kwargs)

        return call

    def telling(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return the function, with its phase told before."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._has_begun:
                self._begin(phase)
            self._has_begun = False
            return function(*args, **kwargs)

        return call


def _models(job: TraceJob, config: Any, stage: PipelineStage) -> list[Any]:
    """Return the stage's chunks of the model."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs

    from plimsoll.service.worker.stacks.megatron.core.kernels import Modules

    modules = Modules(_attention(job))
    chunks = []
    for part in job.chunks_of(stage):
        chunk = part.chunk if part.chunks > 1 else None
        with names_given(gpt_layer_specs, TESpecProvider=lambda: modules):
            layers = gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=chunk)
            further = gpt_layer_specs.get_gpt_decoder_layer_specs(config, use_transformer_engine=True)[-1]
        model = GPTModel(
            config,
            layers,
            vocab_size=padded_vocabulary(job),
            max_sequence_length=job.sequence_length,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
            share_embeddings_and_output_weights=bool(job.config.get("tie_word_embeddings")),
            position_embedding_type="rope",
            rotary_percent=rotary_fraction(job),
            mtp_block_spec=gpt_layer_specs.get_gpt_mtp_block_spec_for_backend(config, further, modules, vp_stage=chunk),
            vp_stage=chunk,
        )
        _check_layers(model, part, number_of_layers(job.config))
        chunks.append(model)
    return chunks


def _check_layers(model: Any, part: PipelineStage, num_layers: int) -> None:
    """Raise where Megatron-Core has built other layers than the plan has on a stage: the proof would be another's.

    Layers that predict further tokens stand behind the model's `num_layers`.
    """
    built = [layer.layer_number - 1 for layer in model.decoder.layers]
    planned = list(range(part.first_layer, min(part.last_layer + 1, num_layers)))
    if built == planned:
        return
    raise InvalidQuestion(
        f"Megatron-Core builds {_told(built)} in chunk {part.chunk} of stage {part.number}, and the plan has "
        f"{_told(planned)} there: plan the layout anew, and trace that.",
        pointer="/layout/pipeline_layout",
    )


def _told(numbers: Sequence[int]) -> str:
    return f"layers {numbers[0]} to {numbers[-1]}" if numbers else "no layer"


def _layers(model: Any) -> list[Any]:
    """Return the decoder's layers of a chunk, and behind them those that predict further tokens."""
    further = model.mtp.layers if model.mtp_process else ()
    return [*model.decoder.layers, *further]


def _attention(job: TraceJob) -> Any:
    """Return which module is the attention's inner product, in Megatron-Core's words."""
    from megatron.core.transformer.spec_utils import ModuleSpec

    from plimsoll.service.worker.stacks.megatron.core.kernels import CoreAttention
    from plimsoll.service.worker.stacks.megatron.core.latent_attention import LatentCoreAttention
    from plimsoll.service.worker.stacks.megatron.core.unfused_attention import UnfusedAttention

    if job.attention == "eager":
        return ModuleSpec(module=UnfusedAttention)
    if has_latents(job):
        return ModuleSpec(module=LatentCoreAttention)
    ring = context_mesh(job, "cpu") if job.context_parallel > 1 else None
    return ModuleSpec(module=CoreAttention, params={"ring": ring})


def _wrapped(job: TraceJob, config: Any, models: list[Any]) -> list[Any]:
    """Return the chunks with their gradient buffers."""
    from megatron.core.distributed import DistributedDataParallel

    return [
        DistributedDataParallel(config, data_parallel_config(job), model, disable_bucketing=index > 0)
        for index, model in enumerate(models)
    ]


class _FusedAdamW(torch.optim.AdamW):
    """AdamW in one kernel, which makes nothing but its states."""

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, fused=True, **settings)


class _FusedSgd(torch.optim.SGD):
    """SGD in one kernel, which makes nothing but its states (Transformer Engine, pytorch/optimizers/fused_sgd.py).

    torch's own fused one is not known to fake tensors, which would run it on whole tensors of zeros.
    """

    @torch.no_grad()
    def step(self, *_closure: Any) -> None:  # type: ignore[override]
        """Make the states that are not there yet."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if parameter.grad is not None and "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)


def _optimizer(job: TraceJob, chunks: list[Any]) -> Any:
    """Return the optimizer, with torch's fused kernels for Transformer Engine's."""
    from megatron.core import optimizer

    with replaced(torch.optim, "AdamW", _FusedAdamW), replaced(optimizer, "SGD", _FusedSgd):
        if job.optimizer == MUON:
            return optimizer.muon.get_megatron_muon_optimizer(
                optimizer_config(job),
                chunks,
                use_gloo_process_groups=False,
                layer_wise_distributed_optimizer=deals_parameters(job),
            )
        return optimizer.get_megatron_optimizer(optimizer_config(job), chunks, use_gloo_process_groups=False)


def _batch(job: TraceJob) -> dict[str, torch.Tensor]:
    """Return a micro-batch's inputs, all tokens zero."""
    shape = (job.micro_batch_size, job.local_sequence_length)
    return {
        "input_ids": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.zeros(shape, dtype=torch.int64),
        "position_ids": torch.zeros(shape, dtype=torch.int64),
        "loss_mask": torch.zeros(shape, dtype=torch.float32),
    }
