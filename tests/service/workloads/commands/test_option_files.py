from __future__ import annotations

import json

import pytest

from plimsoll.service.workloads.commands.option_files import (
    MOST_FILE_CHARACTERS,
    MOST_OPTIONS,
    OptionsFileNotRead,
    option_file,
    option_words,
)
from plimsoll.service.workloads.objects.pods import Container
from tests.service.admission.reviews import a_plain_container


def holding(text: str, *, folder: str | None = None) -> Container:
    definition = {} if folder is None else {"workingDir": folder}
    return a_plain_container(files={"/etc/o/x.yaml": text}, definition=definition)


def test_options_below_an_option_stand_behind_a_dot():
    words = option_words("/etc/o/x.yaml", holding("a-b: 1\nswitch: true\nempty:\nbelow: {name: text, list: [1]}"))
    assert words == ("--a-b=1", "--switch=true", "--below=", "--below.name=text", "--below.list=")


@pytest.mark.parametrize("path", ["/etc/o/x.yaml", "x.yaml", "./x.yaml", "../o/x.yaml"])
def test_a_path_is_read_from_the_working_folder(path: str):
    assert option_file(path, holding(json.dumps({"a": 1}), folder="/etc/o")) == {"a": 1}


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("/other.yaml", "a: 1", "is not in the object"),
        ("x.yaml", "a: 1", "is not in the object"),
        ("/etc/o/x.yaml", "a: [", "neither YAML nor JSON"),
        ("/etc/o/x.yaml", "{" * 5000, "neither YAML nor JSON"),
        ("/etc/o/x.yaml", "[" * 5000, "neither YAML nor JSON"),
        ("/etc/o/x.yaml", "text", "no options by name"),
        ("/etc/o/x.yaml", "a: &a {b: 1}\nc: {<<: *a}", "merges parts"),
        ("/etc/o/x.yaml", "#" * (MOST_FILE_CHARACTERS + 1), "larger than an option file"),
    ],
)
def test_what_is_no_option_file_says_why(path: str, text: str, told: str):
    with pytest.raises(OptionsFileNotRead, match=told):
        option_file(path, holding(text))


@pytest.mark.parametrize(("count", "is_read"), [(MOST_OPTIONS, True), (MOST_OPTIONS + 1, False)])
def test_a_file_has_so_many_options_and_no_more(count: int, is_read: bool):
    text = json.dumps({f"o{number}": 1 for number in range(count)})
    if is_read:
        assert len(option_words("/etc/o/x.yaml", holding(text))) == count
    else:
        with pytest.raises(OptionsFileNotRead, match="more options"):
            option_words("/etc/o/x.yaml", holding(text))


def test_aliases_that_multiply_end_at_the_most_options():
    # Nine names for each of nine names, seven deep: nearly five million options.
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{" + ", ".join(f"k{k}: *a{n - 1}" for k in range(9)) + "}" for n in range(1, 8)]
    with pytest.raises(OptionsFileNotRead, match="more options"):
        option_words("/etc/o/x.yaml", holding("\n".join(lines)))
