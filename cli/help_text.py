"""Help of a command with many options, in groups and in plain text.

Typer's own groups are boxes that Rich draws, and loading Rich takes as long as everything else that help needs.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OTHERS = "Options"


class GroupedCommand(TyperCommand):
    """A command whose help lists its options under the panel that each is declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options, those of no panel first."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], OTHERS: []}
        for declared in self.get_params(ctx):
            record = declared.get_help_record(ctx)
            if record is None:
                continue
            panel = getattr(declared, "rich_help_panel", None) or OTHERS
            title = "Arguments" if declared.param_type_name == "argument" else panel
            groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
