"""Which lines of code name a stack, an engine or a model family: strings, names, attributes and imports, not prose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def namings(room: str, words: tuple[str, ...], *, own: re.Pattern[str], whole: bool = False) -> Iterator[str]:
    """Yield "path:line: what" for each use of a word in the code of a room, but for files whose path is the word's own.

    Docstrings and comments may name whom they are about. `own` matches the paths of the folders that varying things
    have to themselves. Where words are found within others, as short names of families would be, `whole` ones alone
    count.
    """
    named = f"(?:{'|'.join(map(re.escape, words))})"
    word = re.compile(f"^{named}$") if whole else re.compile(f"(?<![a-z]){named}", re.IGNORECASE)
    for path in sorted((ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if own.search(name) is None:
            for line, text in _code_words(path):
                if word.search(text):
                    yield f"{name}:{line}: {text[:80]}"


@cache
def _code_words(path: Path) -> tuple[tuple[int, str], ...]:
    return tuple(_words_of(ast.parse(path.read_text(encoding="utf-8"))))


def _words_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string, name, attribute and imported module; docstrings are no code."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield node.lineno, text
            case ast.Name(id=text) | ast.Attribute(attr=text):
                yield node.lineno, text
            case ast.ImportFrom(module=str(module)):
                yield node.lineno, module
                yield from ((node.lineno, alias.name) for alias in node.names)
            case _:
                continue
