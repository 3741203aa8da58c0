"""Register the webhook over TLS with a real API server, see each answer arrive, and time a thousand creates.

python -m benchmarks.e2e_kubernetes [creates]
"""

from __future__ import annotations

import base64
import datetime
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.e2e_kubernetes.cluster import Cluster, cluster, plimsoll
from benchmarks.e2e_kubernetes.programs import programs

CREATES = 1_000
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
SMALL = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192")
# 67.7 GiB of weights on each of two GPUs of 79.2 GiB.
LARGE = ("--model", "Qwen/Qwen2.5-72B-Instruct", "--tensor-parallel-size", "2")
LARGE_GPUS = 2


def main() -> int:
    """Run everything; return 0 where each answer was what it must be."""
    creates = int(sys.argv[1]) if len(sys.argv) > 1 else CREATES
    found = programs()
    with tempfile.TemporaryDirectory() as folder, cluster(found, Path(folder)) as server:
        today = datetime.datetime.now(tz=datetime.UTC).date()
        print(f"{_version(server)}, {today}, {os.cpu_count()} cores, {platform.machine()}")
        before = _create_seconds(server, "without", creates)
        with plimsoll(server):
            _register(server, "Fail")
            failures = _answers(server)
            behind = _create_seconds(server, "behind", creates)
        failures += _away(server)
    _print_times(before, behind)
    print("every answer as it must be" if not failures else "\n".join(failures))
    return 1 if failures else 0


def _version(server: Cluster) -> str:
    return str(server.client.get("/version").json()["gitVersion"])


def _register(server: Cluster, failure_policy: str) -> None:
    """Register the webhook anew; the API server takes a moment to follow."""
    bundle = base64.b64encode((server.folder / "webhook.crt").read_bytes()).decode()
    rule = {
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "scope": "Namespaced",
        "operations": ["CREATE", "UPDATE", "DELETE"],
    }  # fmt: skip
    webhook = {
        "name": "workloads.plimsoll.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "failurePolicy": failure_policy,
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.webhook_port}/admission/validate",
            "caBundle": bundle,
        },
        "rules": [rule],
    }
    server.client.delete(f"{WEBHOOKS}/plimsoll")
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "plimsoll"},
        "webhooks": [webhook],
    }
    server.client.post(WEBHOOKS, json=body).raise_for_status()
    time.sleep(3)


def _deployment(name: str, args: tuple[str, ...], *, gpus: int = 1, selector: bool = True) -> dict[str, Any]:
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.19.0",
        "args": list(args),
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    labels = {"app": name}
    spec = {"containers": [container], **({"nodeSelector": H100} if selector else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def _by_config_map(name: str) -> dict[str, Any]:
    """Return a deployment whose model stands in a ConfigMap."""
    deployment = _deployment(f"by-{name}", ("--model", "$(MODEL)", *LARGE[2:]), gpus=LARGE_GPUS)
    deployment["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": name}}]
    return deployment


def _answers(server: Cluster) -> list[str]:
    """Return what of the answers is not as it must be."""
    client = server.client
    large = _deployment("large", LARGE, gpus=LARGE_GPUS)
    fits = client.post(DEPLOYMENTS, json=_deployment("small", SMALL))
    refused = client.post(DEPLOYMENTS, json=large)
    warned = client.post(DEPLOYMENTS, json=_deployment("unread", SMALL, selector=False))
    dry = client.post(f"{DEPLOYMENTS}?dryRun=All", json=_deployment("dry", SMALL))
    dry_refused = client.post(f"{DEPLOYMENTS}?dryRun=All", json=large)
    grown = _deployment("small", LARGE, gpus=LARGE_GPUS)
    updated = client.put(f"{DEPLOYMENTS}/small", json=grown)
    deleted = client.delete(f"{DEPLOYMENTS}/small")
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"MODEL": LARGE[1]}}
    client.post(CONFIG_MAPS, json=settings).raise_for_status()
    by_config_map = client.post(DEPLOYMENTS, json=_by_config_map("settings"))
    by_none = client.post(DEPLOYMENTS, json=_by_config_map("none"))
    message = refused.json().get("message", "")
    checks = {
        "what fits is created": fits.status_code == httpx.codes.CREATED and "warning" not in fits.headers,
        "what does not fit is refused": refused.status_code == httpx.codes.FORBIDDEN,
        "with the numbers": "67.7 GiB of weights" in message and "fits with" in message,
        "what cannot be read is created": warned.status_code == httpx.codes.CREATED,
        "with a warning": "no node selector" in warned.headers.get("warning", ""),
        "a dry run is answered": dry.status_code == httpx.codes.CREATED,
        "and nothing is kept of it": client.get(f"{DEPLOYMENTS}/dry").status_code == httpx.codes.NOT_FOUND,
        "a dry run is refused alike": dry_refused.status_code == httpx.codes.FORBIDDEN,
        "an update to what does not fit is refused": updated.status_code == httpx.codes.FORBIDDEN,
        "a deletion passes": deleted.is_success,
        "a model that a ConfigMap names is refused": by_config_map.status_code == httpx.codes.FORBIDDEN
        and "67.7 GiB of weights" in by_config_map.json().get("message", ""),
        "a ConfigMap that is not there is a warning": by_none.status_code == httpx.codes.CREATED
        and "there is none of that name" in by_none.headers.get("warning", ""),
    }
    print(f"refused with: {message}")
    return _told(checks)


def _away(server: Cluster) -> list[str]:
    """Return what is not as it must be once the webhook is down, under both failure policies."""
    closed = server.client.post(DEPLOYMENTS, json=_deployment("closed", SMALL))
    _register(server, "Ignore")
    opened = server.client.post(DEPLOYMENTS, json=_deployment("open", LARGE, gpus=LARGE_GPUS))
    return _told({
        "webhook down, policy Fail: refused": closed.status_code == httpx.codes.INTERNAL_SERVER_ERROR
        and "failed calling webhook" in closed.json().get("message", ""),
        "webhook down, policy Ignore: created": opened.status_code == httpx.codes.CREATED,
    })  # fmt: skip


def _told(checks: dict[str, bool]) -> list[str]:
    for name, is_so in checks.items():
        print(f"  {'ok' if is_so else 'NO'}  {name}")
    return [f"not so: {name}" for name, is_so in checks.items() if not is_so]


def _create_seconds(server: Cluster, name: str, creates: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    seconds = []
    for number in range(creates):
        body = _deployment(f"{name}-{number}", SMALL)
        started = time.perf_counter()
        response = server.client.post(DEPLOYMENTS, json=body)
        seconds.append(time.perf_counter() - started)
        response.raise_for_status()
    return np.array(seconds)


def _print_times(before: np.ndarray[Any, Any], behind: np.ndarray[Any, Any]) -> None:
    for name, seconds in (("without the webhook", before), ("behind the webhook", behind)):
        p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
        print(f"{len(seconds):,} creates {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


if __name__ == "__main__":
    raise SystemExit(main())
