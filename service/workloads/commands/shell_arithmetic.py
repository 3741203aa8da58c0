"""`$((…))` of a shell, where all that it counts with is known.

Source: POSIX.1-2024, Shell Command Language, 2.6.4 (arithmetic expansion); whole numbers, division towards zero.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

NAME, NUMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), re.compile(r"-?(?:0|[1-9][0-9]{0,9})")
# `i++`, `--i`, `i = 2` and `i += 2`, but not `i == 2`.
ASSIGNED = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&^|]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII
)
# A launch script counts ranks and nodes: nothing larger is meant.
MOST_CHARACTERS, MOST_VALUE = 200, 2**31
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right),
    ast.Mod: lambda left, right: left - int(left / right) * right,
}


def assigned_in_arithmetic(text: str) -> list[str]:
    """Return the names that arithmetic gives other values."""
    return [match[1] or match[2] for match in ASSIGNED.finditer(text)]


def arithmetic_value(text: str, value_of: Callable[[str], object]) -> int | None:
    """Return what arithmetic comes to, its `$NAME` replaced already; None where it takes what is not known."""
    if len(text) > MOST_CHARACTERS:
        return None
    expression = NAME.sub(lambda name: _number(name[0], value_of(name[0])), text).strip()
    try:
        value = _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None
    return value if abs(value) < MOST_VALUE else None


def _number(name: str, value: object) -> str:
    """Return a name's number in brackets, the name where it holds none."""
    return f"({value})" if isinstance(value, str) and NUMBER.fullmatch(value) else name


def _value(node: ast.expr) -> int:
    """Return the value of sums and products of whole numbers; raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < MOST_VALUE:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value = OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        if abs(value) < MOST_VALUE:
            return value
    raise ValueError("no sum or product of whole numbers")
