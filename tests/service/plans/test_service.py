"""Plans: the same question is the same plan, stored before it is answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import InvalidModelConfig, InvalidQuestion, UnknownModel
from plimsoll.planners.ground.hardware import SiteEfficiency
from plimsoll.service.ground.errors import (
    HubUnreachable,
    InvalidCheckpoint,
    Overloaded,
    PathNotAllowed,
    StorageLimitReached,
)
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import PlanFilter
from plimsoll.service.plans.service import OnPlanned, PlannedAnswer, PlanningService
from plimsoll.service.plans.store import DatabaseInMemory, PlanDatabase, PlansInMemory
from plimsoll.service.plans.threads import PlanningTimedOut
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest
from tests.api.questions import TINY_CONFIG, infer, train
from tests.service.hub_server import Answer, running_hub
from tests.service.safetensors_files import stored, tiny_shapes


async def nothing_calibrated() -> dict[str, SiteEfficiency]:
    return {}


def service(database: PlanDatabase, on_planned: OnPlanned | None = None, **settings: Any) -> PlanningService:
    given = Settings(**settings)
    models = ModelResolver(catalogue(), given)
    return PlanningService(database, given, catalogue(), models, nothing_calibrated, on_planned=on_planned)


async def planned(service: PlanningService, **parts: Any) -> PlannedAnswer:
    return await service.plan_train(TrainRequest.model_validate(train(**parts)))


async def test_an_answer_is_stored_when_it_is_given(database: Database):
    answer = await planned(service(database))
    stored = await database.plans.get(answer.plan_id)
    assert stored.answer == answer.body
    assert stored.kind == "train"
    assert stored.gpu == "h100-sxm-80gb"
    assert stored.model_config == TINY_CONFIG


async def test_another_replica_gives_the_same_bytes(database: Database):
    first, second = await planned(service(database)), await planned(service(database))
    assert second == first


async def test_who_stored_a_days_worth_is_refused_and_still_given_what_is_stored():
    asked = service(DatabaseInMemory(), key_stored_bytes_per_day=1)
    first = await planned(asked)
    with pytest.raises(StorageLimitReached):
        await planned(asked, objective="cost")
    assert await planned(asked) == first


async def test_what_was_not_read_of_a_config_is_stored_nowhere(database: Database):
    answer = await planned(service(database), model={"config": {**TINY_CONFIG, "unread": "x" * 5_000}})
    stored = await database.plans.get(answer.plan_id)
    assert stored.model_config == TINY_CONFIG
    assert stored.request["model"]["config"] == TINY_CONFIG
    assert "x" * 100 not in stored.answer
    (seen,) = (await database.models_seen.page()).items
    assert seen.config == TINY_CONFIG


ONE_LAYOUT = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}


async def test_one_layout_that_another_replica_stored_is_answered_with_the_same_bytes(database: Database):
    request = InferRequest.model_validate(infer(layout=ONE_LAYOUT))
    made: list[str] = []
    replicas = [service(database, on_planned=lambda plan, *_: made.append(plan.plan_id)) for _ in range(2)]
    first, second = [await replica.plan_infer(request) for replica in replicas]
    assert second == first
    assert made == [first.plan_id]


async def test_what_could_not_be_stored_in_time_is_not_searched_for():
    class FallenBehind(PlansInMemory):
        def check_backlog(self) -> None:
            raise Overloaded(waiting=100, retry_after_seconds=4, until="stored")

    made: list[str] = []
    database = DatabaseInMemory()
    database.plans = FallenBehind()
    with pytest.raises(Overloaded, match="100 plans"):
        await planned(service(database, on_planned=lambda plan, *_: made.append(plan.plan_id)))
    assert made == []


async def test_two_replicas_asked_at_once_give_the_same_bytes(database: Database):
    # Each searches for a time of its own; what was stored first is what both answer.
    first, second = await asyncio.gather(planned(service(database)), planned(service(database)))
    assert second == first


async def test_defaults_written_out_make_no_other_plan(database: Database):
    asked = service(database)
    silent = await planned(asked)
    spoken = await planned(asked, framework="any", training={"precision": "bf16-mixed"}, validate="none")
    assert spoken.plan_id == silent.plan_id


async def test_a_gpu_is_the_same_by_any_of_its_names(database: Database):
    asked = service(database)
    by_id = await planned(asked)
    by_alias = await planned(asked, hardware={"gpu": "H100", "gpus": 1})
    assert by_alias.plan_id == by_id.plan_id


async def test_another_figure_makes_another_plan(database: Database):
    asked = service(database)
    plain = await planned(asked)
    override = {"memory_bytes": 70 * 10**9}
    other = await planned(asked, hardware={"gpu": "h100-sxm-80gb", "gpus": 1, "override": override})
    assert other.plan_id != plain.plan_id
    assert json.loads(other.body)["plan"]["memory"]["limit_bytes"] == 70 * 10**9


async def test_asked_at_once_it_is_planned_once(database: Database):
    asked = service(database)
    answers = await asyncio.gather(*(planned(asked) for _ in range(8)))
    assert len(set(answers)) == 1


async def test_the_body_carries_what_the_plan_depends_on(database: Database):
    answer = await service(database).plan_infer(InferRequest.model_validate(infer()))
    body = json.loads(answer.body)
    assert body["plan_id"] == answer.plan_id
    assert body["catalogue_revision"] == catalogue().revision
    assert body["calibration_revision"] == "none"
    assert body["search"]["seconds"] > 0


async def test_a_refused_question_stores_nothing(database: Database):
    with pytest.raises(UnknownModel):
        await planned(service(database), model="llama-9")
    assert (await database.plans.page()).items == ()


async def test_a_search_that_takes_too_long_is_given_up(database: Database):
    with pytest.raises(PlanningTimedOut, match=r"within 0\.000001 s"):
        await planned(service(database, request_timeout_seconds=1e-6))


async def test_plans_are_found_by_any_name_of_their_model(database: Database):
    asked = service(database)
    await planned(asked, model="meta-llama/Llama-3.2-1B")
    await planned(asked)
    found = await asked.page(PlanFilter(model="llama-3.2-1b"))
    assert [plan.model for plan in found.items] == ["meta-llama/Llama-3.2-1B"]
    assert (await asked.page(PlanFilter(model="no such model"))).items == ()


async def test_a_model_that_no_catalogue_lists_is_remembered(database: Database):
    await planned(service(database))
    seen = await database.models_seen.page()
    assert [model.config for model in seen.items] == [TINY_CONFIG]


def checkpoint(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(content)
    return folder


async def test_a_model_may_lie_in_a_folder_under_a_root(database: Database, tmp_path: Path):
    checkpoint(tmp_path / "tiny", json.dumps(TINY_CONFIG))
    by_path = await planned(service(database, model_roots=(tmp_path,)), model={"path": "tiny"})
    stored = await database.plans.get(by_path.plan_id)
    assert stored.model == "tiny"
    assert stored.model_config == TINY_CONFIG


@pytest.mark.parametrize("path", ["../outside", "/etc", "link", "tiny/../../outside", "\0"])
async def test_no_path_leads_out_of_the_roots(database: Database, tmp_path: Path, path: str):
    root = tmp_path / "root"
    root.mkdir()
    outside = checkpoint(tmp_path / "outside", json.dumps(TINY_CONFIG))
    (root / "link").symlink_to(outside)
    with pytest.raises(PathNotAllowed) as refusal:
        await planned(service(database, model_roots=(root,)), model={"path": path})
    assert refusal.value.pointer == "/model/path"


async def test_a_linked_config_does_not_lead_out_of_the_roots_either(database: Database, tmp_path: Path):
    outside = checkpoint(tmp_path / "outside", json.dumps(TINY_CONFIG))
    folder = tmp_path / "root" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").symlink_to(outside / "config.json")
    with pytest.raises(PathNotAllowed):
        await planned(service(database, model_roots=(tmp_path / "root",)), model={"path": "tiny"})


async def test_without_a_root_no_path_is_read(database: Database, tmp_path: Path):
    with pytest.raises(PathNotAllowed, match="PLIMSOLL_MODEL_ROOTS"):
        await planned(service(database), model={"path": str(tmp_path)})


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": ' * 100_000, " " * (2**20 + 1)])
async def test_a_folder_without_a_readable_config_is_refused(database: Database, tmp_path: Path, content: str):
    checkpoint(tmp_path / "tiny", content)
    with pytest.raises(Exception, match=r"config\.json") as refusal:
        await planned(service(database, model_roots=(tmp_path,)), model={"path": "tiny"})
    assert refusal.value.pointer == "/model/path"  # type: ignore[attr-defined]


async def test_the_hub_is_refused_unless_a_mirror_is_set(database: Database):
    with pytest.raises(InvalidQuestion, match="PLIMSOLL_HUB_URL"):
        await planned(service(database), model={"hub": "org/name"})
    with pytest.raises(HubUnreachable):
        await planned(service(database, hub_url="http://127.0.0.1:1"), model={"hub": "org/name"})


async def test_a_model_of_the_hub_is_planned_and_a_branch_that_moves_is_planned_again(
    database: Database, tmp_path: Path
):
    with running_hub() as hub:
        hub.answers["/org/name/resolve/main/config.json"] = Answer(body=json.dumps(TINY_CONFIG).encode())
        asked = service(database, hub_url=hub.url, data_dir=tmp_path, hub_cache_seconds=0)
        first = await planned(asked, model={"hub": "org/name"})
        assert (await planned(asked, model={"hub": "org/name", "revision": "main"})).plan_id == first.plan_id
        moved = json.dumps({**TINY_CONFIG, "vocab_size": 2000}).encode()
        hub.answers["/org/name/resolve/main/config.json"] = Answer(body=moved)
        assert (await planned(asked, model={"hub": "org/name"})).plan_id != first.plan_id


async def test_a_checkpoint_that_disagrees_is_told_and_makes_another_plan(database: Database, tmp_path: Path):
    folder = checkpoint(tmp_path / "tiny", json.dumps(TINY_CONFIG))
    asked = service(database, model_roots=(tmp_path,))
    plain = await planned(asked, model={"path": "tiny"})
    stored(folder / "model.safetensors", tiny_shapes())
    agreeing = await planned(asked, model={"path": "tiny"})
    stored(folder / "model.safetensors", {**tiny_shapes(), "foo": (1,)})
    disagreeing = await planned(asked, model={"path": "tiny"})
    assert plain.plan_id == agreeing.plan_id != disagreeing.plan_id
    notes = json.loads(disagreeing.body)["assumptions"]
    assert any("config.json was followed" in note and "foo" in note for note in notes)
    assert not any("disagree" in note for note in json.loads(plain.body)["assumptions"])


async def test_a_hostile_checkpoint_is_refused(database: Database, tmp_path: Path):
    folder = checkpoint(tmp_path / "tiny", json.dumps(TINY_CONFIG))
    (folder / "model.safetensors").write_bytes(b"\xff" * 8)
    with pytest.raises(InvalidCheckpoint) as refusal:
        await planned(service(database, model_roots=(tmp_path,)), model={"path": "tiny"})
    assert refusal.value.pointer == "/model/path"


async def test_a_config_in_a_folder_that_makes_no_sense_points_at_the_path(database: Database, tmp_path: Path):
    checkpoint(tmp_path / "tiny", json.dumps({**TINY_CONFIG, "hidden_size": None}))
    with pytest.raises(InvalidModelConfig, match="hidden_size") as refusal:
        await planned(service(database, model_roots=(tmp_path,)), model={"path": "tiny"})
    assert refusal.value.pointer == "/model/path"


async def served(service: PlanningService, model: str, **serving: Any) -> dict[str, Any]:
    request = infer(model=model, serving=serving)
    answer = await service.plan_infer(InferRequest.model_validate(request))
    return {**json.loads(answer.body), "plan_id": answer.plan_id}


async def test_the_name_of_a_quantized_reupload_fills_in_its_formats(database: Database):
    body = await served(service(database), "Qwen/Qwen3-32B-FP8-Static-PerTensor")
    settings = body["plan"]["settings"]
    assert (settings["weights"], settings["kv_cache"]) == ("fp8", "fp8")
    assert any("The checkpoint is stored in fp8." in note for note in body["assumptions"])
    assert any("KV cache to fp8" in note for note in body["assumptions"])


async def test_what_the_request_says_stands_before_what_the_name_says(database: Database):
    body = await served(service(database), "Qwen/Qwen3-32B-FP8", weights="bf16")
    assert (body["plan"]["settings"]["weights"], body["plan"]["settings"]["kv_cache"]) == ("bf16", "bf16")
    assert not any("checkpoint is stored in" in note for note in body["assumptions"])


async def test_formats_taken_from_a_name_make_another_plan_than_formats_asked_for(database: Database):
    asked = service(database)
    taken = await served(asked, "Qwen/Qwen3-32B-FP8")
    spoken = await served(asked, "Qwen/Qwen3-32B-FP8", weights="fp8")
    plain = await served(asked, "Qwen/Qwen3-32B")
    assert plain["plan"]["settings"]["weights"] == "bf16"
    assert len({taken["plan_id"], spoken["plan_id"], plain["plan_id"]}) == 3


async def test_a_model_given_by_size_names_what_was_assumed(database: Database):
    answer = await planned(service(database), model={"parameters": 1e9})
    assert any("parameters" in note for note in json.loads(answer.body)["assumptions"])


async def test_a_quantized_reupload_is_not_its_model_in_the_same_format(database: Database):
    asked = service(database)
    reupload = await served(asked, "Qwen/Qwen3-32B-FP8", weights="fp8")
    own = await served(asked, "Qwen/Qwen3-32B", weights="fp8")
    assert own["plan_id"] != reupload["plan_id"]
    assert "vllm serve Qwen/Qwen3-32B-FP8 " in reupload["artifacts"]["vllm"]
    assert "vllm serve Qwen/Qwen3-32B --dtype bfloat16 --quantization fp8 " in own["artifacts"]["vllm"]
