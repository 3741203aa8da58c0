"""What is run of a serving engine in a proof; each folder here has one, as ENGINE in its module `engine`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FULL_ATTENTION, SLIDING_WINDOW, LATENT = "full_attention", "sliding_window", "latent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One serving engine by the name that plans call it; transformers' layers run in its place.

    `cached_kinds` are the layers whose cache is run, as plans call them. One that `has_own_kernels` pads the
    vocabulary, keeps tables of rotary angles, and serves mixtures, latent attention and packed weights by kernels of
    its own, of which is made what they allocate; `note` says so.
    """

    name: str
    cached_kinds: frozenset[str]
    has_own_kernels: bool = False
    note: str = ""


@cache
def engines() -> Mapping[str, Engine]:
    """Return every engine that has a folder here, by name."""
    folders = (module for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg)
    found = (importlib.import_module(f"{__package__}.{folder.name}.engine").ENGINE for folder in folders)
    return {engine.name: engine for engine in found}
