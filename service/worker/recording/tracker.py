"""Watches every operation and writes each storage's life into a ledger.

A storage lives from the operation that makes it until its last tensor is gone;
torch's own garbage collection decides, as it does on a device.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plimsoll.service.worker.recording.host_memory import is_host
from plimsoll.service.worker.recording.ledger import Kind, Ledger, Piece
from plimsoll.service.worker.recording.patches import StreamClock, watched_parameter_groups, watched_storage_resizes

WAIT = torch.ops._c10d_functional.wait_tensor.default
CAST = torch.ops.aten._to_copy.default
ADD = torch.ops.aten.add.Tensor
# Tensors that hold others: torch's of several ranks, torchao's in fp8 with their scales, and in four bits.
WRAPPERS = frozenset({"DTensor", "Float8TrainingTensor", "NF4Tensor"})
ASK_DEVICE = torch.ops.prim.device.default
# Of tensors that are a shape and no memory.
META = "meta"

FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
EVALUATION = "evaluation"
# As the operation that makes it is called in the ledger.
EMBEDDING_GRADIENT = torch.ops.aten.embedding_dense_backward.default._schema.name

KIND_OF_PHASE = {
    FORWARD: Kind.FORWARD_ACTIVATION,
    BACKWARD: Kind.BACKWARD_ACTIVATION,
    OPTIMIZER: Kind.OPTIMIZER_TEMPORARY,
}


class StorageTracker(TorchDispatchMode):
    """A dispatch mode that records allocations and releases.

    `logit_shapes` are the (rows, columns) that mark a tensor as logits: the tokens
    of a micro-batch and the vocabulary, or this rank's part of it; `summed_shapes` are those of weights that a pass
    uses several times, whose gradients autograd adds up. It watches the tensors
    of the fake mode that it is made in; made in none it watches real ones, on any device.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: StreamClock,
        *,
        logit_shapes: frozenset[tuple[int, int]],
        summed_shapes: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self._clock = clock
        self._logit_shapes = logit_shapes
        self._summed_shapes = summed_shapes
        # Keyed by the address of the storage, whose entry goes when the storage does.
        self._live: dict[int, tuple[Piece, weakref.ref[torch.UntypedStorage]]] = {}
        self._phase = FORWARD
        self._kind: Kind | None = None
        self._fake_mode = torch._guards.detect_fake_mode()
        # The latest one begun, so that one that fails can be named.
        self.operation: Any = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record everything until the end of the block."""
        with watched_storage_resizes(self._resized), watched_parameter_groups(self._around_group), self:
            yield

    def begin_phase(self, step: int, phase: str) -> None:
        """Begin a phase: new storages are of its kind unless something says otherwise."""
        self._phase = phase
        self.ledger.mark(step, phase)

    @contextlib.contextmanager
    def making(self, kind: Kind) -> Iterator[None]:
        """Record what is allocated inside as `kind`."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    def live_bytes(self) -> int:
        """Return the bytes that are allocated now."""
        return sum(piece.allocated_bytes for piece, _ in self._live.values())

    def label(self, tensor: torch.Tensor, kind: Kind, origin: str | None = None) -> None:
        """Say what a tensor's storage is for, recording it if it is new."""
        local = local_tensor(tensor)
        self.label_storage(local.untyped_storage(), kind, origin, device=local.device)

    def label_storage(
        self,
        storage: torch.UntypedStorage,
        kind: Kind,
        origin: str | None = None,
        *,
        device: torch.device | None = None,
        on_host: bool = False,
    ) -> None:
        """Say what a storage is for, recording it if it is new; a fake tensor's storage does not know its device."""
        entry = self._live.get(storage._cdata)
        if entry is None:
            self._record(storage, kind, origin or kind.value, on_host=on_host or is_host(device))
            return
        entry[0].kind = kind
        if origin is not None:
            entry[0].origin = origin

    def kind_of(self, tensor: torch.Tensor) -> Kind | None:
        """Return what a tensor's storage is for; None where it was not recorded."""
        entry = self._live.get(local_tensor(tensor).untyped_storage()._cdata)
        return None if entry is None else entry[0].kind

    def label_all(self, named: Iterable[tuple[str, torch.Tensor]], kind: Kind) -> None:
        """Say what each of several named tensors is for."""
        for name, tensor in named:
            self.label(tensor, kind, name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASK_DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # more than half of all calls: answered here, without the fake mode
        if any(kind.__name__ in WRAPPERS for kind in types):
            return NotImplemented  # let it come back with the tensors within, this rank's alone
        # With fake tensors there is nothing to wait for.
        is_idle_wait = func is WAIT and self._fake_mode is not None
        self.operation = func
        result = args[0] if is_idle_wait else func(*args, **(kwargs or {}))
        if torch._guards.active_fake_mode() is not self._fake_mode:
            return result  # sharding propagation, on tensors of the global shape
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._see(value, func, args)
        return result

    def _see(self, tensor: torch.Tensor, func: Any, args: Any) -> None:
        tensor = local_tensor(tensor)
        if isinstance(tensor, FakeTensor) is (self._fake_mode is None) or tensor.device.type == META:
            return
        storage = tensor.untyped_storage()
        entry = self._live.get(storage._cdata)
        if entry is None and self._is_added_in_place(func, args):
            self._take_over(storage, args[0])
        elif entry is None:
            kind = Kind.CAST_PARAMETER if func is CAST and self._is_parameter(args[0]) else self._kind_of(tensor)
            self._record(storage, kind, func._schema.name, on_host=is_host(tensor.device))
        elif entry[0].requested_bytes != storage.nbytes():
            self._resized(storage)

    def _is_added_in_place(self, func: Any, args: Any) -> bool:
        """Return whether autograd would add a weight's gradient into one of another use of it, as of a tied table.

        It does so into a gradient that nobody else holds, as an empty one's maker does, but not while a dispatch mode
        such as this one is on (torch, csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`).
        """
        if func is not ADD or self._phase != BACKWARD or not isinstance(args[0], torch.Tensor):
            return False
        if tuple(args[0].shape) in self._summed_shapes:
            return True
        return self._origin(args[1]) == EMBEDDING_GRADIENT and self.kind_of(args[0]) is not Kind.DUMMY_GRADIENT

    def _origin(self, tensor: Any) -> str | None:
        if not isinstance(tensor, torch.Tensor):
            return None
        entry = self._live.get(local_tensor(tensor).untyped_storage()._cdata)
        return None if entry is None else entry[0].origin

    def _take_over(self, storage: torch.UntypedStorage, before: torch.Tensor) -> None:
        """Let a storage have the piece that another has had, which is about to die."""
        piece, _ = self._live.pop(local_tensor(before).untyped_storage()._cdata)
        address = storage._cdata
        self._live[address] = (piece, weakref.ref(storage, lambda _dead: self._died(address)))

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        return self._kind is None and self.kind_of(tensor) is Kind.PARAMETER

    def _kind_of(self, tensor: torch.Tensor) -> Kind:
        if self._kind is not None:
            return self._kind
        if tensor.dim() >= 2 and tensor.is_floating_point():
            columns = tensor.shape[-1]
            if (tensor.numel() // max(columns, 1), columns) in self._logit_shapes:
                return Kind.LOGITS
        return KIND_OF_PHASE.get(self._phase, Kind.FORWARD_ACTIVATION)

    def _record(self, storage: torch.UntypedStorage, kind: Kind, origin: str, *, on_host: bool) -> None:
        address = storage._cdata
        piece = self.ledger.allocate(
            storage.nbytes(), kind=kind, origin=origin, stream=self._clock.current, on_host=on_host
        )
        self._live[address] = (piece, weakref.ref(storage, lambda _dead: self._died(address)))

    def _died(self, address: int) -> None:
        piece, _ = self._live.pop(address)
        self.ledger.release(piece)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        entry = self._live.get(storage._cdata)
        if entry is None or entry[0].requested_bytes == storage.nbytes():
            return
        piece, reference = entry
        self.ledger.release(piece)
        regrown = self.ledger.allocate(
            storage.nbytes(),
            kind=self._kind or piece.kind,
            origin=piece.origin,
            stream=self._clock.current,
            on_host=piece.on_host,
        )
        self._live[storage._cdata] = (regrown, reference)

    @contextlib.contextmanager
    def _around_group(self, method: str, group: Any) -> Iterator[None]:
        if method == "post_backward":
            self._label_unreduced_gradients(group)
        with self.making(Kind.COMMUNICATION if method == "post_backward" else Kind.GATHERED_PARAMETER):
            yield
        if method == "post_backward":
            for parameter in group.fsdp_params:
                if parameter.sharded_param.grad is not None:
                    self.label(parameter.sharded_param.grad, Kind.GRADIENT, "gradient shard")

    def _label_unreduced_gradients(self, group: Any) -> None:
        for parameter in group.fsdp_params:
            unsharded = getattr(parameter, "_unsharded_param", None)
            if unsharded is not None and unsharded.grad is not None:
                self.label(unsharded.grad, Kind.UNREDUCED_GRADIENT, "gradient before its reduction")


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with this rank's storage under a DTensor or a pending collective."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return getattr(tensor, "elem", tensor)
