"""Megatron-Core as a package that runs on fake tensors: its state of a job's processes, and kernels of a GPU's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.stacks.megatron.core.activation_offload import activations_on_host
from plimsoll.service.worker.stacks.megatron.core.arguments import optimizer_copies
from plimsoll.service.worker.stacks.megatron.core.emerging_optimizers import named_where_missing
from plimsoll.service.worker.stacks.megatron.core.host import hybrid_optimizer_on_host
from plimsoll.service.worker.stacks.megatron.core.routing import tokens_shared_out
from plimsoll.service.worker.stacks.megatron.core.streams import streams_of_the_trace
from plimsoll.service.worker.training.foreign_code import ScalarsOfFakeTensors, environment, names_given, quiet

# Names that its modules have where Transformer Engine or APEX is installed.
CUDA = "cuda"


class OnTheCpu(TorchFunctionMode):
    """Lets code that names a GPU make its tensors where fake ones lie, and call them a GPU's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == CUDA:
            kwargs = kwargs | {"device": "cpu"}
        if kwargs.get("pin_memory"):
            kwargs = kwargs | {"pin_memory": False}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args).replace("torch.", f"torch.{CUDA}.")
        return func(*args, **kwargs)


def load_megatron() -> Any:
    """Return the package; a worker without it raises `NotYetAvailable`."""
    try:
        # What it compiles as it is imported would not run on fake tensors: kernels stand in for it (`kernels.py`).
        with quiet("megatron"), replaced(torch, "compile", lambda function: function), named_where_missing():
            import megatron.core
            import megatron.core.models.gpt
            import megatron.core.optimizer
            import megatron.core.optimizer.muon
    except ModuleNotFoundError as error:
        raise NotYetAvailable(
            "Megatron's steps are traced by Megatron-Core's own code, which this worker does not have: install "
            "plimsoll[megatron] there.",
            pointer="/layout/framework",
        ) from error
    return megatron.core


@contextlib.contextmanager
def runnable_megatron(job: TraceJob) -> Iterator[None]:
    """Let Megatron-Core run as the rank of the process group, its own groups made."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet("megatron"))
        stack.enter_context(environment(CUDA_DEVICE_MAX_CONNECTIONS=1))
        core = load_megatron()
        stack.enter_context(replaced(torch.cuda, "current_device", lambda: torch.device("cpu")))
        stack.enter_context(replaced(torch.cuda, "synchronize", lambda: None))
        stack.enter_context(replaced(torch.distributed, "all_gather_object", _own_object))
        stack.enter_context(streams_of_the_trace())
        stack.enter_context(_messages_one_by_one())
        stack.enter_context(_nothing_copied())
        stack.enter_context(_causal_masks())
        stack.enter_context(_without_random_states())
        stack.enter_context(_kernels_in_place())
        stack.enter_context(_latents_in_place())
        stack.enter_context(OnTheCpu())
        stack.enter_context(ScalarsOfFakeTensors())
        if job.states_on_host:
            stack.enter_context(hybrid_optimizer_on_host())
        if job.offload_modules:
            stack.enter_context(activations_on_host())
        if job.has_experts:
            stack.enter_context(tokens_shared_out(job.experts_per_token))
        try:
            core.parallel_state.initialize_model_parallel(
                tensor_model_parallel_size=job.tensor_parallel,
                pipeline_model_parallel_size=job.pipeline_parallel,
                virtual_pipeline_model_parallel_size=job.virtual_pipeline if job.virtual_pipeline > 1 else None,
                context_parallel_size=job.context_parallel,
                expert_model_parallel_size=job.expert_parallel,
                num_distributed_optimizer_instances=optimizer_copies(job),
                expert_tensor_parallel_size=job.expert_tensor_parallel if job.expert_parallel > 1 else None,
                create_gloo_process_groups=False,
            )
            yield
        finally:
            core.parallel_state.destroy_model_parallel()
            _forget_angles()
            _forget_losses()


def _own_object(gathered: list[Any], own: Any, **_group: Any) -> None:
    """Let every rank have what this one has: which sets of options its parameters have."""
    gathered[:] = [own] * len(gathered)


@contextlib.contextmanager
def _messages_one_by_one() -> Iterator[None]:
    """Send each bucket by itself: fake tensors know no messages that are put together."""
    from megatron.core.distributed import param_and_grad_buffer

    @contextlib.contextmanager
    def apart(*_group: Any, **_asked: Any) -> Iterator[Any]:
        yield SimpleNamespace(wait=lambda: None)

    with replaced(param_and_grad_buffer, "_coalescing_manager", apart):
        yield


@contextlib.contextmanager
def _nothing_copied() -> Iterator[None]:
    """Copy nothing into a storage that was thrown away: fake tensors' cache of results would hold on to it."""

    def copy(storage: torch.UntypedStorage, *_source: Any) -> torch.UntypedStorage:
        return storage

    # The method belongs to the base class: hide it here, and uncover it after.
    torch.UntypedStorage.copy_ = copy  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.UntypedStorage.copy_


class _CausalMasks:
    """The kinds of masks; asked for the one with a number that was read from a fake tensor it is the causal one."""

    def __init__(self, kinds: Any) -> None:
        self._kinds = kinds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kinds, name)

    def __call__(self, _number: int) -> Any:
        return self._kinds.causal


@contextlib.contextmanager
def _causal_masks() -> Iterator[None]:
    """Let an attention that is computed again know its mask, whose number goes through a tensor."""
    from megatron.core.transformer import attention

    with replaced(attention, "AttnMaskType", _CausalMasks(attention.AttnMaskType)):
        yield


@contextlib.contextmanager
def _without_random_states() -> Iterator[None]:
    """Keep no state of random numbers for a second run; those of a GPU lie on the host."""
    from megatron.core.tensor_parallel import random

    with (
        replaced(random, "_get_all_rng_states", lambda: ()),
        replaced(random, "_set_all_rng_states", lambda: None),
        replaced(random.CudaRNGStatesTracker, "fork", lambda *_args: contextlib.nullcontext()),
        # What throws outputs away asks Transformer Engine for its state of fp8, whether there is any or not.
        names_given(
            random,
            FP8GlobalStateManager=SimpleNamespace(is_fp8_enabled=lambda: False),
            activation_recompute_forward=lambda **_phase: contextlib.nullcontext(),
            fp8_autocast=lambda **_recipe: contextlib.nullcontext(),
        ),
    ):
        yield


@contextlib.contextmanager
def _kernels_in_place() -> Iterator[None]:
    """Put shapes in place of the kernels that its own modules call: APEX's, Transformer Engine's, compiled ones."""
    from megatron.core.fusions import fused_bias_swiglu
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.optimizer import clip_grads, optimizer
    from megatron.core.tensor_parallel import layers

    from plimsoll.service.worker.stacks.megatron.core.kernels import rotated

    def add_up(*_operands: Any) -> None:
        """Allocate nothing."""

    def half(inner: torch.Tensor, *_weights: torch.Tensor) -> torch.Tensor:
        return inner.new_empty(*inner.shape[:-1], inner.size(-1) // 2)

    def back(_gradient: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(inner)

    def weighted_back(_gradient: torch.Tensor, inner: torch.Tensor, weights: torch.Tensor) -> Any:
        return torch.empty_like(inner), torch.empty_like(weights)

    def norm(*_operands: Any) -> tuple[torch.Tensor, None]:
        return torch.empty(1), None

    kernels = SimpleNamespace(wgrad_gemm_accum_fp32=add_up, wgrad_gemm_accum_fp16=add_up)
    with (
        names_given(layers, fused_weight_gradient_mlp_cuda=kernels, _grad_accum_fusion_available=True),
        names_given(layers, HAVE_TE=True, get_dummy_wgrad=_DummyGradients()),
        names_given(rope_utils, fused_apply_rotary_pos_emb=rotated),
        names_given(clip_grads, l2_norm_impl=norm),
        names_given(optimizer, multi_tensor_scale_impl=add_up),
        names_given(fused_bias_swiglu, swiglu=half, weighted_swiglu=half, swiglu_back=back),
        names_given(fused_bias_swiglu, weighted_swiglu_back=weighted_back),
    ):
        yield


@contextlib.contextmanager
def _latents_in_place() -> Iterator[None]:
    from plimsoll.service.worker.stacks.megatron.core.latent_attention import latent_attention_in_place

    with latent_attention_in_place():
        yield


class _DummyGradients:
    """The empty gradients that autograd is handed, one for each shape for good.

    Source: Transformer Engine, pytorch/module/base.py, `get_dummy_wgrad`.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, shape: list[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:  # noqa: ARG002
        if tuple(shape) not in self._made:
            self._made[tuple(shape)] = torch.empty(shape, dtype=dtype)
        return self._made[tuple(shape)].detach()


def _forget_losses() -> None:
    """Empty what is added up of further tokens' losses to be logged."""
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    MTPLossLoggingHelper.tracker.clear()


def _forget_angles() -> None:
    """Empty what the rotary embedding's methods remember of a job's tensors."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    for method in vars(RotaryEmbedding).values():
        if hasattr(method, "cache_clear"):
            method.cache_clear()
