"""Activations that wait on the host for their backward pass, as torch's hook and TRL's move them there.

Sources: torch, autograd/graph.py, `save_on_cpu`; TRL 1.16, models/activation_offloading.py, `OffloadActivations` and
`get_act_offloading_ctx_manager` with their defaults.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from plimsoll.planners.memory.activation_offload import SYNCHRONOUS
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.host_memory import on_host
from plimsoll.service.worker.training.decoder_parts import head

# Address of a storage, offset in it, and format.
Place = tuple[int, int, torch.dtype]

LEAST_MOVED_BYTES = 1024  # TRL's `min_offload_size`
MOST_STASHED_TENSORS = 5  # TRL's `max_fwd_stash_size`


def keeping_activations(job: TraceJob, model: Any) -> contextlib.AbstractContextManager[object]:
    """Return the context of every forward pass, which says where its activations wait; it can be entered again."""
    if not job.activation_offload:
        return contextlib.nullcontext()
    if load_profile(job.framework).can.activation_offload == SYNCHRONOUS:
        return saved_tensors_hooks(_copy_to_host, _copy_to_device)
    return StashingOffload(model)


def _copy_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of whatever autograd keeps, a parameter too, and one for each operation that keeps it."""
    with on_host():
        return torch.empty(tensor.size(), dtype=tensor.dtype).copy_(tensor)


def _copy_to_device(waiting: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(waiting).copy_(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What autograd will ask for again: the device's tensor, or the host's copy of one of these strides and shape."""

    tensor: torch.Tensor
    is_moved: bool
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


class StashingOffload(saved_tensors_hooks):
    """TRL's offload: copies on a second stream, the last few tensors staying until theirs is surely done.

    A tensor that is kept again while it is in that stash stays on the device for good. Parameters do as well, but
    where FSDP has made others of them since, or autocast casts: those are moved as activations are. What the head
    keeps stays.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(self._pack, self._unpack)
        self._copies = torch.cpu.Stream()
        self._parameters = {parameter.untyped_storage()._cdata for parameter in _plain_parameters(model)}
        self._numbers = 0
        self._saved: dict[int, Saved] = {}
        self._stash: dict[int, torch.Tensor] = {}
        self._stashed_keys: dict[Place, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._back: dict[int, torch.Tensor] = {}
        self._node: Any = None
        _leave_alone(head(model))

    def __enter__(self) -> None:
        """Begin a forward pass with nothing kept."""
        self._saved.clear()
        self._forget_stash()
        self._back.clear()
        self._node = None
        super().__enter__()

    def __exit__(self, *_raised: object) -> None:
        """End the forward pass, and with it the stash."""
        self._forget_stash()
        super().__exit__(*_raised)

    def _pack(self, tensor: torch.Tensor) -> int:
        self._numbers += 1
        number = self._numbers
        place, storage = _place(tensor), weakref.ref(tensor.untyped_storage())
        is_stashed = self._is_stashed(place)
        if is_stashed or self._stays(tensor):
            self._saved[number] = Saved(tensor=tensor, is_moved=False)
            if is_stashed:
                self._stashed_keys[place] = number, storage
            return number
        is_broadcast = 0 in tensor.stride()
        if not is_broadcast and (not tensor.is_contiguous() or tensor.storage_offset()):
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        for stashed in [old for old in self._stash if old <= number - MOST_STASHED_TENSORS]:
            self._unstash(stashed)
        length = tensor.untyped_storage().nbytes() // tensor.element_size() if is_broadcast else tensor.numel()
        with torch.cpu.stream(self._copies), on_host():
            copy = torch.empty(length, dtype=tensor.dtype)
        self._saved[number] = Saved(tensor=copy, is_moved=True, size=tuple(tensor.shape), stride=tensor.stride())
        self._stash[number] = tensor
        self._stashed_keys[place] = number, storage
        return number

    def _is_stashed(self, place: Place) -> bool:
        """Return whether a tensor lies there that was sent and is alive still; another may lie there since."""
        _, storage = self._stashed_keys.get(place, (0, None))
        return storage is not None and storage() is not None

    def _stays(self, tensor: torch.Tensor) -> bool:
        is_small = tensor.numel() * tensor.element_size() < LEAST_MOVED_BYTES
        is_parameter = isinstance(tensor, nn.Parameter) or tensor.untyped_storage()._cdata in self._parameters
        return is_small or is_parameter

    def _unstash(self, number: int) -> None:
        del self._stash[number]
        self._stashed_keys = {place: entry for place, entry in self._stashed_keys.items() if entry[0] != number}

    def _forget_stash(self) -> None:
        self._stash.clear()
        self._stashed_keys.clear()

    def _unpack(self, number: int) -> torch.Tensor:
        saved = self._saved.pop(number)
        if not saved.is_moved:
            return saved.tensor
        node: Any = torch._C._current_autograd_node()
        before: tuple[int, ...] = ()
        if node is not self._node:
            self._node, before = node, tuple(self._back)
            if not before:
                torch.autograd.Variable._execution_engine.queue_callback(self._back.clear)
        with torch.cpu.stream(self._copies):
            flat = torch.empty_like(saved.tensor)
        tensor = torch.as_strided(flat, saved.size, saved.stride)
        self._back[number] = tensor
        uses = _uses(tensor)

        def let_go(*_gradients: object) -> None:
            """Let go of what came for the node before, and of this node's own where others hold it now."""
            if number in self._back and _uses(self._back[number]) > uses:
                del self._back[number]
            for older in before:
                self._back.pop(older, None)

        node.register_hook(let_go)
        return tensor


def _plain_parameters(model: Any) -> list[torch.Tensor]:
    """Return the parameters that are the trainer's own when the offload looks at them: none that FSDP sharded."""
    from torch.distributed.tensor import DTensor

    return [parameter for parameter in model.parameters() if not isinstance(parameter, DTensor)]


def _place(tensor: torch.Tensor) -> Place:
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.dtype


def _uses(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _leave_alone(head: nn.Module) -> None:
    """Let what a module keeps stay where it is."""
    untouched = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    head.register_forward_pre_hook(lambda *_call: untouched.__enter__())
    head.register_forward_hook(lambda *_call: untouched.__exit__(), always_call=True)
