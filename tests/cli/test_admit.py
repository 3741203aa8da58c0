from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from plimsoll.cli.main import app
from tests.service.admission.reviews import a_container, an_object

SMALL = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192")
LARGE = ("--model", "Qwen/Qwen2.5-72B-Instruct", "-tp", "2")


def admit(tmp_path: Path, *containers: dict) -> tuple[int, str]:
    manifests = [
        {"apiVersion": "apps/v1", "kind": "Deployment", **an_object("Deployment", container)}
        for container in containers
    ]
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all([{"apiVersion": "v1", "kind": "ConfigMap"}, *manifests]))
    ended = CliRunner().invoke(app, ["admit", "-f", str(file)])
    return ended.exit_code, ended.output


@pytest.mark.parametrize(
    ("containers", "code", "told"),
    [
        ([a_container(*SMALL)], 0, "Deployment chat: admitted"),
        ([a_container(*SMALL), a_container(*LARGE, gpus=2)], 1, "Deployment chat: refused"),
        ([a_container("--model", "nobody/knows")], 2, "did not judge this"),
        ([a_container("--model", "nobody/knows"), a_container(*LARGE, gpus=2)], 1, "refused"),
        ([], 2, "nothing in it starts pods"),
    ],
)
def test_the_exit_code_is_the_worst_verdict(tmp_path, containers, code: int, told: str):
    exit_code, output = admit(tmp_path, *containers)
    assert exit_code == code
    assert told in output


def test_a_manifest_may_be_piped_in():
    text = yaml.safe_dump(
        {"apiVersion": "apps/v1", "kind": "Deployment", **an_object("Deployment", a_container(*SMALL))}
    )
    ended = CliRunner().invoke(app, ["admit", "-f", "-"], input=text)
    assert (ended.exit_code, "Deployment chat: admitted" in ended.output) == (0, True)


@pytest.mark.parametrize("kind", ["List", "DeploymentList"])
def test_a_lists_objects_are_judged_one_by_one(kind: str):
    items = [
        {"apiVersion": "apps/v1", "kind": "Deployment", **an_object("Deployment", container)}
        for container in (a_container(*SMALL), a_container(*LARGE, gpus=2))
    ]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": kind, "items": items})
    ended = CliRunner().invoke(app, ["admit", "-f", "-"], input=text)
    assert (ended.exit_code, ended.output.count("Deployment chat: ")) == (1, 2)


@pytest.mark.parametrize("policy", [b"default = 5", b"[", b"\xff", None])
def test_a_policy_that_cannot_be_read_is_no_verdict(tmp_path, policy):
    file = tmp_path / "policy.toml"
    if policy is not None:
        file.write_bytes(policy)
    ended = CliRunner().invoke(app, ["admit", "-f", "-", "--policy", str(file)], input="{}")
    assert ended.exit_code == 2


@pytest.mark.parametrize("content", [b"a: [", b"[" * 5000, b"a: 2001-13-99", b"\xff\xfe\x00", None])
def test_a_file_that_cannot_be_read_is_not_judged(tmp_path, content):
    file = tmp_path / "broken.yaml"
    if content is not None:
        file.write_bytes(content)
    assert CliRunner().invoke(app, ["admit", "-f", str(file)]).exit_code == 2


def test_a_config_map_in_the_same_file_is_read(tmp_path):
    container = a_container("--model", "$(MODEL)", "-tp", "2", gpus=2)
    container["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    config_map = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "serving"},
        "data": {"MODEL": "Qwen/Qwen2.5-72B-Instruct"},
    }  # fmt: skip
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", **an_object("Deployment", container)}
    file = tmp_path / "list.yaml"
    for items, code in (([config_map, deployment], 1), ([deployment], 2)):
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
        ended = CliRunner().invoke(app, ["admit", "-f", str(file)])
        assert ended.exit_code == code
    assert "Not read: ConfigMap settings (it is not in the file)" in ended.output
