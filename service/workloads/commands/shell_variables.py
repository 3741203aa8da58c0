"""What a shell puts in the place of variables, as far as the object says their values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plimsoll.service.workloads.commands.shell_arithmetic import arithmetic_value
from plimsoll.service.workloads.commands.shell_words import Word

ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)$", re.DOTALL)
# $NAME, ${NAME}, ${NAME:-default}, $1; other forms stand as they are written.
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*|[1-9])(?:(:?)-([^}]*))?\}|([A-Za-z_][A-Za-z0-9_]*|[1-9]))")
ALL_ARGUMENTS = frozenset({"$@", "$*", "${@}", "${*}"})
ARRAY = re.compile(r"^\$\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}$")
DECLARATIONS = frozenset({"export", "declare", "local", "readonly", "typeset"})
# All that is put in the place of variables: a short text can ask for a very long one.
MOST_CHARACTERS = 1_000_000


class Variables:
    """Variables, arrays and arguments of a shell. What is not known stays unknown: an image has variables too."""

    def __init__(self, values: dict[str, str], arguments: Sequence[str] | None = None) -> None:
        """Take the values, and the arguments with the script's name first; None where there is no script yet."""
        self._values = values
        self._arrays: dict[str, tuple[str, ...]] = {}
        self._unknown: set[str] = set()
        self.arguments = arguments
        self._left = [MOST_CHARACTERS]

    def inside(self, arguments: Sequence[str]) -> Variables:
        """Return the variables of a script that this shell starts."""
        inner = Variables(self._values, arguments)
        inner._arrays, inner._unknown, inner._left = self._arrays, self._unknown, self._left
        return inner

    def after_assignments(self, words: Sequence[Word], *, is_conditional: bool) -> Sequence[Word]:
        """Assign what the words in front assign, or declare; return the words from the first other one on."""
        if words and words[0].plain in DECLARATIONS:
            self.after_assignments(words[1:], is_conditional=is_conditional)
            return ()
        for number, word in enumerate(words):
            head = word.pieces[0] if word.pieces else None
            match = ASSIGNMENT.match(head.text) if head is not None and head.kind == "bare" else None
            if match is None:
                return words[number:]
            if word.elements is None:
                self.assign(self._joined(word), is_conditional=is_conditional)
            else:
                self._assign_array(match[1], bool(match[2]), word.elements, is_conditional=is_conditional)
        return ()

    def assign(self, word: str, *, is_conditional: bool) -> None:
        """Assign a value, `NAME=value` or `NAME+=value`; one that may be left out makes the name unknown."""
        match = ASSIGNMENT.match(word)
        if match is None:
            return
        name, is_added, value = match[1], bool(match[2]), match[3]
        before = self._values.get(name, f"${{{name}}}") if is_added else ""
        self._set(name, is_conditional=is_conditional)
        if not is_conditional and self._is_affordable(len(before)):
            self._values[name] = before + value

    def _assign_array(self, name: str, is_added: bool, elements: Sequence[Word], *, is_conditional: bool) -> None:
        listed = self._listed(f"${{{name}[@]}}")
        before = () if not is_added else (f"${{{name}[@]}}",) if listed is None else listed
        values = (*before, *(text for element in elements for text in self.expanded(element)))
        self._set(name, is_conditional=is_conditional)
        if not is_conditional:
            self._arrays[name] = values

    def _set(self, name: str, *, is_conditional: bool) -> None:
        self._values.pop(name, None)
        self._arrays.pop(name, None)
        if is_conditional:
            self._unknown.add(name)
        else:
            self._unknown.discard(name)

    def expanded(self, word: Word) -> list[str]:
        """Return the words that a shell makes of one: none of an empty variable, several of one with blanks in it."""
        fields: list[str] = [""]
        is_kept = False
        for piece in word.pieces:
            listed = self._listed(piece.text) if piece.kind in ("bare", "quoted") else None
            if piece.kind in ("literal", "output"):
                fields[-1] += piece.text if piece.kind == "literal" else self._output(piece.text)
                # The quotes of an empty "$@" keep no word.
                is_kept = is_kept or bool(piece.text) or len(word.pieces) == 1
            elif listed is not None:
                fields = [*fields[:-1], fields[-1] + "".join(listed[:1]), *listed[1:]]
                is_kept = is_kept or bool(listed)
            elif piece.kind == "quoted" or "$" not in piece.text:
                fields[-1] += self._substituted(piece.text)
                is_kept = True
            else:
                text = self._substituted(piece.text)
                parts = text.split()
                first = [fields[-1], *parts] if text[:1].isspace() else [fields[-1] + "".join(parts[:1]), *parts[1:]]
                fields = [*fields[:-1], *first]
                is_kept = is_kept or bool(parts)
        return fields if is_kept else []

    def _listed(self, text: str) -> Sequence[str] | None:
        if text in ALL_ARGUMENTS and self.arguments is not None:
            return self.arguments[1:] if self._is_affordable(sum(map(len, self.arguments))) else None
        match = ARRAY.match(text)
        listed = self._arrays.get(match[1]) if match else None
        return listed if listed is not None and self._is_affordable(sum(len(each) + 1 for each in listed)) else None

    def _is_affordable(self, characters: int) -> bool:
        self._left[0] -= characters
        return self._left[0] >= 0

    def _joined(self, word: Word) -> str:
        return "".join(
            self._substituted(piece.text)
            if piece.kind in ("bare", "quoted")
            else self._output(piece.text)
            if piece.kind == "output"
            else piece.text
            for piece in word.pieces
        )

    def _output(self, text: str) -> str:
        """Return the number that arithmetic comes to; what a command would print stands as it is written."""
        value = arithmetic_value(self._substituted(text) if "$((" in text else text, self._known)
        return text if value is None else str(value)

    def _known(self, name: str) -> str | None:
        return None if name in self._unknown else self._values.get(name)

    def _substituted(self, text: str) -> str:
        return VARIABLE.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[4]
        if name in self._unknown:
            return match[0]
        if name.isdigit():
            known = self.arguments is not None and int(name) < len(self.arguments)
            value = self.arguments[int(name)] if known and self.arguments is not None else None
        else:
            value = self._values.get(name)
        if value is None or (not value and match[2]):
            return match[0] if match[3] is None else match[3]
        return value if self._is_affordable(len(value)) else match[0]
