"""The words that a shell makes of a command: quotes taken away, variables and sums put in, blanks dividing.

What only a run would tell stands as it is written. Redirections and file names' patterns are left alone.
Source: POSIX.1-2024, Shell Command Language, 2.2 (quoting) and 2.6 (word expansions); arrays as bash has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from plimsoll.service.workloads.commands.shell_arithmetic import arithmetic_value, assigned_in_arithmetic
from plimsoll.service.workloads.commands.shell_syntax import ShellText
from plimsoll.service.workloads.commands.shell_variables import Value, Variables, sealed, unsealed

if TYPE_CHECKING:
    from tree_sitter import Node

# What stands around a part of a word: nothing, the default of an unquoted `${NAME:-…}`, double quotes, a here-document.
Around: TypeAlias = Literal["nothing", "default", "quotes", "document"]
# What a backslash takes the meaning of there.
ESCAPED: Mapping[Around, re.Pattern[str]] = {
    "nothing": re.compile(r"\\(.)", re.DOTALL),
    "default": re.compile(r"\\(.)", re.DOTALL),
    "quotes": re.compile(r'\\([$`"\\\n])'),
    "document": re.compile(r"\\([$`\\\n])"),
}
ANSI_ESCAPED, ANSI_SIGNS = re.compile(r"\\([ntr\\'\"])"), {"n": "\n", "t": "\t", "r": "\r"}
BLANKS = re.compile(r"[ \t\n]+")
JOINED = re.compile(rb"(?:\\.)*", re.DOTALL)
MOST_NESTED = 20
# $NAME, ${NAME}, ${NAME[0]}, ${NAME:-…}; no other form is worked out.
EXPANSION = re.compile(
    r"\$(?:([A-Za-z_]\w*|[0-9@*#])|\{([A-Za-z_]\w*|[0-9]{1,3}|[@*#])(?:\[([0-9]{1,3}|[@*])\])?(?:(:?)([-=+?])|\}))",
    re.ASCII,
)
# All other nodes of a word stand for themselves.
WITH_A_VALUE = frozenset({
    "string", "raw_string", "ansi_c_string", "simple_expansion", "expansion", "arithmetic_expansion",
    "command_substitution", "process_substitution",
})  # fmt: skip


class Words:
    """Reads the words of one text; what `${NAME:=…}` and sums assign joins the variables."""

    def __init__(self, text: ShellText, variables: Variables) -> None:
        """Take the text and the shell's variables."""
        self._text = text
        self._variables = variables

    def of(self, nodes: Sequence[Node]) -> list[str]:
        """Return the words of a command's nodes: none of an empty variable, several of one with blanks in it."""
        return [word for group in self._groups(nodes) for word in self._expanded(group, is_divided=True)]

    def value(self, node: Node | None) -> Value:
        """Return what the right side of an assignment comes to."""
        if node is None:
            return ""
        if node.type != "array":
            return "".join(self._expanded([node], is_divided=False))
        elements = [element for element in node.named_children if element.type != "comment"]
        if any(self._text.of(element).startswith("[") for element in elements):
            return sealed(self._text.of(node))
        return tuple(self.of(elements))

    def document(self, body: Node, start: int, end: int) -> str:
        """Return the text of a here-document from its first byte to its end, variables put in."""
        fields = _Fields(is_divided=False)
        self._read(body.children, start, end, fields, "document")
        return unsealed("".join(fields.words()))

    def _groups(self, nodes: Sequence[Node]) -> Iterator[list[Node]]:
        """Yield the nodes of each word, for the grammar makes several of some words."""
        group: list[Node] = []
        for node in nodes:
            if group and not self.are_joined(group[-1], node):
                yield group
                group = []
            group.append(node)
        if group:
            yield group

    def are_joined(self, node: Node, after: Node) -> bool:
        """Return whether there is no blank between two nodes: they are parts of one word."""
        return JOINED.fullmatch(self._text.source, node.end_byte, after.start_byte) is not None

    def _expanded(self, group: Sequence[Node], *, is_divided: bool) -> list[str]:
        fields = _Fields(is_divided=is_divided)
        self._read(group, group[0].start_byte, group[-1].end_byte, fields, "nothing")
        return fields.words()

    def _read(
        self, nodes: Sequence[Node], start: int, end: int, fields: _Fields, around: Around, depth: int = 0
    ) -> None:
        """Read the text from start to end: nodes with a value by it, and what is between them as it stands."""
        for node in _with_a_value(nodes):
            if start <= node.start_byte and node.end_byte <= end:
                written = self._text.of(node)
                # The grammar counts blanks in front of a `$` in.
                begin = node.start_byte + len(written) - len(written := written.lstrip(" \t\n"))
                self._read_plain(self._text.between(start, begin), fields, around)
                self._read_valued(node, written, fields, around, depth)
                start = node.end_byte
        self._read_plain(self._text.between(start, end), fields, around)

    @staticmethod
    def _read_plain(written: str, fields: _Fields, around: Around) -> None:
        text = ESCAPED[around].sub(lambda match: match[1].replace("\n", ""), written)
        if around == "default" and text == written:
            fields.divide(text)
        elif text:
            fields.add(text)

    def _read_valued(self, node: Node, written: str, fields: _Fields, around: Around, depth: int) -> None:
        if node.type == "raw_string":
            fields.add(written[1:-1])
        elif node.type == "ansi_c_string":
            fields.add(ANSI_ESCAPED.sub(lambda match: ANSI_SIGNS.get(match[1], match[1]), written[2:-1]))
        elif depth > MOST_NESTED:
            fields.add(sealed(written))
        elif node.type == "string":
            # The quotes of a list that is empty keep no word.
            if "@" not in written:
                fields.add("")
            self._read(node.children, node.start_byte + 1, node.end_byte - 1, fields, "quotes", depth + 1)
        elif node.type == "arithmetic_expansion":
            fields.add(self._arithmetic(node, written))
        elif node.type in ("simple_expansion", "expansion"):
            self._read_expansion(node, written, fields, around, depth)
        else:
            fields.add(sealed(f"$({written[1:-1]})" if written.startswith("`") else written))

    def _arithmetic(self, node: Node, written: str) -> str:
        self._variables.forget(assigned_in_arithmetic(written))
        inner = _Fields(is_divided=False)
        edge = 2 if written.startswith("$((") else 1
        self._read(node.children, node.start_byte + 1 + edge, node.end_byte - edge, inner, "quotes", MOST_NESTED)
        number = arithmetic_value("".join(inner.words()), self._variables.value)
        return sealed(written) if number is None else str(number)

    def _read_expansion(self, node: Node, written: str, fields: _Fields, around: Around, depth: int) -> None:
        match = EXPANSION.match(written)
        if match is None or not (match[5] or match.end() == len(written)):
            fields.add(sealed(written))
            return
        name, index, colon, sign = match[1] or match[2], match[3] or "", match[4], match[5]
        value = self._variables.value(name, index)
        is_filled = bool(value) or (value is not None and not colon)
        is_empty = value is not None or self._variables.is_unset(name)
        if is_filled and value is not None and sign != "+":
            self._put(value, written, fields, around)
        elif is_filled or (is_empty and sign in ("-", "=")):
            # The names and signs in front are ASCII: as many bytes as letters.
            start = node.end_byte - len(written.encode()) + match.end()
            if sign == "=":
                self._variables.assign(name, self._default(node, start))
            inner = "default" if around == "nothing" else around
            self._read(node.children, start, node.end_byte - 1, fields, inner, depth + 1)
        elif value is None and not (is_empty and name.isdigit()):
            fields.add(sealed(written))

    def _default(self, node: Node, start: int) -> str:
        fields = _Fields(is_divided=False)
        self._read(node.children, start, node.end_byte - 1, fields, "nothing", MOST_NESTED)
        return "".join(fields.words())

    def _put(self, value: Value, written: str, fields: _Fields, around: Around) -> None:
        is_quoted = around in ("quotes", "document")
        if not is_quoted and not self._variables.is_unset("IFS"):
            fields.add(sealed(written))
        elif isinstance(value, tuple):
            fields.put_list((" ".join(value),) if is_quoted and "*" in written else value, is_quoted=is_quoted)
        elif is_quoted:
            fields.add(value)
        else:
            fields.divide(value)


class _Fields:
    """The words that one word becomes; one at the most unless it `is_divided` at blanks."""

    def __init__(self, *, is_divided: bool) -> None:
        self._is_divided = is_divided
        self._done: list[str] = []
        self._parts: list[str] = []
        self._is_open = False

    def add(self, text: str) -> None:
        """Add a text that is not divided; an empty one makes a word, too."""
        self._parts.append(text)
        self._is_open = True

    def divide(self, text: str) -> None:
        """Add a text whose blanks divide words."""
        first, *others = BLANKS.split(text) if self._is_divided else (text,)
        if first:
            self.add(first)
        for part in others:
            self._end()
            if part:
                self.add(part)

    def put_list(self, items: Iterable[str], *, is_quoted: bool) -> None:
        """Add words of an array, the first to what stands in front of it."""
        for number, item in enumerate(items):
            if number and self._is_divided:
                self._end()
            elif number:
                self.add(" ")
            if is_quoted:
                self.add(item)
            else:
                self.divide(item)

    def words(self) -> list[str]:
        """Return the words."""
        self._end()
        return self._done

    def _end(self) -> None:
        if self._is_open:
            self._done.append("".join(self._parts))
        self._parts, self._is_open = [], False


def _with_a_value(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        if node.type in WITH_A_VALUE:
            yield node
        elif node.child_count:
            yield from _with_a_value(node.children)
