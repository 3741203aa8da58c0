"""Whether a step is one that a running previous version survives: it adds, and changes nothing that is there.

Read from the step's source. What a step takes away must name, as `unread_since`, the
release from which on no version reads it: docs/reliability.md has the rule.
"""

from __future__ import annotations

import ast
import re

UNREAD_SINCE = "unread_since"
# Of Alembic's own operations; our steps are written in SQL.
ADDING_OPERATIONS = frozenset({"execute", "create_table", "create_index", "get_bind"})

_CREATE_TABLE = re.compile(r"create table (\w+)")
_CREATE_INDEX = re.compile(r"create index \w+ on \w+")
_CREATE_UNIQUE_INDEX = re.compile(r"create unique index \w+ on (\w+)")
_INSERT = re.compile(r"insert into (\w+) ")
_ALTER_TABLE = re.compile(r"alter table (\w+) (.*)")
_ADD_COLUMN = re.compile(r"add column \w+ .*")
_COMMENT = re.compile(r"comment on ")


def violations(source: str) -> tuple[str, ...]:
    """Return what in a migration's `upgrade` may disturb an older process; nothing for a step that only adds."""
    module = ast.parse(source)
    if UNREAD_SINCE in _constants(module):
        return ()
    upgrade = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "upgrade")
    found = [f"op.{name} does more than add" for name in _operations(upgrade) if name not in ADDING_OPERATIONS]
    statements: list[str] = []
    for call in ast.walk(upgrade):
        if isinstance(call, ast.Call):
            for argument in call.args:
                text = _text(argument, module)
                if text is None:
                    found.append(f"{ast.unparse(argument)} is no SQL that can be read here")
                else:
                    statements += _statements(text)
    made = {match[1] for statement in statements if (match := _CREATE_TABLE.match(statement))}
    return (
        *found,
        *(f"{statement[:80]!r} does more than add" for statement in statements if not _adds(statement, made)),
    )


def _adds(statement: str, made: set[str]) -> bool:
    """Return whether a statement leaves alone what was there; `made` are the tables of the same step."""
    if _CREATE_TABLE.match(statement) or _CREATE_INDEX.match(statement) or _COMMENT.match(statement):
        return True
    unique = _CREATE_UNIQUE_INDEX.match(statement)
    if unique is not None:
        # Rows that an older process writes might break it.
        return unique[1] in made
    inserted = _INSERT.match(statement)
    if inserted is not None:
        # No older process knows the table.
        return inserted[1] in made
    altered = _ALTER_TABLE.match(statement)
    if altered is None:
        return False
    changes = _outside_brackets(altered[2])
    return altered[1] in made or all(_is_harmless_column(change) for change in changes)


def _is_harmless_column(change: str) -> bool:
    # An older process does not name the column: it must do without a value.
    return bool(_ADD_COLUMN.fullmatch(change)) and ("not null" not in change or "default" in change)


def _outside_brackets(text: str) -> list[str]:
    """Return the parts between commas, those in brackets not counted."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _statements(text: str) -> list[str]:
    without_comments = re.sub(r"--[^\n]*", "", text)
    return [" ".join(part.lower().split()) for part in without_comments.split(";") if part.strip()]


def _constants(module: ast.Module) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _text(argument: ast.expr, module: ast.Module) -> str | None:
    if isinstance(argument, ast.Name):
        argument = _constants(module).get(argument.id, argument)
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def _operations(function: ast.FunctionDef) -> list[str]:
    return [
        node.func.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "op"
    ]
