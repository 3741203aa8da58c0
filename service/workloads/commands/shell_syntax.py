"""Shell text as a syntax tree, by tree-sitter's grammar of bash.

Source of the grammar: https://github.com/tree-sitter/tree-sitter-bash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Language, Node, Point

MOST_CHARACTERS = 100_000
CHUNK_BYTES = 4_096
# Of 100 operations each: 100 kB of launch commands take 1,100. While the parser mends an error, one takes up to forty
# times as long.
MOST_STEPS, STEPS_WHILE_MENDING = 1_500, 40
# Each chunk once or twice. More reads mean that the parser looks ahead in vain from place to place, in quadratic time.
MOST_READS = 200
# The grammar takes an escaped blank at a word's end for one between words: another sign stands in for it.
ESCAPED_BLANK, BLANK = re.compile(r"\\[\\ ]"), "\1"
# After two assignments in a line the grammar goes on in the next one, unless the line has an end that it sees.
ASSIGNMENT = r"""[A-Za-z_]\w*\+?=(?:[^\s'"`$\\(){}<>|&;#]|'[^'\n]*'|"[^"\n`$\\]*"|\$\w++|\$\{\w+\})*+"""
ASSIGNMENTS = re.compile(
    rf"(?:^|(?<=[;&|{{(])|(?<=\bthen\s)|(?<=\belse\s)|(?<=\bdo\s))[ \t]*"
    rf"(?:{ASSIGNMENT}[ \t]++)+{ASSIGNMENT}(?=[ \t]*(?:#|$))",
    re.MULTILINE,
)
END = ";#\2"


@dataclass(slots=True)
class ShellText:
    """A text and its syntax tree, whose nodes count in bytes of UTF-8."""

    source: bytes
    root: Node

    def of(self, node: Node) -> str:
        """Return the text of a node."""
        return self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> str:
        """Return the text between two bytes."""
        return self.source[start:end].decode(errors="replace").replace(BLANK, " ").replace(END, "")


def parsed(text: str) -> ShellText | None:
    """Return a text with its tree, which has error nodes where it is no shell text; None if parsing takes too long."""
    from tree_sitter import Parser

    text = ESCAPED_BLANK.sub(lambda match: match[0].replace(" ", BLANK), text[:MOST_CHARACTERS])
    source = ASSIGNMENTS.sub(lambda match: match[0] + END, text).encode(errors="replace")
    budget = _Budget(source)
    try:
        tree = Parser(_bash()).parse(budget.read, progress_callback=budget.is_spent)
    except ValueError:
        return None
    return None if budget.reads > MOST_READS else ShellText(source, tree.root_node)


@cache
def _bash() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


@dataclass(slots=True)
class _Budget:
    source: bytes
    reads: int = 0
    steps: int = 0

    def read(self, offset: int, _point: Point) -> bytes:
        """Return the source from there on, its end once too much was read."""
        self.reads += 1
        return b"" if self.reads > MOST_READS else self.source[offset : offset + CHUNK_BYTES]

    def is_spent(self, _offset: int, is_mending: bool) -> bool:
        """Count a step; return whether the parser is to give up."""
        self.steps += STEPS_WHILE_MENDING if is_mending else 1
        return self.steps > MOST_STEPS or self.reads > MOST_READS
