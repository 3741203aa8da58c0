from __future__ import annotations

import os

import pytest

from plimsoll.service.admission.policy import InvalidPolicy, Policies, read_policies

TEXT = """
[default]
gpu = "h100-sxm-80gb"

[namespaces.research]
mode = "warn"
"""


def test_a_namespaces_entries_stand_over_the_defaults():
    policies = read_policies(TEXT)
    assert (policies.of("research").mode, policies.of("research").gpu) == ("warn", "h100-sxm-80gb")
    assert (policies.of("other").mode, policies.of("other").on_error) == ("enforce", "allow")


def test_without_a_file_everything_is_enforced():
    assert Policies(None).of("any").mode == "enforce"


@pytest.mark.parametrize(
    "text",
    ["mode = ", "[default]\nmode = 'strict'", "[default]\nmod = 'warn'", "[namespaces.a]\nmode = 1", "[other]\na = 1"],
)
def test_a_file_that_makes_no_sense_stops_the_start(text: str, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(InvalidPolicy):
        Policies(file)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(TEXT)
    policies = Policies(file)
    changed_at = file.stat().st_mtime_ns
    for later, (text, mode) in enumerate(
        [("[default]\nmode = 'off'", "off"), ("broken =", "off"), (TEXT, "enforce")], 1
    ):
        file.write_text(text)
        os.utime(file, ns=(changed_at, changed_at + later * 10**9))
        assert policies.of("other").mode == mode
    file.unlink()
    assert policies.of("research").mode == "warn"
