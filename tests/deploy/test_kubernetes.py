"""The manifests of `deploy/kubernetes`: valid, and of one mind with each other and with the service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plimsoll.service.admission.kinds import JUDGED_OWNERS, READ_KINDS
from plimsoll.service.admission.policy import read_policies
from plimsoll.service.ground.settings import PREFIX, Settings
from tests.service.launch.published_schemas import check_kubernetes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS = [
    document for name in KUSTOMIZATION["resources"] for document in yaml.safe_load_all((FOLDER / name).read_text())
]
COMPONENTS = ("api", "admission", "worker")


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [document for document in OBJECTS if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return found


def pod(component: str) -> dict[str, Any]:
    return named("Deployment", f"plimsoll-{component}")["spec"]["template"]["spec"]


def containers() -> Iterator[dict[str, Any]]:
    for component in COMPONENTS:
        yield from (*pod(component).get("initContainers", ()), *pod(component)["containers"])


WEBHOOK = named("ValidatingWebhookConfiguration", "plimsoll")["webhooks"][0]
OF_KUBERNETES = [document for document in OBJECTS if not document["apiVersion"].startswith("cert-manager.io/")]


def test_every_file_is_named():
    assert {file.name for file in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}


@pytest.mark.parametrize(
    "document", OF_KUBERNETES, ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_an_object_follows_kubernetes_schema(document: dict[str, Any]):
    check_kubernetes(document)


def test_the_certificate_follows_cert_managers_schema():
    from cloudcoil.models.cert_manager import v1

    for kind, model in (("Certificate", v1.Certificate), ("Issuer", v1.Issuer)):
        (document,) = [document for document in OBJECTS if document["kind"] == kind]
        read = model.model_validate(document).model_dump(mode="json", by_alias=True, exclude_none=True)
        assert read["spec"] == document["spec"]


def test_the_webhook_calls_the_service_by_its_certificates_name():
    service = WEBHOOK["clientConfig"]["service"]
    target = named("Service", service["name"])
    certificate = named("Certificate", "plimsoll-admission")
    assert service["namespace"] == KUSTOMIZATION["namespace"]
    assert service["port"] in [port["port"] for port in target["spec"]["ports"]]
    assert f"{service['name']}.{service['namespace']}.svc" in certificate["spec"]["dnsNames"]
    metadata = named("ValidatingWebhookConfiguration", "plimsoll")["metadata"]
    assert metadata["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{KUSTOMIZATION['namespace']}/{certificate['metadata']['name']}"
    }
    named("Issuer", certificate["spec"]["issuerRef"]["name"])


def test_the_webhooks_path_is_a_route():
    openapi = yaml.safe_load((ROOT / "openapi.yaml").read_text())
    assert "post" in openapi["paths"][WEBHOOK["clientConfig"]["service"]["path"]]


def test_the_process_reads_the_certificate_that_is_made():
    (volume,) = [volume for volume in pod("admission")["volumes"] if "secret" in volume]
    assert volume["secret"]["secretName"] == named("Certificate", "plimsoll-admission")["spec"]["secretName"]
    (container,) = pod("admission")["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    files = (env[f"{PREFIX}TLS_CERTIFICATE_FILE"], env[f"{PREFIX}TLS_KEY_FILE"])
    assert files == (f"{mount['mountPath']}/tls.crt", f"{mount['mountPath']}/tls.key")


@pytest.mark.parametrize("component", ["api", "admission"])
def test_a_service_finds_its_pods_and_their_port(component: str):
    service = named("Service", f"plimsoll-{component}")["spec"]
    template = named("Deployment", f"plimsoll-{component}")["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    ports = [port["name"] for container in template["spec"]["containers"] for port in container["ports"]]
    assert [port["targetPort"] for port in service["ports"]] == ports


def test_every_setting_exists():
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    told = {entry["name"] for container in containers() for entry in container["env"]}
    assert told | named("ConfigMap", "plimsoll-settings")["data"].keys() <= known


def test_the_settings_are_taken(monkeypatch: pytest.MonkeyPatch):
    values = dict(named("ConfigMap", "plimsoll-settings")["data"])
    values |= {entry["name"]: entry["value"] for entry in pod("admission")["containers"][0]["env"] if "value" in entry}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert (settings.is_on_loopback, settings.port, settings.allow_anonymous) == (False, 8443, True)


def test_the_policy_is_one():
    policies = read_policies(named("ConfigMap", "plimsoll-admission-policy")["data"]["policy.toml"])
    assert policies.of("any").mode == "warn"


def test_processes_run_without_rights():
    for component in COMPONENTS:
        assert pod(component)["securityContext"]["runAsNonRoot"] is True
        assert pod(component)["automountServiceAccountToken"] is False
    for container in containers():
        rights = container["securityContext"]
        assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
        assert rights["capabilities"] == {"drop": ["ALL"]}


def test_probes_ask_routes_that_need_no_key():
    paths = {probe["httpGet"]["path"] for c in containers() for n, probe in c.items() if n.endswith("Probe")}
    assert paths == {"/healthz", "/readyz"}


def test_every_kind_that_is_read_is_reviewed():
    # The API server names resources: a kind in lower case with an s.
    rules = {
        (group, resource) for rule in WEBHOOK["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }
    assert rules == {(group, f"{kind.lower()}s") for group, kind in READ_KINDS}


def test_what_the_judge_skips_is_skipped_before_it_is_asked():
    (condition,) = [entry for entry in WEBHOOK["matchConditions"] if entry["name"].startswith("is-not-made")]
    assert set(re.findall(r"'(\w+)'", condition["expression"])) == JUDGED_OWNERS


def test_every_workload_of_ours_has_a_network_policy():
    selected = [policy["spec"]["podSelector"]["matchLabels"] for policy in OBJECTS if policy["kind"] == "NetworkPolicy"]
    labels = [
        named("Deployment", f"plimsoll-{component}")["spec"]["selector"]["matchLabels"] for component in COMPONENTS
    ]
    assert sorted(map(str, selected)) == sorted(map(str, labels))


def test_the_budget_leaves_one_webhook_running():
    budget = named("PodDisruptionBudget", "plimsoll-admission")["spec"]
    deployment = named("Deployment", "plimsoll-admission")["spec"]
    assert budget["selector"] == deployment["selector"]
    assert budget["minAvailable"] < deployment["replicas"]
