"""Help of a command with many options is in groups, and no command's summary is cut."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from plimsoll.cli.main import EXAMPLE_ASSIGNMENTS, app
from plimsoll.cli.request_options import HARDWARE_PANEL, JOB_PANEL, LAYOUT_PANEL


def shown(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "--help"], prog_name="plimsoll").output


def test_options_stand_under_their_panels_and_those_of_none_first():
    said = shown("plan", "train")
    titles = ("Arguments", "Options", JOB_PANEL, HARDWARE_PANEL, LAYOUT_PANEL)
    places = [said.index(f"\n{title}:") for title in titles]
    assert places[:2] == sorted(places[:2])
    assert min(places[2:]) > places[1]
    assert said.index("--gpus ") > said.index("\nHardware:")


def test_no_command_is_described_in_half_a_sentence():
    assert "..." not in shown().partition("\nCommands:")[2]


@pytest.mark.parametrize("command", [("plan", "train"), ("plan", "infer"), ("quantize",)])
def test_the_field_that_set_is_shown_with_is_one_that_the_command_takes(command: tuple[str, ...]):
    example = EXAMPLE_ASSIGNMENTS[command[-1]]
    assert example in " ".join(shown(*command).split())
    # Refused for what is missing, or answered; never for the field of the example.
    said = CliRunner().invoke(app, [*command, "--set", example], prog_name="plimsoll").output
    assert "is not a field" not in said
    assert "is missing" in said
