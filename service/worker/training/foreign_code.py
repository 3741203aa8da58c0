"""What lets a package that was written for GPUs run on fake tensors: no values to read, and nothing left behind."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plimsoll.service.worker.recording.host_memory import is_host
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import META
from plimsoll.service.worker.training.engine import Making, Standing


class ScalarsOfFakeTensors(TorchDispatchMode):
    """Answers `.item()` on a tensor that has no values: nothing overflowed, and every norm is finite."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0
        return func(*args, **(kwargs or {}))


class MadeStorages(TorchDispatchMode):
    """Remembers every storage that operations make within the block, and where, by the name that all are given."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], torch.device, bool]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.device.type != META:
                self._remember(value.untyped_storage(), value.device)
        return result

    def _remember(self, storage: torch.UntypedStorage, device: torch.device) -> None:
        """Keep a storage in the order of its making, behind one that had its address before."""
        known = self._storages.get(storage._cdata)
        if known is None or known[0]() is not storage:
            self._storages.pop(storage._cdata, None)
            self._storages[storage._cdata] = (weakref.ref(storage), device, is_host(device))

    def living(self) -> Iterator[Standing]:
        """Yield the storages that something still holds, as buffers until more is known of them."""
        for reference, device, is_there in self._storages.values():
            storage = reference()
            if storage is not None:
                yield Standing(name=self._name, storage=storage, kind=Kind.BUFFER, device=device, on_host=is_there)


def all_standing(name: str, held: Any, kind: Kind) -> Iterator[Standing]:
    """Yield the storages of whatever tensors there are in what is held."""
    for tensor in tree_leaves(held):
        if isinstance(tensor, torch.Tensor):
            yield Standing(name=name, storage=tensor.untyped_storage(), kind=kind, device=tensor.device)


def making_method(kind: Kind, making: Making, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, what it allocates recorded as that kind."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with making(kind):
            return method(*args, **kwargs)

    return call


@contextlib.contextmanager
def left_in_place(model: Any) -> Iterator[None]:
    """Leave a model where and in the format it is: torch moves no parameter that others refer to as fake ones do."""
    moves = ("to", "bfloat16", "half")
    for name in moves:
        setattr(model, name, lambda *_args, **_kwargs: model)
    try:
        yield
    finally:
        for name in moves:
            delattr(model, name)


@contextlib.contextmanager
def quiet(logger_name: str) -> Iterator[None]:
    """Pass over what torch deprecates in a package's code, and over its log of every step."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


@contextlib.contextmanager
def environment(**values: object) -> Iterator[None]:
    """Set variables of the environment, as a launcher would."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def module_as_before(name: str) -> Iterator[None]:
    """Put a module's names back, for the next trace of this process: one job's process groups are gone with it."""
    module = importlib.import_module(name)
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)


@contextlib.contextmanager
def names_given(module: Any, **names: Any) -> Iterator[None]:
    """Give a module names that it need not have had."""
    before = {name: vars(module)[name] for name in names if name in vars(module)}
    vars(module).update(names)
    try:
        yield
    finally:
        for name in names:
            del vars(module)[name]
        vars(module).update(before)


@contextlib.contextmanager
def unused_modules(names: frozenset[str]) -> Iterator[None]:
    """Let imports find packages that are not installed and that nothing of a proof calls, and leave none behind."""
    before, finder = set(sys.modules), _Unused(names)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if isinstance(sys.modules[name], _Name):
                del sys.modules[name]


class _Name(types.ModuleType):
    """A module that has a class of whatever name it is asked for."""

    __path__: list[str] = []  # noqa: RUF012 - a package's attribute

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda of, _parameters: of)})


class _Unused:
    """Finds modules of some packages as empty ones."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return how to load one of them, None of any other."""
        is_unused = name.partition(".")[0] in self._names
        return importlib.util.spec_from_loader(name, self) if is_unused else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Return the module."""
        return _Name(spec.name)

    def exec_module(self, _module: types.ModuleType) -> None:
        """Run nothing."""
