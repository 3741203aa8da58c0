"""What one shell process knows of its variables, as far as the object says their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import TypeAlias

Value: TypeAlias = str | tuple[str, ...]
# All that is put in the place of variables: a short text can ask for a very long one.
MOST_CHARACTERS = 200_000
# Blanks of a text that a run would put something else in place of: they divide no words.
_SEALED = str.maketrans(" \t\n", "\ue000\ue001\ue002")
_UNSEALED = str.maketrans("\ue000\ue001\ue002", " \t\n")


def sealed(text: str) -> str:
    """Return a text that stands for what is not known, as one that is never divided into words."""
    return text.translate(_SEALED)


def unsealed(text: str) -> str:
    """Return a text as it was written."""
    return text.translate(_UNSEALED)


class Variables:
    """Variables, arrays and arguments of one shell. What is not known stays unknown: an image has variables too.

    `arguments` has the script's name first; None where they are not known. `local` are names that the function which
    is read keeps to itself.
    """

    def __init__(self, values: Mapping[str, str], arguments: tuple[str, ...] | None = ("",)) -> None:
        """Take the variables of the environment and the arguments."""
        self._values: dict[str, Value] = dict(values)
        self._unknown: set[str] = set()
        self._exported = set(values)
        self._changed: set[str] = set()
        self._left = [MOST_CHARACTERS]
        self.arguments = arguments
        self.local: list[str] = []

    def copied(self) -> Variables:
        """Return those of a subshell, or of a part that may be left out."""
        inner = copy(self)
        inner._values, inner._unknown, inner._exported = dict(self._values), set(self._unknown), set(self._exported)
        inner._changed = set()
        return inner

    def join(self, part: Variables) -> None:
        """Make unknown what a part changed that may have been left out."""
        self.forget(part._changed)
        self._exported |= part._exported
        if part.arguments != self.arguments:
            self.arguments = None

    def of_script(self, arguments: tuple[str, ...], env: Mapping[str, str]) -> Variables:
        """Return those of a script that this shell starts: what was exported, and what stands before the command."""
        inherited = {name: value for name in self._exported if isinstance(value := self._values.get(name), str)}
        inner = Variables(inherited | dict(env), arguments)
        inner._unknown, inner._left = self._unknown - set(env), self._left
        return inner

    def assign(self, name: str, value: Value, *, is_added: bool = False) -> None:
        """Assign a value, or add one to what is there."""
        before = self._values.get(name, f"${{{name}}}" if isinstance(value, str) else (f"${{{name}[@]}}",))
        self.forget([name])
        if is_added and not self._is_affordable(before):
            return
        if not is_added:
            self._values[name] = value
        elif isinstance(value, tuple):
            self._values[name] = (*((before,) if isinstance(before, str) else before), *value)
        elif isinstance(before, str):
            self._values[name] = before + value
        else:
            # `A+=x` of an array changes its first element.
            return
        self._unknown.discard(name)

    def forget(self, names: Iterable[str]) -> None:
        """Make names unknown."""
        for name in names:
            self._values.pop(name, None)
            self._unknown.add(name)
            self._changed.add(name)

    def export(self, names: Iterable[str]) -> None:
        """Hand variables to the scripts that are started from now on."""
        self._exported.update(names)
        self._changed.update(names)

    def value(self, name: str, index: str = "") -> Value | None:
        """Return what a name holds, None where that is unknown; `index` is an array's, a number or `@`."""
        if name in ("@", "*"):
            value: Value | None = None if self.arguments is None else self.arguments[1:]
        elif name == "#" or name.isdigit():
            value = self._argument(name)
        else:
            value = self._values.get(name)
            if index == "" and isinstance(value, tuple):
                value = value[0] if value else None
            elif index.isdigit():
                listed = (value,) if isinstance(value, str) else value or ()
                value = listed[int(index)] if int(index) < len(listed) else None
        return value if value is not None and self._is_affordable(value) else None

    def _argument(self, name: str) -> str | None:
        if self.arguments is None or not self._are_counted():
            return None
        if name == "#":
            return str(len(self.arguments) - 1)
        return self.arguments[int(name)] if 0 < int(name) < len(self.arguments) else None

    def _are_counted(self) -> bool:
        """Return whether each argument is known to be one: a variable may hold several words or none."""
        return self.arguments is not None and not any("$" in argument for argument in self.arguments[1:])

    def is_unset(self, name: str) -> bool:
        """Return whether nothing here gives a name a value, for all that is known."""
        if name.isdigit():
            return self.arguments is not None and self._are_counted() and int(name) >= len(self.arguments)
        return name not in self._values and name not in self._unknown

    def _is_affordable(self, value: Value) -> bool:
        self._left[0] -= len(value) if isinstance(value, str) else sum(len(each) + 1 for each in value)
        return self._left[0] >= 0
