"""Models, GPUs and formats as clients read them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.api.questions import TINY_CONFIG
from tests.service.safetensors_files import indexed, tiny_shapes, write_config


async def test_a_model_is_found_by_id_and_by_alias_in_any_case(client: httpx.AsyncClient):
    by_id = (await client.get("/models/meta-llama/Llama-3.1-8B")).json()
    assert by_id["id"] == "meta-llama/Llama-3.1-8B"
    # Published count of Llama-3.1-8B's safetensors.
    assert by_id["parameters"]["total"] == 8_030_261_248
    assert by_id == (await client.get("/models/LLAMA-3.1-8b")).json()


@pytest.mark.parametrize(
    ("path", "search", "found"),
    [
        ("/models", "LLAMA-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("/hardware", "H100-sxm", "h100-sxm-80gb"),
    ],
)
async def test_a_search_finds_a_part_of_any_name_in_any_case(
    client: httpx.AsyncClient, path: str, search: str, found: str
):
    whole = (await client.get(path)).json()["items"]
    matching = (await client.get(path, params={"search": search})).json()["items"]
    assert found in {each["id"] for each in matching}
    assert matching == [
        each for each in whole if any(search.lower() in name.lower() for name in (each["id"], *each["aliases"]))
    ]
    assert 0 < len(matching) < len(whole)


@pytest.mark.parametrize(
    ("path", "search", "found"),
    [
        ("/models", "llama 8b", "meta-llama/Llama-3.1-8B"),
        ("/models", " 8B  LLAMA ", "meta-llama/Llama-3.1-8B"),
        ("/hardware", "80gb h100", "h100-sxm-80gb"),
        ("/hardware", "nvidia h100 sxm5", "h100-sxm-80gb"),
    ],
)
async def test_a_search_finds_its_words_in_any_order_and_in_a_gpus_name(
    client: httpx.AsyncClient, path: str, search: str, found: str
):
    matching = (await client.get(path, params={"search": search})).json()["items"]
    assert found in {each["id"] for each in matching}
    for each in matching:
        names = " ".join((each["id"], *each["aliases"], each.get("name", ""))).lower()
        assert all(word in names for word in search.lower().split())


async def test_a_search_that_finds_nothing_is_an_empty_list_and_an_empty_search_none(client: httpx.AsyncClient):
    nothing = (await client.get("/models?search=no such model")).json()
    assert nothing["items"] == []
    assert (await client.get("/models?search=")).status_code == 422


async def test_a_description_adds_up(client: httpx.AsyncClient):
    model = (await client.get("/models/llama-3.1-8b")).json()
    parameters = model["parameters"]
    assert sum(parameters["by_part"].values()) == parameters["total"] == parameters["active"]
    assert sum(block["parameters_each"] * block["repeats"] for block in model["blocks"]) == parameters["total"]
    # 2 x 8 heads x 128 x 32 layers x 2 bytes.
    assert model["kv"]["bytes_per_token"] == 131_072


async def test_flops_grow_with_the_sequence(client: httpx.AsyncClient):
    short, long = [
        (await client.get(f"/models/llama-3.1-8b?sequence_length={length}")).json()["flops"] for length in (1, 4097)
    ]
    # A token at the mean of 4,097 positions attends to 2,049, at one position to 1:
    # 4 x 32 heads x 128 x 32 layers x 2,048 more operations.
    assert long["forward_flops_per_token"] - short["forward_flops_per_token"] == 4 * 32 * 128 * 32 * 2048
    assert long["training_flops_per_token"] == 3 * long["forward_flops_per_token"]


async def test_an_unknown_model_is_not_found_and_the_nearest_are_named(client: httpx.AsyncClient):
    response = await client.get("/models/llama-3.1-9b")
    assert response.status_code == 404
    assert "llama-3.1-8b" in response.json()["nearest"]


async def test_any_model_can_be_described(client: httpx.AsyncClient):
    body = {"model": {"config": {**TINY_CONFIG, "novel_trick": True}}}
    model = (await client.post("/models/describe", json=body)).json()
    # Embedding and head 2 x 1000 x 256; a layer: q, o 256 x 256, k, v 128 x 256, three MLP matrices
    # 512 x 256, two norms of 256; and the last norm.
    layer = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256 + 2 * 256
    assert model["parameters"]["total"] == 2 * 1000 * 256 + 4 * layer + 256
    assert any("novel_trick" in note for note in model["assumptions"])


async def test_every_listed_model_and_gpu_has_a_page(client: httpx.AsyncClient):
    for path in ("/models", "/hardware"):
        listed = (await client.get(path)).json()["items"]
        assert listed
        for entry in listed[:: max(1, len(listed) // 10)]:
            assert (await client.get(f"{path}/{entry['id']}")).json()["id"] == entry["id"]
            assert entry["source"]


async def test_a_gpu_page_can_be_sent_back_as_a_gpu_by_hand(client: httpx.AsyncClient):
    gpu = (await client.get("/hardware/h100")).json()
    body = {"model": "llama-3.2-1b", "hardware": {"gpu": gpu, "gpus": 1}, "serving": {"max_model_len": 1024}}
    response = await client.post("/plan/infer", json=body)
    assert response.status_code == 200
    assert response.json()["plan"]["memory"]["limit_bytes"] == gpu["memory_bytes"]


async def test_clusters_stand_beside_the_gpus_and_can_be_named(client: httpx.AsyncClient):
    clusters = {cluster["id"]: cluster for cluster in (await client.get("/hardware")).json()["clusters"]}
    assert clusters["a2-megagpu-16g"]["gpus_per_node"] == 16
    hardware = {"gpu": "a100-40gb", "cluster": "a2-megagpu-16g", "gpus": 1}
    body = {"model": "llama-3.2-1b", "hardware": hardware, "serving": {"max_model_len": 1024}}
    response = await client.post("/plan/infer", json=body)
    assert response.status_code == 200
    assert any("a2-megagpu-16g" in note for note in response.json()["assumptions"])


@pytest.mark.parametrize(("cluster", "code"), [("dgx-h100", "invalid-question"), ("p55", "unknown-cluster")])
async def test_a_cluster_of_another_gpu_or_none_is_refused(client: httpx.AsyncClient, cluster: str, code: str):
    hardware = {"gpu": "a100-40gb", "cluster": cluster, "gpus": 1}
    body = {"model": "llama-3.2-1b", "hardware": hardware, "serving": {"max_model_len": 1024}}
    response = await client.post("/plan/infer", json=body)
    assert response.status_code == 422
    assert response.json()["code"] == code
    assert [error["pointer"] for error in response.json()["errors"]] == ["/hardware/cluster"]


async def test_an_unknown_gpu_is_not_found(client: httpx.AsyncClient):
    response = await client.get("/hardware/h100-sxm-88gb")
    assert response.status_code == 404
    assert "h100-sxm-80gb" in response.json()["nearest"]


async def test_formats_tell_range_and_digits(client: httpx.AsyncClient):
    formats = {entry["name"]: entry for entry in (await client.get("/formats")).json()["items"]}
    assert formats["fp16"]["largest"] == 65504
    assert formats["fp16"]["smallest_normal"] == 2.0**-14
    assert formats["tf32"]["stored_bits"] == 32
    assert formats["bf16"]["fraction_bits"] == 7
    assert formats["fp16"]["needs_loss_scaling"]


async def test_a_description_can_be_read_in_a_terminal(client: httpx.AsyncClient):
    page = await client.get("/models/jamba?format=text")
    assert page.headers["content-type"].startswith("text/plain")
    assert "51,570,323,328" in page.text
    assert all(len(line) <= 100 for line in page.text.splitlines())
    body = {"model": {"config": TINY_CONFIG}}
    described = await client.post("/models/describe", json=body, headers={"accept": "text/plain"})
    assert "Parameters by part" in described.text


async def test_an_unknown_model_type_is_refused_with_the_nearest_and_all_that_are_known(client: httpx.AsyncClient):
    response = await client.post("/models/describe", json={"model": {"config": {**TINY_CONFIG, "model_type": "lama"}}})
    problem = response.json()
    assert response.status_code == 422
    assert [error["pointer"] for error in problem["errors"]] == ["/model/config/model_type"]
    assert "llama" in problem["nearest"]
    assert {"llama", "gpt2", "mamba2", "t5"} <= set(problem["known"])
    assert "mamba2" in problem["detail"]


@pytest.mark.parametrize(
    ("change", "field"), [({"num_key_value_heads": 3}, "num_key_value_heads"), ({"vocab_size": None}, "vocab_size")]
)
async def test_a_config_that_makes_no_sense_is_refused_with_the_field(
    client: httpx.AsyncClient, change: dict[str, object], field: str
):
    response = await client.post("/models/describe", json={"model": {"config": {**TINY_CONFIG, **change}}})
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [f"/model/config/{field}"]


async def test_a_folders_checkpoint_is_compared(client: httpx.AsyncClient, model_root: Path):
    folder = model_root / "compared"
    folder.mkdir()
    write_config(folder)
    indexed(folder, {name: shape for name, shape in tiny_shapes().items() if "norm" not in name})
    body = {"model": {"path": "compared"}}
    described = (await client.post("/models/describe", json=body)).json()
    # Two norms of each of four layers, and the last.
    assert described["checkpoint"]["missing"]["count"] == 9
    assert any("9 weights" in note for note in described["assumptions"])
    assert "9 weights" in (await client.post("/models/describe?format=text", json=body)).text


async def test_a_hostile_checkpoint_is_a_problem(client: httpx.AsyncClient, model_root: Path):
    folder = model_root / "hostile"
    folder.mkdir()
    write_config(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    response = await client.post("/models/describe", json={"model": {"path": "hostile"}})
    assert response.status_code == 422
    assert response.json()["code"] == "invalid-checkpoint"
    assert [error["pointer"] for error in response.json()["errors"]] == ["/model/path"]


async def test_a_hub_that_is_not_set_is_named(client: httpx.AsyncClient):
    response = await client.post("/models/describe", json={"model": {"hub": "org/name"}})
    assert response.status_code == 422
    assert "PLIMSOLL_HUB_URL" in response.json()["detail"]
