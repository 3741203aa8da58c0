"""The statements of a shell text in the order in which they run, and what they do to the shell."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from plimsoll.service.workloads.commands.option_files import container_path
from plimsoll.service.workloads.commands.shell_arithmetic import assigned_in_arithmetic
from plimsoll.service.workloads.commands.shell_syntax import ShellText
from plimsoll.service.workloads.commands.shell_variables import Value, unsealed
from plimsoll.service.workloads.commands.shell_words import Words
from plimsoll.service.workloads.objects.pods import Container

if TYPE_CHECKING:
    from tree_sitter import Node

    from plimsoll.service.workloads.commands.shell import Shell

# Parts of these may be left out, or done again and again; those of other blocks run one after the other.
LOOPS = frozenset({"for_statement", "c_style_for_statement", "while_statement"})
BRANCHES, CLAUSES = (
    frozenset({"if_statement", "case_statement"}),
    frozenset({"elif_clause", "else_clause", "case_item"}),
)
BLOCKS = frozenset({"program", "compound_statement", "do_group"})
COMPOUND = BRANCHES | LOOPS | BLOCKS | {"subshell"}
REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
TEST = re.compile(r"(?:!\s*)*(?:\[|\(\(|test\s)")
LEADING_TABS = re.compile(r"^\t+", re.MULTILINE)
# What the grammar takes for a mark may have a `;` after it.
HERE_DOCUMENT_MARK = re.compile(r"\\?(['\"]?)[\w.-]+\1")
# Of all texts of a container together, and statements one within another. A word of a command is a node.
MOST_NODES, MOST_NESTED = 20_000, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The words of one program; `is_conditional` where the shell text may leave it out.

    `is_background` where the shell goes on beside it. `mpi_processes` are those that an
    MPI launcher starts of it, None where none does or it is told no number. `container`
    has the files, too, that the text wrote before.
    """

    words: tuple[str, ...]
    container: Container
    mpi_processes: int | None = None
    is_conditional: bool = False
    is_background: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """Whether a statement may be left out, and whether the shell goes on beside it."""

    is_conditional: bool = False
    is_background: bool = False


@dataclass(slots=True)
class System:
    """What all shells of a container share: its files, launchers, and how much more of their texts is read."""

    container: Container
    launchers: Collection[str] = ()
    nodes_left: int = MOST_NODES
    nested: int = 0

    def give_up(self) -> None:
        """Read no further: what follows something that cannot be read is not known."""
        self.nodes_left = 0


@dataclass(frozen=True, slots=True)
class Function:
    """A function's body; `is_conditional` where it may be another one."""

    text: ShellText
    body: Node
    is_conditional: bool


class Statements:
    """Reads the statements of one text, as a shell runs them."""

    def __init__(self, shell: Shell, text: ShellText) -> None:
        """Take the shell and its text."""
        self._shell = shell
        self._text = text
        self._words = Words(text, shell.variables)

    def of(self, node: Node, flow: Flow, redirects: Sequence[Node] = ()) -> Iterator[Program]:
        """Yield what a statement starts. `redirects` belong to its last command, as the grammar has it."""
        system = self._shell.system
        system.nodes_left -= 1 + node.child_count
        if system.nested >= MOST_NESTED:
            system.give_up()
        if system.nodes_left > 0:
            system.nested += 1
            yield from self._of_kind(node, flow, redirects)
            system.nested -= 1

    def _of_kind(self, node: Node, flow: Flow, redirects: Sequence[Node]) -> Iterator[Program]:
        kind = node.type
        if kind == "command":
            yield from self._command(node, flow, redirects)
        elif kind == "variable_assignment":
            self._assign(node)
        elif kind == "variable_assignments":
            for assignment in node.named_children:
                self._assign(assignment)
        elif kind == "declaration_command":
            self._declare(node)
        elif kind == "unset_command":
            self._shell.variables.forget(self._text.of(name) for name in node.named_children)
        elif kind == "redirected_statement":
            yield from self._redirected(node, flow, redirects)
        elif kind == "list":
            yield from self._list(node, flow, redirects)
        elif kind == "pipeline":
            *others, last = (part for part in node.named_children if part.type != "comment")
            for part in others:
                yield from self._in(self._shell.subshell()).of(part, flow)
            yield from self._in(self._shell.subshell()).of(last, flow, redirects)
        elif kind == "negated_command":
            yield from self.of(node.named_children[-1], flow, redirects)
        elif kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                self._shell.functions[self._text.of(name)] = Function(self._text, body, flow.is_conditional)
        elif kind in LOOPS:
            yield from self._loop(node, flow)
        elif kind in BRANCHES:
            yield from self._perhaps([child for child in node.children if child.type not in CLAUSES], flow)
            for clause in node.named_children:
                if clause.type in CLAUSES:
                    yield from self._perhaps(clause.children, flow)
        elif kind == "subshell":
            yield from self._in(self._shell.subshell())._block(node.children, flow)
        elif kind in BLOCKS:
            if node.children[:1] and node.children[0].type == "((":
                self._shell.variables.forget(assigned_in_arithmetic(self._text.of(node)))
            yield from self._block(node.children, flow)

    def _in(self, shell: Shell) -> Statements:
        return Statements(shell, self._text)

    def _block(self, nodes: Sequence[Node], flow: Flow, redirects: Sequence[Node] = ()) -> Iterator[Program]:
        """Yield what statements start one after the other; none from an error on, or right before it."""
        last = max((place for place, node in enumerate(nodes) if node.is_named), default=0)
        for place, node in enumerate(nodes):
            after = nodes[place + 1] if place + 1 < len(nodes) else node
            if node.has_error or after.has_error:
                self._shell.system.give_up()
            if self._shell.ended or self._shell.system.nodes_left <= 0:
                return
            if not node.is_named:
                continue
            is_apart = after.type == "&"
            reader = self._in(self._shell.subshell()) if is_apart else self
            is_background = is_apart or (flow.is_background and place == last)
            yield from reader.of(node, replace(flow, is_background=is_background), redirects if place == last else ())

    def _perhaps(self, nodes: Sequence[Node], flow: Flow, redirects: Sequence[Node] = ()) -> Iterator[Program]:
        """Yield what statements start that may be left out: what they change is not known afterwards."""
        part = self._shell.copied()
        yield from self._in(part)._block(nodes, replace(flow, is_conditional=True), redirects)
        if not part.ended:
            self._shell.variables.join(part.variables)

    def _loop(self, node: Node, flow: Flow) -> Iterator[Program]:
        body, name = node.child_by_field_name("body"), node.child_by_field_name("variable")
        if body is None:
            return
        if name is not None:
            self._shell.variables.forget([self._text.of(name)])
        head = self._text.between(node.start_byte, body.start_byte)
        if node.type == "c_style_for_statement":
            self._shell.variables.forget(assigned_in_arithmetic(head))
        parts = node.children if node.type == "while_statement" else [body]
        # What one round changes is not known in the next.
        for _ in self._perhaps(parts, flow):
            pass
        yield from self._perhaps(parts, flow)

    def _list(self, node: Node, flow: Flow, redirects: Sequence[Node]) -> Iterator[Program]:
        """Yield what commands start that `&&` and `||` link: after `||`, or a test and `&&`, one may be left out."""
        linked: list[tuple[str, Node]] = []
        while node.type == "list":
            node, sign, right = (child for child in node.children if child.type != "comment")
            linked.append((sign.type, right))
        linked.append(("", node))
        is_perhaps = after_test = False
        while linked:
            link, part = linked.pop()
            is_perhaps = link == "||" or (link == "&&" and (is_perhaps or after_test))
            after_test = TEST.match(self._text.of(part)) is not None
            ends = flow if not linked else replace(flow, is_background=False)
            yield from (self._perhaps if is_perhaps else self._block)([part], ends, () if linked else redirects)

    def _redirected(self, node: Node, flow: Flow, redirects: Sequence[Node]) -> Iterator[Program]:
        own = [child for child in node.named_children if child.type in REDIRECTS]
        body = node.child_by_field_name("body")
        if body is None or body.type in COMPOUND:
            self._write((), own, flow)
        if body is not None:
            yield from self.of(body, flow, (*own, *redirects))
        # The grammar counts what stands behind the mark of a here-document to it.
        for redirect in own:
            sign, right = redirect.child_by_field_name("operator"), redirect.child_by_field_name("right")
            piped = [child for child in redirect.named_children if child.type == "pipeline"]
            yield from self._block(piped, flow)
            if sign is not None and right is not None:
                yield from (self._perhaps if sign.type == "||" else self._block)([right], flow)

    def _command(self, node: Node, flow: Flow, redirects: Sequence[Node]) -> Iterator[Program]:
        parts = [part for part in node.children if part.type not in ("comment", *REDIRECTS)]
        assignments = [part for part in parts if part.type == "variable_assignment"]
        if self._is_torn(parts):
            self._shell.system.give_up()
            return
        behind = [word for redirect in redirects for word in _words_behind(redirect)]
        words = self._words.of([part for part in parts if part.type != "variable_assignment"] + behind)
        if not words:
            for assignment in assignments:
                self._assign(assignment)
            return
        given = [self._assigned(assignment) for assignment in assignments]
        self._write(words, redirects, flow)
        env = {name: value for name, value, _ in given if isinstance(value, str)}
        yield from self._shell.run(words, flow, env)

    def _is_torn(self, parts: Sequence[Node]) -> bool:
        """Return whether the grammar cuts an assigned value in two, or takes the next line's command for this one's."""
        between = (
            self._text.between(part.end_byte, after.start_byte)
            for part, after in pairwise(parts)
            if part.type == "variable_assignment"
        )
        return any(not text.strip("\\\n") or "\n" in text.replace("\\\n", "") for text in between)

    def _assigned(self, node: Node) -> tuple[str, Value, bool]:
        """Return the name, the value and whether that is added to the one before."""
        name = node.child_by_field_name("name")
        value = self._words.value(node.child_by_field_name("value"))
        return self._text.of(name) if name is not None else "", value, node.children[1].type == "+="

    def _assign(self, node: Node) -> str:
        name, value, is_added = self._assigned(node)
        target, is_element, _ = name.partition("[")
        if is_element:
            self._shell.variables.forget([target])
        else:
            self._shell.variables.assign(target, value, is_added=is_added)
        return target

    def _declare(self, node: Node) -> None:
        """Do what `export`, `local` and the like do."""
        if self._is_torn(node.children):
            self._shell.system.give_up()
        command, variables = self._text.of(node.children[0]), self._shell.variables
        assigned = [self._assign(part) for part in node.named_children if part.type == "variable_assignment"]
        words = self._words.of([part for part in node.named_children if part.type != "variable_assignment"])
        for name, sign, value in (word.partition("=") for word in words):
            if sign:
                variables.assign(name, value)
            elif command == "local":
                variables.forget([name])
        names = [*assigned, *(word.partition("=")[0] for word in words)]
        if command == "export" or "-x" in words:
            variables.export(names)
        if command not in ("export", "readonly"):
            variables.local.extend(names)

    def _write(self, words: Sequence[str], redirects: Sequence[Node], flow: Flow) -> None:
        """Keep the file that `cat` makes of a here-document; what other programs write is not known."""
        inner = [child for redirect in redirects for child in redirect.named_children if child.type in REDIRECTS]
        system = self._shell.system
        files = dict(system.container.files)
        document = next((redirect for redirect in redirects if redirect.type == "heredoc_redirect"), None)
        for redirect in (*redirects, *inner):
            target = redirect.child_by_field_name("destination")
            sign = next((child.type for child in redirect.children if ">" in child.type), "")
            if target is None or not sign:
                continue
            path = container_path(unsealed("".join(self._words.of([target]))), system.container)
            before = files.pop(path, None) if sign == ">>" else ""
            if document is not None and list(words) == ["cat"] and before is not None and not flow.is_conditional:
                files[path] = before + self._document(document)
            else:
                files.pop(path, None)
        if files != system.container.files:
            system.container = replace(system.container, files=files)

    def _document(self, redirect: Node) -> str:
        """Return the text of a here-document."""
        mark, body, end = (_first(redirect, kind) for kind in ("heredoc_start", "heredoc_body", "heredoc_end"))
        if mark is None or body is None or end is None:
            return ""
        if not HERE_DOCUMENT_MARK.fullmatch(self._text.of(mark)):
            self._shell.system.give_up()
            return ""
        # The grammar leaves out blanks in front of the body: it begins on the next line.
        before = body.prev_sibling or mark
        start = self._text.source.find(b"\n", before.end_byte) + 1
        is_plain = self._text.of(mark)[0] in "\\'\""
        text = (
            self._text.between(start, end.start_byte) if is_plain else self._words.document(body, start, end.start_byte)
        )
        return LEADING_TABS.sub("", text) if redirect.children[0].type == "<<-" else text


def _first(node: Node, kind: str) -> Node | None:
    return next((child for child in node.named_children if child.type == kind), None)


def _words_behind(redirect: Node) -> Iterator[Node]:
    """Yield the words of a command that the grammar counts to a redirection in front of them."""
    # `2>&-` has no target.
    closes = any(child.type.endswith("-") for child in redirect.children)
    yield from redirect.children_by_field_name("destination")[0 if closes else 1 :]
    yield from redirect.children_by_field_name("argument")
    for inner in redirect.children_by_field_name("redirect"):
        yield from _words_behind(inner)
