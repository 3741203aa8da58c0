"""Every change made to torch and transformers while a trace runs, and its reason.

They hold inside `traceable_torch()` only. A proof has a process of its own, so
nothing else can be surprised by them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._meta_registrations as meta_registrations
import torch.distributed.tensor._sharding_prop as sharding_propagation
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh

from plimsoll.service.worker.recording.sharded_on_host import shards_on_host

MAIN_STREAM = 0

# Methods of DeviceMesh that read its tensor of ranks.
MESH_METHODS = (
    "__init__",
    "__getitem__",
    "_concatenate",
    "_flatten",
    "_unflatten",
    "_create_sub_mesh",
    "_compute_coordinates_from_mesh",
    "_get_all_submeshes",
)


class StreamClock:
    """Which stream the code under trace is on, by number; 0 is the main one."""

    def __init__(self) -> None:
        self.current = MAIN_STREAM
        self._last_number = MAIN_STREAM

    def next_number(self) -> int:
        """Return a number for a new stream."""
        self._last_number += 1
        return self._last_number


@contextlib.contextmanager
def traceable_torch() -> Iterator[StreamClock]:
    """Apply every patch, give back the stream clock, and undo them all."""
    with contextlib.ExitStack() as stack:
        clock = stack.enter_context(_numbered_cpu_streams())
        stack.enter_context(_separate_sharding_propagation())
        stack.enter_context(_real_mesh_tensors())
        stack.enter_context(_one_chunk_at_a_time())
        stack.enter_context(shards_on_host())
        stack.enter_context(_dropout_as_on_cuda())
        stack.enter_context(_grouped_products_of_every_format())
        stack.enter_context(_quiet_view_warning())
        stack.enter_context(_gathers_in_second_runs())
        yield clock


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module or class, and put the old one back."""
    # A class's own dictionary keeps classmethods and staticmethods as such.
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def models_calling(module: str, **kernels: Callable[..., Any]) -> Iterator[None]:
    """Let a module of transformers' models call these kernels by their names in it; nothing where it has no name."""
    with contextlib.ExitStack() as stack:
        if module:
            modeling = importlib.import_module(f"transformers.models.{module}")
            for name, kernel in kernels.items():
                stack.enter_context(replaced(modeling, name, kernel))
        yield


@contextlib.contextmanager
def _separate_sharding_propagation() -> Iterator[None]:
    """Keep DTensor's sharding propagation out of the ambient fake mode.

    It runs each operation once more on fake tensors of the global shape to learn
    the output's. In the ambient mode these look like memory of this rank: a
    tracker reports 121 GiB where 17 are used (8B parameters over 64 ranks).
    """
    with replaced(sharding_propagation, "detect_fake_mode", lambda *_args, **_kwargs: None):
        yield


@contextlib.contextmanager
def _real_mesh_tensors() -> Iterator[None]:
    """Let DeviceMesh make and read its tensor of ranks outside the fake mode.

    A mesh of two axes (tensor and data parallel) reads ranks out of that tensor,
    and a fake tensor has none.
    """
    with contextlib.ExitStack() as stack:
        for name in MESH_METHODS:
            method = DeviceMesh.__dict__.get(name)
            if method is not None:
                stack.enter_context(replaced(DeviceMesh, name, outside_fake_mode(method)))
        yield


def outside_fake_mode(method: Any) -> Any:
    """Return the function or method, its own tensors made and read outside the fake mode."""
    if isinstance(method, staticmethod):
        return staticmethod(outside_fake_mode(method.__func__))
    if isinstance(method, classmethod):
        return classmethod(outside_fake_mode(method.__func__))

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return method(*args, **kwargs)

    return call


@contextlib.contextmanager
def _numbered_cpu_streams() -> Iterator[StreamClock]:
    """Make the streams that FSDP asks for visible.

    torch's CPU streams are all one and the same dummy; on CUDA the allocator
    keeps a pool for each stream, so that gathered buffers never reuse the memory
    of activations. The dummies get numbers, and the clock says which is current.
    """
    clock = StreamClock()

    class NumberedStream(torch.cpu.Stream):
        def __init__(self, priority: int = -1, number: int | None = None) -> None:
            super().__init__(priority)
            self.number = clock.next_number() if number is None else number

    @contextlib.contextmanager
    def stream(entered: Any) -> Iterator[None]:
        before = clock.current
        clock.current = getattr(entered, "number", MAIN_STREAM)
        try:
            yield
        finally:
            clock.current = before

    def current_stream(device: object = None) -> NumberedStream:  # noqa: ARG001 - torch's signature
        return NumberedStream(number=clock.current)

    with (
        replaced(torch.cpu, "Stream", NumberedStream),
        replaced(torch.cpu, "stream", stream),
        replaced(torch.cpu, "current_stream", current_stream),
    ):
        yield clock


@contextlib.contextmanager
def _dropout_as_on_cuda() -> Iterator[None]:
    """Let dropout keep a mask of one byte an element, as CUDA's kernel does.

    On a CPU torch multiplies by random numbers in the tensor's own format, and keeps those (torch,
    aten/src/ATen/native/Dropout.cpp, `is_fused_kernel_acceptable`).
    """
    original = torch.nn.functional.dropout

    @functools.wraps(original)
    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: A002
        if not training or not 0.0 < p < 1.0:
            return original(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    with replaced(torch.nn.functional, "dropout", dropout):
        yield


@contextlib.contextmanager
def _grouped_products_of_every_format() -> Iterator[None]:
    """Let grouped products of fake tensors be in fp16 and fp32 too, as those of real ones are on every device.

    The rule for fake tensors was written for the kernels of sm90, which know bf16 alone; in other formats CUDA
    multiplies group by group into the same output (torch, aten/src/ATen/native/GroupedMMUtils.h,
    `_grouped_mm_validate_inputs` and `_grouped_mm_fallback`).
    """
    original = meta_registrations._meta_grouped_mm_common

    @functools.wraps(original)
    def product(mat_a: torch.Tensor, mat_b: torch.Tensor, **rest: Any) -> Any:
        if mat_a.dtype is mat_b.dtype and mat_a.dtype in (torch.float16, torch.float32):
            return meta_registrations._create_grouped_mm_output_tensor(mat_a, mat_b, rest["offs"], None)  # type: ignore[no-untyped-call]
        return original(mat_a, mat_b, **rest)

    with replaced(meta_registrations, "_meta_grouped_mm_common", product):
        yield


@contextlib.contextmanager
def _quiet_view_warning() -> Iterator[None]:
    """Pass over FSDP2's advice not to change a module's output in place.

    A tensor-parallel module always returns a view of its DTensor, and no traced
    model changes one in place.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
        yield


@contextlib.contextmanager
def _gathers_in_second_runs() -> Iterator[None]:
    """Let the second run of a selectively recomputed layer gather weights that its first run found gathered.

    The top layer's experts are a unit that nothing gathers ahead of the backward pass; where a score scales what
    shared experts add, the layer is computed again before FSDP's own hook gathers them. torch 2.13 raises at any
    operation that the first run had not; earlier versions ran it (torch, utils/checkpoint.py,
    `_CachedTorchDispatchMode`).
    """
    gathering = {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.split_with_sizes.default,
        torch.ops.aten._foreach_copy_.default,
        torch.ops.fsdp.all_gather_copy_in.default,
        torch.ops.fsdp.split_with_sizes_copy.default,
        torch.ops.c10d._allgather_base_.default,
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    }
    with replaced(torch.utils.checkpoint, "SAC_IGNORED_OPS", torch.utils.checkpoint.SAC_IGNORED_OPS | gathering):
        yield


class LazyChunks:
    """The chunks of a tensor, each made when it is asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._chunk_length = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a chunk; those behind the end of the tensor are empty and flat, as FSDP has them."""
        start = index * self._chunk_length
        length = min(self._chunk_length, self._tensor.size(self._dim) - start)
        return self._tensor.narrow(self._dim, start, length) if length > 0 else self._tensor.new_empty(0)


@contextlib.contextmanager
def _one_chunk_at_a_time() -> Iterator[None]:
    """Make the one chunk of a parameter that this rank keeps, and not one for every rank.

    FSDP cuts each parameter into as many views as there are ranks and drops all
    but one: minutes of fake operations for a thousand ranks. A tensor that holds others cuts them its own way.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    whole: Callable[..., Any] = vars(_fsdp_param)["_chunk_with_empty"]

    def chunks(tensor: torch.Tensor, num_chunks: int, dim: int) -> Any:
        holds_others = hasattr(tensor, "__tensor_flatten__") and not isinstance(tensor, FakeTensor)
        return (whole if holds_others else LazyChunks)(tensor, num_chunks, dim)

    with replaced(_fsdp_param, "_chunk_with_empty", chunks):
        yield


@contextlib.contextmanager
def watched_parameter_groups(
    around: Callable[[str, Any], contextlib.AbstractContextManager[None]],
) -> Iterator[None]:
    """Enter `around(name, group)` whenever FSDP gathers, frees or reduces a group.

    FSDP's buffers are made by ordinary operations; only the method they are made
    in says that they are for communication and not activations.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            with around(method.__name__, group):
                return method(group, *args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name in ("unshard", "wait_for_unshard", "post_backward"):
            stack.enter_context(replaced(FSDPParamGroup, name, watched(FSDPParamGroup.__dict__[name])))
        yield


@contextlib.contextmanager
def watched_storage_resizes(resized: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Call `resized(storage)` after a storage grew or shrank.

    FSDP frees and allocates gathered parameters by resizing their storages, which
    is no operation that a dispatch mode could see.
    """
    original = torch.UntypedStorage.resize_

    @functools.wraps(original)
    def resize(storage: torch.UntypedStorage, size_bytes: int) -> Any:
        result = original(storage, size_bytes)
        resized(storage)
        return result

    # The method belongs to the base class: hide it here, and uncover it after.
    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.UntypedStorage.resize_
