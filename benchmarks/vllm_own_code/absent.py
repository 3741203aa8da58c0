"""Modules that vLLM imports and that are not here, stood in for by empty names.

They are vLLM's compiled parts, which ask for CUDA, and packages of its server, its
tokenizers and its video readers, none of which a model on fake tensors calls.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

COMPILED = frozenset(
    {
        "vllm._C",
        "vllm._moe_C",
        "vllm._C_stable_libtorch",
        "vllm._moe_C_stable_libtorch",
        "vllm.vllm_flash_attn._vllm_fa2_C",
        "vllm.vllm_flash_attn._vllm_fa3_C",
    }
)
PACKAGES = frozenset(
    {
        "anthropic",
        "blake3",
        "cv2",
        "depyf",
        "fastsafetensors",
        "flashinfer",
        "gguf",
        "ijson",
        "lark",
        "llguidance",
        "lmformatenforcer",
        "model_hosting_container_standards",
        "numba",
        "outlines_core",
        "partial_json_parser",
        "prometheus_fastapi_instrumentator",
        "pythonjsonlogger",
        "quack",
        "sentencepiece",
        "setproctitle",
        "tiktoken",
        "tilelang",
        "torchaudio",
        "torchvision",
        "tvm_ffi",
        "watchfiles",
        "xgrammar",
    }
)


def _itself(_options: Any, function: Any = None, *_arguments: Any, **_more: Any) -> Any:
    return function


class _Name(type):
    """A class that has every attribute, can be called, and decorates functions with themselves, with options too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {"__call__": _itself})

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and callable(arguments[0]) and not options:
            return arguments[0]
        return type.__call__(cls)

    def __getitem__(cls, _key: Any) -> Any:
        return cls

    def __or__(cls, _other: Any) -> Any:
        return cls

    __ror__ = __or__


class _Module(types.ModuleType):
    __version__ = "0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {"__call__": _itself})


class _Finder:
    """Finds the modules named above before any that is installed, so that none is half used."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name in COMPILED or name.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, _module: types.ModuleType) -> None:
        """Do nothing: its names are made as they are asked for."""


def stand_in_for_absent_modules() -> None:
    """Let the modules be imported."""
    finders: Sequence[Any] = sys.meta_path
    if not any(isinstance(finder, _Finder) for finder in finders):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
