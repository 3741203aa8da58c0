"""What the images and the locks have to be, read from the files that make them; no Docker is needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-worker.lock")
# Images of other projects, which have their own users.
FOREIGN = {"postgres", "proxy"}


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the Dockerfile's instructions by stage, each stage with those of the one it builds upon."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in text.splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = list(found.get(base, []))
        elif instruction.isupper():
            found[name].append((instruction, rest))
    return found


@pytest.mark.parametrize("image", ["api", "worker"])
def test_an_image_runs_as_nobody_in_particular(image: str):
    users = [rest for instruction, rest in stages()[image] if instruction == "USER"]
    # A number, so that Kubernetes can see that it is not root (runAsNonRoot).
    assert users
    assert int(users[-1]) > 0


def test_every_service_of_ours_has_a_file_system_that_is_only_read():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ours = {name: service for name, service in services.items() if name not in FOREIGN}
    assert ours.keys() == {"migrate", "api", "worker", "worker-gpu"}
    assert all(service["read_only"] is True and service["tmpfs"] == ["/tmp"] for service in ours.values())  # noqa: S108


def test_images_install_what_the_locks_name_and_torch_and_what_asks_for_it():
    installs = [rest for name in ("api", "build-worker") for _, rest in stages()[name] + stages()["build-api"]]
    pips = {part.strip() for rest in installs for part in rest.split("&&") if part.strip().startswith("pip install")}
    assert pips == {
        "pip install --require-hashes --requirement requirements.lock",
        "pip install --no-deps .",
        "pip install --require-hashes --requirement requirements-worker.lock",
        "pip install --index-url ${TORCH_INDEX} torch==2.13.0",
        "pip install --no-deps accelerate==1.15.0 deepspeed==0.19.8 megatron-core==0.16.1",
    }
    worker = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["worker"]
    assert "torch==2.13.0" in worker


def locked(lock: str) -> dict[str, tuple[str, int]]:
    """Return each package of a lock with its version and its number of hashes."""
    entries = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)(.*(?:\n    --hash=.*)*)", (ROOT / lock).read_text(), re.M)
    return {name: (version, rest.count("--hash=sha256:")) for name, version, rest in entries}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes_and_the_version_of_the_tests(lock: str):
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
        if "==" in line
    )  # fmt: skip
    packages = locked(lock)
    assert packages
    assert all(hashes for _, hashes in packages.values())
    assert {name: version for name, (version, _) in packages.items() if pins.get(name, version) != version} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_every_dependency_that_is_declared(lock: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["traces"]]
    names = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in declared}
    assert names <= locked(lock).keys()
