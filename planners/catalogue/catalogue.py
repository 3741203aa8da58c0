"""Finding a model, a GPU or a cluster by any of its names."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol, TypeVar

from plimsoll.planners.catalogue.clusters import Cluster, read_cluster
from plimsoll.planners.catalogue.models import CatalogueModel, read_model
from plimsoll.planners.ground.data_files import record
from plimsoll.planners.ground.errors import UnknownCluster, UnknownGpu, UnknownModel
from plimsoll.planners.ground.hardware import Gpu

FOLDER = Path(__file__).parent
# Enough of a SHA-256 that two catalogues never share a revision (64 bits).
REVISION_DIGITS = 16


class Named(Protocol):
    """Something with an id and further names."""

    @property
    def id(self) -> str:
        """Return the id."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return the further names."""
        ...


Entry = TypeVar("Entry", bound=Named)


class Catalogue:
    """Every published model, every GPU and every cluster that a request may name.

    The files are read when first asked for and once. Entries are shared between
    all callers, which must not change the mappings inside them.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @cached_property
    def models(self) -> tuple[CatalogueModel, ...]:
        """Return all models in the order of their ids."""
        return _sorted_by_id(read_model(content) for content in self._model_files.values())

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return all GPUs in the order of their ids."""
        return _sorted_by_id(read_gpu(content) for content in self._gpu_files.values())

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """Return all clusters in the order of their ids."""
        return _sorted_by_id(read_cluster(content) for content in self._cluster_files.values())

    def model(self, name: str, *, pointer: str = "/model") -> CatalogueModel:
        """Return the model of that id or alias, in whatever case; raise `UnknownModel`.

        Found by the name of a quantized re-upload, it has that checkpoint's formats.
        """
        found = self._models_by_name.get(name_key(name))
        if found is None:
            raise UnknownModel(name, _names_like(name, self.models), pointer=pointer)
        return found

    def gpu(self, name: str, *, pointer: str = "/hardware/gpu") -> Gpu:
        """Return the GPU of that id or alias, in whatever case; raise `UnknownGpu`."""
        found = self._gpus_by_name.get(name_key(name))
        if found is None:
            raise UnknownGpu(name, _names_like(name, self.gpus), pointer=pointer)
        return found

    def cluster(self, name: str, *, pointer: str = "/hardware/cluster") -> Cluster:
        """Return the cluster of that id or alias, in whatever case; raise `UnknownCluster`."""
        found = self._clusters_by_name.get(name_key(name))
        if found is None:
            raise UnknownCluster(name, _names_like(name, self.clusters), pointer=pointer)
        return found

    @cached_property
    def revision(self) -> str:
        """Return a name for the exact content of all catalogue files.

        Equal revisions mean equal files: a plan that names its catalogue's
        revision can be computed again.
        """
        digest = hashlib.sha256()
        for files in (self._model_files, self._gpu_files, self._cluster_files):
            for name, content in files.items():
                digest.update(f"{name}\0{len(content)}\0".encode())
                digest.update(content)
        return digest.hexdigest()[:REVISION_DIGITS]

    @cached_property
    def _model_files(self) -> Mapping[str, bytes]:
        return _contents(self._folder / "models", "*.json")

    @cached_property
    def _gpu_files(self) -> Mapping[str, bytes]:
        return _contents(self._folder / "gpus", "*.toml")

    @cached_property
    def _cluster_files(self) -> Mapping[str, bytes]:
        return _contents(self._folder / "clusters", "*.toml")

    @cached_property
    def _models_by_name(self) -> Mapping[str, CatalogueModel]:
        return {key: model.found_as(name) for model in self.models for key, name in _keyed_names(model)}

    @cached_property
    def _gpus_by_name(self) -> Mapping[str, Gpu]:
        return {key: gpu for gpu in self.gpus for key, _ in _keyed_names(gpu)}

    @cached_property
    def _clusters_by_name(self) -> Mapping[str, Cluster]:
        return {key: cluster for cluster in self.clusters for key, _ in _keyed_names(cluster)}


@cache
def catalogue() -> Catalogue:
    """Return the catalogue that ships with the planner."""
    return Catalogue()


def read_gpu(content: bytes) -> Gpu:
    """Return the GPU that a catalogue file describes.

    The file names a source for each group of figures (`rates`, with the memory
    bandwidth; `memory`; `link`; `pcie`; `box`, for the network and the GPUs of a
    node); `Gpu.source` strings them together.
    """
    table = tomllib.loads(content.decode())
    sources = table.pop("sources")
    return record(Gpu, {**table, "source": "; ".join(f"{figures}: {source}" for figures, source in sources.items())})


def name_key(name: str) -> str:
    """Return the form in which names are compared.

    Case does not count, and a space, an underscore and a hyphen are one: the
    product name "NVIDIA H100 80GB HBM3" and the Kubernetes label
    "NVIDIA-H100-80GB-HBM3" are the same GPU.
    """
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def _contents(folder: Path, pattern: str) -> Mapping[str, bytes]:
    """Return each file's content by its name; an empty folder means a broken installation and raises."""
    files = {path.name: path.read_bytes() for path in sorted(folder.glob(pattern))}
    if not files:
        raise FileNotFoundError(f"{folder} holds no {pattern}: the catalogue's data files were not installed.")
    return files


def _sorted_by_id(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.id.lower()))


def _keyed_names(entry: Named) -> tuple[tuple[str, str], ...]:
    """Return an entry's names, each with the form in which it is compared."""
    return tuple((name_key(name), name) for name in (entry.id, *entry.aliases))


def _names_like(name: str, entries: Iterable[Named]) -> tuple[str, ...]:
    """Return the names that begin with `name`, or else all of them; ids first.

    "a100" is the beginning of two sizes and near to "a10": its own family is
    what the client meant.
    """
    listed = tuple(entries)
    names = (*(entry.id for entry in listed), *(alias for entry in listed for alias in entry.aliases))
    key = name_key(name)
    return tuple(known for known in names if key and name_key(known).startswith(key)) or names
