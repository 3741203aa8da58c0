"""etcd, kube-apiserver and Plimsoll on loopback, each ended with the block that started it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

TOKEN = "e2e"  # noqa: S105
START_SECONDS = 120.0
POLICY = "[default]\nmode = 'enforce'\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running API server, and the folder with Plimsoll's certificate."""

    client: httpx.Client
    folder: Path
    webhook_port: int


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def cluster(programs: dict[str, Path], folder: Path) -> Iterator[Cluster]:
    """Run etcd and the API server; yield a client that may do everything."""
    etcd_port, peer_port, port = free_port(), free_port(), free_port()
    _certificate(folder, "webhook")
    _certificate(folder, "accounts")
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    etcd_url = f"http://127.0.0.1:{etcd_port}"
    etcd = [
        str(programs["etcd"]), "--data-dir", str(folder / "etcd"), "--listen-client-urls", etcd_url,
        "--advertise-client-urls", etcd_url, "--listen-peer-urls", f"http://127.0.0.1:{peer_port}",
    ]  # fmt: skip
    server = [
        str(programs["kube-apiserver"]), "--etcd-servers", etcd_url, "--bind-address", "127.0.0.1",
        "--advertise-address", "127.0.0.1", "--secure-port", str(port), "--cert-dir", str(folder / "apiserver"),
        "--token-auth-file", str(folder / "tokens.csv"), "--authorization-mode", "AlwaysAllow",
        "--service-cluster-ip-range", "10.0.0.0/24", "--disable-admission-plugins", "ServiceAccount",
        "--service-account-issuer", "https://e2e.invalid", "--service-account-key-file", str(folder / "accounts.key"),
        "--service-account-signing-key-file", str(folder / "accounts.key"),
    ]  # fmt: skip
    headers = {"authorization": f"Bearer {TOKEN}"}
    # Its certificate is made by itself when it starts, on this machine, for this run.
    client = httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=False, headers=headers, timeout=40)  # noqa: S501
    with client, _running(etcd, folder / "etcd.log"), _running(server, folder / "apiserver.log"):
        _wait(lambda: client.get("/readyz").is_success and client.get("/api/v1/namespaces/default").is_success)
        yield Cluster(client=client, folder=folder, webhook_port=free_port())


@contextlib.contextmanager
def plimsoll(found: Cluster) -> Iterator[None]:
    """Run the webhook with TLS, and with a database that is not there: it needs none to answer."""
    folder, port = found.folder, found.webhook_port
    (folder / "policy.toml").write_text(POLICY)
    (folder / "token").write_text(TOKEN)
    env = {
        **os.environ,
        "PLIMSOLL_DATABASE_URL": f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/nothing",
        "PLIMSOLL_PORT": str(port),
        "PLIMSOLL_ADMISSION_POLICY_FILE": str(folder / "policy.toml"),
        "PLIMSOLL_TLS_CERTIFICATE_FILE": str(folder / "webhook.crt"),
        "PLIMSOLL_TLS_KEY_FILE": str(folder / "webhook.key"),
        # The API server's own certificate, with the authority it made for it.
        "PLIMSOLL_KUBERNETES_API_URL": str(found.client.base_url),
        "PLIMSOLL_KUBERNETES_CA_FILE": str(folder / "apiserver" / "apiserver.crt"),
        "PLIMSOLL_KUBERNETES_TOKEN_FILE": str(folder / "token"),
        "PLIMSOLL_LOG_LEVEL": "error",
    }
    trust = ssl.create_default_context(cafile=str(folder / "webhook.crt"))
    with (
        _running([sys.executable, "-m", "plimsoll.api"], folder / "plimsoll.log", env),
        httpx.Client(verify=trust) as client,
    ):
        _wait(lambda: client.get(f"https://127.0.0.1:{port}/healthz").is_success)
        yield


@contextlib.contextmanager
def _running(words: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=env)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if is_there():
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing answered within {START_SECONDS:g} s")


def _certificate(folder: Path, name: str) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise FileNotFoundError("openssl makes the certificates, and is not installed")
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([openssl, "req", "-x509", *key, *subject, "-out", f"{name}.crt"], cwd=folder, check=True,
                   capture_output=True)  # fmt: skip
