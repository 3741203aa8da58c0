from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest

from plimsoll.service.ground.settings import Settings
from plimsoll.service.workloads.objects.config_maps import NoConfigMaps
from plimsoll.service.workloads.objects.kubernetes_api import (
    MOST_BYTES,
    KubernetesApi,
    KubernetesConfigMaps,
    KubernetesRuntimes,
    api_of,
    config_maps_of,
    runtimes_of,
)
from plimsoll.service.workloads.objects.object_parts import ObjectNotRead
from plimsoll.service.workloads.objects.training_runtimes import NoRuntimes
from tests.service.hub_server import Answer, running_hub

PATH = "/api/v1/namespaces/serving/configmaps/settings"
BODY = json.dumps({"kind": "ConfigMap", "data": {"MODEL": "m", "odd": 5}}).encode()


async def test_a_config_map_is_read_once_within_some_seconds():
    with running_hub() as api:
        api.answers[PATH] = Answer(body=BODY)
        config_maps = KubernetesConfigMaps(KubernetesApi(api.url))
        for _ in range(2):
            assert await config_maps.get("serving", "settings") == {"MODEL": "m"}
        assert api.asked == [PATH]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(status=401), "does not know this service"),
        (Answer(status=403), "may not read ConfigMaps there"),
        (Answer(status=404), "none of that name"),
        (Answer(status=500), "answers 500"),
        (Answer(status=302, headers={"location": "/elsewhere"}), "answers 302"),
        (Answer(body=b"{"), "no ConfigMap"),
        (Answer(body=b"[]"), "no ConfigMap"),
        (Answer(body=b'{"data": 5}'), "no ConfigMap"),
        (Answer(body=b"[" * 100_000), "no ConfigMap"),
        (Answer(body=b" " * (MOST_BYTES + 1)), "larger than a ConfigMap"),
        (Answer(body=BODY, headers={"content-length": "9999"}), "cannot be reached"),
    ],
)
async def test_an_answer_that_is_no_config_map_says_why(answer: Answer, told: str):
    with running_hub() as api:
        api.answers[PATH] = answer
        with pytest.raises(ObjectNotRead, match=told):
            await KubernetesConfigMaps(KubernetesApi(api.url)).get("serving", "settings")


@pytest.mark.parametrize("answer", [Answer(delay_seconds=30), Answer(body=BODY, drip_seconds=1)])
async def test_a_slow_server_is_not_waited_for(answer: Answer):
    with running_hub() as api:
        api.answers[PATH] = answer
        with pytest.raises(ObjectNotRead, match=r"did not answer within 0.2 s|cannot be reached"):
            await KubernetesConfigMaps(KubernetesApi(api.url, seconds=0.2)).get("serving", "settings")


@pytest.mark.parametrize(
    ("namespace", "name"), [("serving", "../secrets/x"), ("a/b", "x"), ("", "x"), ("serving", ""), ("serving", "X y")]
)
async def test_a_name_that_is_none_is_never_asked_for(namespace: str, name: str):
    with running_hub() as api:
        with pytest.raises(ObjectNotRead, match="no ConfigMap can have that name"):
            await KubernetesConfigMaps(KubernetesApi(api.url)).get(namespace, name)
        assert api.asked == []


async def test_a_token_that_cannot_be_read_is_told(tmp_path: Path):
    with running_hub() as api, pytest.raises(ObjectNotRead, match="cannot be reached"):
        await KubernetesConfigMaps(KubernetesApi(api.url, token_file=tmp_path / "none")).get("serving", "settings")


async def test_a_server_that_is_away_is_told():
    with running_hub() as api:
        url = api.url
    with pytest.raises(ObjectNotRead, match="cannot be reached"):
        await KubernetesConfigMaps(KubernetesApi(url)).get("serving", "settings")


def test_nothing_is_read_where_no_api_is_named():
    assert isinstance(config_maps_of(api_of(Settings())), NoConfigMaps)
    assert isinstance(runtimes_of(api_of(Settings())), NoRuntimes)


def test_an_authority_that_is_not_there_stops_the_service(tmp_path: Path):
    settings = Settings(kubernetes_api_url="https://kubernetes.default.svc", kubernetes_ca_file=tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        api_of(settings)


async def test_a_plain_address_is_asked_without_a_token(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("secret")
    with running_hub() as api:
        api.answers[PATH] = Answer(body=BODY)
        config_maps = config_maps_of(api_of(Settings(kubernetes_api_url=f"{api.url}/", kubernetes_token_file=token)))
        assert await config_maps.get("serving", "settings") == {"MODEL": "m"}
        assert api.tokens == [None]


async def test_the_token_is_shown_as_the_file_has_it_now(tmp_path: Path):
    token = tmp_path / "token"
    with running_hub() as api:
        api.answers[PATH] = api.answers[f"{PATH}2"] = Answer(body=BODY)
        config_maps = KubernetesConfigMaps(
            KubernetesApi(api.url, token_file=token, authority=ssl.create_default_context())
        )
        for name, text in (("settings", "one\n"), ("settings2", "two\n")):
            token.write_text(text)
            await config_maps.get("serving", name)
        assert api.tokens == ["Bearer one", "Bearer two"]


RUNTIME = json.dumps({"kind": "ClusterTrainingRuntime", "spec": {}}).encode()


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ClusterTrainingRuntime", "clustertrainingruntimes/torch"),
        ("TrainingRuntime", "namespaces/team/trainingruntimes/torch"),
    ],
)
async def test_a_runtime_is_read_where_its_kind_lies(kind: str, path: str):
    with running_hub() as api:
        api.answers[f"/apis/trainer.kubeflow.org/v1alpha1/{path}"] = Answer(body=RUNTIME)
        assert (await KubernetesRuntimes(KubernetesApi(api.url)).get(kind, "team", "torch"))["spec"] == {}


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "told"),
    [
        ("ClusterTrainingRuntime", "team", "../x", "no ClusterTrainingRuntime can have that name"),
        ("TrainingRuntime", "a/b", "torch", "no TrainingRuntime can have that name"),
        ("Secret", "team", "torch", "no kind of runtime"),
        ("ClusterTrainingRuntime", "team", "none", "none of that name"),
    ],
)
async def test_a_runtime_that_is_none_says_why(kind: str, namespace: str, name: str, told: str):
    with running_hub() as api, pytest.raises(ObjectNotRead, match=told):
        await KubernetesRuntimes(KubernetesApi(api.url)).get(kind, namespace, name)
