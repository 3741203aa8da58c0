"""The component that lets the webhook read ConfigMaps: valid, without more rights, of one mind with the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from plimsoll.service.ground.settings import PREFIX, Settings
from tests.deploy.test_kubernetes import named
from tests.service.launch.published_schemas import check_kubernetes

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "components" / "config-maps"
COMPONENT = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
ACCESS = {document["kind"]: document for document in yaml.safe_load_all((FOLDER / "access.yaml").read_text())}
PATCH: dict[str, Any] = yaml.safe_load((FOLDER / "token.yaml").read_text())


def test_every_file_is_named():
    named_files = {*COMPONENT["resources"], *(patch["path"] for patch in COMPONENT["patches"]), "kustomization.yaml"}
    assert {file.name for file in FOLDER.iterdir()} == named_files


def test_the_objects_follow_kubernetes_schema():
    for document in ACCESS.values():
        check_kubernetes(document)


def test_single_config_maps_and_runtimes_are_all_it_may_read():
    runtimes = ["trainingruntimes", "clustertrainingruntimes"]
    assert ACCESS["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {"apiGroups": ["trainer.kubeflow.org"], "resources": runtimes, "verbs": ["get"]},
    ]
    binding = ACCESS["ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == ACCESS["ClusterRole"]["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["name"] == ACCESS["ServiceAccount"]["metadata"]["name"]
    assert subject["namespace"] == COMPONENT["namespace"]


def test_the_patch_is_of_the_deployment_that_is_there_and_of_its_container():
    deployment = named("Deployment", PATCH["metadata"]["name"])
    spec = PATCH["spec"]["template"]["spec"]
    names = [container["name"] for container in deployment["spec"]["template"]["spec"]["containers"]]
    assert [container["name"] for container in spec["containers"]] == names
    assert spec["serviceAccountName"] == ACCESS["ServiceAccount"]["metadata"]["name"]
    assert spec["automountServiceAccountToken"] is True


def test_the_setting_is_one():
    ((entry,),) = (container["env"] for container in PATCH["spec"]["template"]["spec"]["containers"])
    field = entry["name"].removeprefix(PREFIX).lower()
    assert str(getattr(Settings(**{field: entry["value"]}), field)) == entry["value"]
