"""The folders of training stacks: their names, and what a file of one says with all that it inherits.

Each stack is a folder with a `stack.toml` (what it keeps in memory, how it shards, what it can do) and a `timing.toml`.
A file says what differs from the same file of the stack that it is `like`, or without `like` from
`stack_defaults.toml` and `timing_defaults.toml`: a PyTorch training loop without anything special. Tables are merged
key by key. A value is replaced whole, be it a list or a table within a table (by ZeRO stage, say), and so is the table
`states`, by precision: whoever states one of its keys states them all.

`OWN` is never inherited, because it says where numbers come from: a stack states it itself, or is refused. Of another
stack neither are `variants`, kernels that somebody looked at there, its `releases`, the cards that it was
`measured_on`, what single `optimizers` change, `is_textbook` and `aliases`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.planners.ground.data_files import overlaid, read_toml

STACK, TIMING = "stack", "timing"
OWN: Mapping[str, frozenset[str]] = {
    STACK: frozenset({"title", "listed", "measured", "sources", "versions", "band"}),
    TIMING: frozenset({"measured", "provenance", "low", "high", "expert_low", "expert_high", "band_reason"}),
}
NEVER_INHERITED = frozenset({"aliases", "variants", "optimizers", "is_textbook", "releases", "measured_on"})
REPLACED_WHOLE = frozenset({"states"})


@dataclass(frozen=True, slots=True)
class StackFolders:
    """A folder of training stacks, each a folder in it."""

    root: Path

    def names(self) -> tuple[str, ...]:
        """Return the names of the stacks, sorted: those of the folders, with `-` for `_`."""
        folders = (each for each in self.root.iterdir() if (each / f"{STACK}.toml").is_file())
        return tuple(sorted(folder.name.replace("_", "-") for folder in folders))

    def offered(self) -> tuple[str, ...]:
        """Return the names of the stacks in the order in which a request lists them."""
        return tuple(sorted(self.names(), key=lambda name: int(self._own(name, STACK)["listed"])))

    def names_meant(self) -> Mapping[str, tuple[str, ...]]:
        """Return by each name that people call stacks by those that it means, the measured ones first."""
        own = {name: self._own(name, STACK) for name in self.names()}
        order = sorted(own, key=lambda name: not own[name]["measured"])
        aliases = dict.fromkeys(alias for name in order for alias in own[name].get("aliases", ()))
        return {alias: tuple(name for name in order if alias in own[name].get("aliases", ())) for alias in aliases}

    def table(self, name: str, kind: str) -> dict[str, Any]:
        """Return what a stack's file of a kind says, with what it inherits.

        Raises `ValueError` where the file does not state what nobody inherits, or states what is another's.
        """
        merged = self._merged(name, kind, ())
        self._check_own(name)
        return merged

    def _check_own(self, name: str) -> None:
        """Raise where a stack has another's title or place, or no source that is not another's too."""
        stated = {each: self._own(each, STACK) for each in self.names()}
        own = stated.pop(name)
        for key in ("title", "listed"):
            namesakes = [other for other in stated if stated[other][key] == own[key]]
            if namesakes:
                raise ValueError(f"{name} has the {key} of {namesakes[0]}, {own[key]!r}; a stack's is its own.")
        if set(own["sources"]) <= {source for other in stated.values() for source in other["sources"]}:
            raise ValueError(f"{name}: every one of its sources is another's; one says what its own code does.")

    def _merged(self, name: str, kind: str, heirs: tuple[str, ...]) -> dict[str, Any]:
        own = self._own(name, kind)
        like = own.pop("like", "")
        if like in (*heirs, name):
            raise ValueError(f"{name}, {kind}.toml: like {like} goes round in a ring.")
        inherited = dict(read_toml(self.root / f"{kind}_defaults.toml"))
        if like:
            of_kin = self._merged(like, kind, (*heirs, name))
            inherited |= {key: of_kin[key] for key in of_kin.keys() - OWN[kind] - NEVER_INHERITED}
        return overlaid(inherited, own, REPLACED_WHOLE)

    def _own(self, name: str, kind: str) -> dict[str, Any]:
        own = dict(read_toml(self.root / name.replace("-", "_") / f"{kind}.toml"))
        missing = OWN[kind] - set(own)
        if missing:
            raise ValueError(f"{name}, {kind}.toml: {', '.join(sorted(missing))} must be its own, and are missing.")
        return own


def shipped() -> StackFolders:
    """Return the stacks that lie beside this file."""
    return StackFolders(Path(__file__).parent)
