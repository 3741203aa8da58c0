from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from plimsoll.cli.request_files import (
    UnreadableRequest,
    merged,
    model_reference,
    parsed,
    read_request,
    set_field,
)


def test_json_and_yaml_say_the_same(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"model": "m", "training": {"tokens": 1.5e12}}')
    (tmp_path / "a.yaml").write_text("model: m\ntraining: {tokens: 1.5e12}\n")
    expected = {"model": "m", "training": {"tokens": 1.5e12}}
    assert read_request(tmp_path / "a.json") == read_request(tmp_path / "a.yaml") == expected


@pytest.mark.parametrize(
    ("text", "value"), [("1e9", 1e9), ("-2.5E-3", -2.5e-3), ("12", 12), ("1.2.3", "1.2.3"), ("a", "a")]
)
def test_numbers_are_read_as_yaml_1_2_reads_them(text: str, value: object):
    assert parsed(f"x: {text}", of="it") == {"x": value}


def test_a_dash_reads_the_standard_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"model": "m"}'))
    assert read_request(Path("-")) == {"model": "m"}


def test_without_a_file_the_request_is_empty():
    assert read_request(None) == {}


@pytest.mark.parametrize("content", [b"- a\n- b\n", b"a: [", b"\xff\xfe\x00", None])
def test_what_is_no_request_is_refused_by_name(tmp_path: Path, content: bytes | None):
    file = tmp_path / "request.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UnreadableRequest, match=r"request\.yaml"):
        read_request(file)


def test_options_win_over_the_file_and_assignments_over_both():
    request = merged(
        {"training": {"sequence_length": 1, "tokens": 5}},
        {"training.sequence_length": 2, "layout.zero_stage": 3},
        ["layout.zero_stage=1", "training.evaluation={samples: 4}"],
        model="m",
        on_server=False,
    )
    assert request == {
        "model": "m",
        "training": {"sequence_length": 2, "tokens": 5, "evaluation": {"samples": 4}},
        "layout": {"zero_stage": 1},
    }


@pytest.mark.parametrize("assignment", ["layout", "=3"])
def test_an_assignment_without_a_field_or_a_value_is_refused(assignment: str):
    with pytest.raises(UnreadableRequest, match="path=value"):
        merged({}, {}, [assignment], model=None, on_server=False)


def test_a_plain_value_gives_way_to_an_object_and_a_list_does_not():
    request = {"model": "m", "compare": []}
    set_field(request, "model.hub", "a/b")
    assert request["model"] == {"hub": "a/b"}
    with pytest.raises(UnreadableRequest, match="compare is a list"):
        set_field(request, "compare.zero_stage", 1)


def test_a_config_is_read_here_and_a_folder_is_looked_for_where_the_answer_is_made(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert model_reference(str(tmp_path / "config.json"), on_server=True) == {"config": {"model_type": "llama"}}
    assert model_reference("./here", on_server=True) == {"path": "./here"}
    assert model_reference(str(tmp_path), on_server=False) == {"path": str(tmp_path.resolve())}
    assert model_reference("llama-3.1-8b", on_server=False) == "llama-3.1-8b"
