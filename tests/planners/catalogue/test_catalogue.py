"""Finding models and GPUs by their names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plimsoll.planners.catalogue import Catalogue, catalogue
from plimsoll.planners.catalogue.catalogue import FOLDER, name_key
from plimsoll.planners.ground.errors import UnknownGpu, UnknownModel


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B",
        "META-LLAMA/LLAMA-3.1-8B",
        "llama-3.1-8b",
        "Llama3.1-8B",
        "meta-llama/Meta-Llama-3.1-8B",
    ],
)
def test_a_model_is_found_by_id_or_alias_in_any_case(name: str) -> None:
    assert catalogue().model(name).id == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    "name",
    ["h100-sxm-80gb", "H100", "h100-80gb", "NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3", "h100_sxm", " h100 "],
)
def test_a_gpu_is_found_by_id_product_name_or_kubernetes_label(name: str) -> None:
    assert catalogue().gpu(name).id == "h100-sxm-80gb"


@pytest.mark.parametrize(
    ("label", "gpu"),
    [
        # cloud.google.com/gke-accelerator: https://cloud.google.com/kubernetes-engine/docs/concepts/gpus.
        ("nvidia-h100-80gb", "h100-sxm-80gb"),
        ("nvidia-h100-mega-80gb", "h100-sxm-80gb"),
        ("nvidia-h200-141gb", "h200-sxm-141gb"),
        ("nvidia-b200", "b200-sxm-180gb"),
        ("nvidia-gb200", "gb200-nvl-186gb"),
        ("nvidia-tesla-a100", "a100-sxm-40gb"),
        ("nvidia-a100-80gb", "a100-sxm-80gb"),
        ("nvidia-l4", "l4-24gb"),
        # The same label on EKS: k8s.amazonaws.com/accelerator of g4dn and p3 nodes.
        ("nvidia-tesla-t4", "t4-16gb"),
        ("nvidia-tesla-v100", "v100-sxm-16gb"),
        # amd.com/gpu.product-name, written by AMD's node labeller.
        ("AMD_Instinct_MI300X_OAM", "mi300x-192gb"),
        ("AMD_Instinct_MI325X_OAM", "mi325x-256gb"),
        ("AMD_Instinct_MI355X_OAM", "mi355x-288gb"),
    ],
)
def test_a_gpu_is_found_by_the_label_of_a_cloud_or_a_maker(label: str, gpu: str) -> None:
    assert catalogue().gpu(label).id == gpu


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UnknownModel, match=r"llama-3\.1-8b") as caught:
        catalogue().model("llama-3.1-9b")
    assert caught.value.code == "unknown-model"
    assert caught.value.pointer == "/model"


@pytest.mark.parametrize("name", ["grok-1", "AFM-4.5B"])
def test_models_that_are_hardly_alike_are_not_named(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        catalogue().model(name)
    assert caught.value.nearest == ()


@pytest.mark.parametrize("name", ["grok-1", "llama-3.1-9b"])
def test_what_is_to_be_sent_for_any_other_model_is_always_said(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        catalogue().model(name)
    assert caught.value.detail.endswith('send its config.json as {"model": {"config": …}}.')


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(UnknownGpu, match="h100-sxm-80gb") as caught:
        catalogue().gpu("h100-smx-80gb", pointer="/hardware/0/gpu")
    assert caught.value.code == "unknown-gpu"
    assert caught.value.pointer == "/hardware/0/gpu"


def test_a_name_that_several_sizes_begin_with_is_refused_with_those_sizes() -> None:
    with pytest.raises(UnknownGpu) as caught:
        catalogue().gpu("a100")
    assert set(caught.value.nearest) == {"a100-40gb", "a100-80gb"}


def test_an_empty_name_is_unknown() -> None:
    with pytest.raises(UnknownGpu):
        catalogue().gpu("")


def test_no_two_entries_share_a_name() -> None:
    for entries in (catalogue().models, catalogue().gpus):
        owners: dict[str, str] = {}
        for entry in entries:
            for name in (entry.id, *entry.aliases):
                assert owners.setdefault(name_key(name), entry.id) == entry.id, name


def test_every_name_finds_its_entry() -> None:
    listed = catalogue()
    assert all(listed.model(name).id == model.id for model in listed.models for name in (model.id, *model.aliases))
    assert all(set(model.formats) <= set(model.aliases) for model in listed.models)
    assert all(listed.gpu(name).id == gpu.id for gpu in listed.gpus for name in (gpu.id, *gpu.aliases))


def test_the_catalogue_is_read_once() -> None:
    assert catalogue() is catalogue()
    assert catalogue().model("gpt2") is catalogue().model("openai-community/gpt2")


def test_a_catalogue_opens_nothing_until_asked_and_then_misses_what_is_not_there(tmp_path: Path) -> None:
    missing = Catalogue(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="not installed"):
        _ = missing.models


def test_the_revision_changes_with_any_file_and_with_nothing_else(tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    for kind in ("clusters", "gpus", "models"):
        shutil.copytree(FOLDER / kind, copied / kind)
    assert Catalogue(copied).revision == catalogue().revision
    changed = copied / "gpus" / "l4-24gb.toml"
    changed.write_text(changed.read_text() + "# a note\n")
    assert Catalogue(copied).revision != catalogue().revision


def test_the_revision_changes_when_a_file_is_renamed(tmp_path: Path) -> None:
    for kind in ("clusters", "gpus", "models"):
        shutil.copytree(FOLDER / kind, tmp_path / kind)
    before = Catalogue(tmp_path).revision
    (tmp_path / "gpus" / "l4-24gb.toml").rename(tmp_path / "gpus" / "l5-24gb.toml")
    assert Catalogue(tmp_path).revision != before


@pytest.mark.parametrize(
    ("name", "family"),
    [("mamba-1.4b-hf", "mamba-2.8b-hf"), ("glm-4-9b-chat-hff", "glm-4-9b-chat-hf"), ("gpt2-xxl", "gpt2-xl")],
)
def test_the_nearest_models_are_of_the_same_family(name: str, family: str):
    with pytest.raises(UnknownModel) as caught:
        catalogue().model(name)
    assert caught.value.nearest[0].endswith(family)


@pytest.mark.parametrize("name", ["mamba-2.8b-hf", "glm-4-9b-chat-hf"])
def test_the_converted_forms_of_older_models_are_known(name: str):
    assert catalogue().model(name).id.endswith(name)
