"""A kube-apiserver built from Debian's source package, and Debian's etcd, kept in a cache.

Debian 12 has Kubernetes 1.20.2 as source and no kube-apiserver as a package; Go 1.19 and etcd come from its packages,
unpacked and not installed, from wherever this machine's apt has its packages. apt is given folders of its own, so that
nothing of the machine changes; no root is needed.
Takes some ten minutes on two idle cores, 3 GB of disk while it builds and 130 MB for good.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "plimsoll" / "e2e-kubernetes"
PROGRAMS = ("kube-apiserver", "etcd")
APT = Path("/etc/apt")
PACKAGES = ("golang-1.19-go", "golang-1.19-src", "etcd-server")
# The build copies what it made by `rsync -pc SOURCE FOLDER`, and asks nothing else of rsync.
RSYNC = '#!/bin/sh\nexec cp -p "$2" "$3"\n'


def programs() -> dict[str, Path]:
    """Return the paths of the programs, built first where the cache lacks them."""
    found = {name: CACHE / name for name in PROGRAMS}
    if not all(path.exists() for path in found.values()):
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _build(Path(folder))
    return found


def _build(folder: Path) -> None:
    _fetch(folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg", "-x", package.name, "root"], folder)
    _run(["dpkg-source", "-x", next(folder.glob("kubernetes_*.dsc")).name, "src"], folder)
    tools = folder / "bin"
    tools.mkdir()
    (tools / "rsync").write_text(RSYNC)
    (tools / "rsync").chmod(0o755)
    go = folder / "root" / "usr" / "lib" / "go-1.19"
    env = {
        **os.environ,
        "GOROOT": str(go),
        "GOPATH": str(folder / "gopath"),
        "GOCACHE": str(folder / "gocache"),
        "GOPROXY": "off",
        "GOSUMDB": "off",
        "PATH": f"{tools}:{go / 'bin'}:{os.environ['PATH']}",
        "KUBE_GIT_VERSION": "v1.20.2",
        "KUBE_GIT_COMMIT": "debian",
        "KUBE_GIT_TREE_STATE": "clean",
    }
    _run(["nice", "-n", "10", "make", "WHAT=cmd/kube-apiserver"], folder / "src", env)
    shutil.copy2(next((folder / "src" / "_output").rglob("bin/linux/*/kube-apiserver")), CACHE / "kube-apiserver")
    shutil.copy2(folder / "root" / "usr" / "bin" / "etcd", CACHE / "etcd")


def _fetch(folder: Path) -> None:
    for name in ("lists/partial", "archives/partial", "sources"):
        (folder / "apt" / name).mkdir(parents=True)
    _write_sources(folder / "apt" / "sources")
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": folder / "apt" / "sources",
        "Dir::State::Lists": folder / "apt" / "lists",
        "Dir::Cache": folder / "apt",
    }
    told = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", *told, "update"], folder)
    _run(["apt-get", *told, "download", *PACKAGES], folder)
    _run(["apt-get", *told, "source", "--download-only", "kubernetes"], folder)


def _write_sources(folder: Path) -> None:
    """Write the machine's own package sources, each with its source packages beside the built ones."""
    for path in (APT / "sources.list", *(APT / "sources.list.d").glob("*")):
        if path.suffix == ".sources":
            text = re.sub(r"^Types: deb$", "Types: deb deb-src", path.read_text(), flags=re.MULTILINE)
        elif path.suffix == ".list" and path.is_file():
            text = re.sub(r"^deb (.*)$", r"deb \1\ndeb-src \1", path.read_text(), flags=re.MULTILINE)
        else:
            continue
        (folder / path.name).write_text(text)


def _run(words: list[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
    print("+", " ".join(words[:6]), flush=True)
    subprocess.run(words, cwd=folder, env=env, check=True)
