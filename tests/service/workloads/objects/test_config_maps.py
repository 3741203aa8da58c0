from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from plimsoll.service.workloads.objects.config_maps import (
    MOST_CONFIG_MAPS,
    GivenConfigMaps,
    NoConfigMaps,
    with_config_maps,
)
from plimsoll.service.workloads.objects.object_parts import ObjectNotRead
from plimsoll.service.workloads.objects.pods import Container
from plimsoll.service.workloads.objects.workloads import pod_group

SETTINGS = {"MODEL": "m", "TP": "2"}
GIVEN = GivenConfigMaps({("serving", "settings"): SETTINGS})


async def filled(container: dict[str, Any], config_maps: Any = GIVEN, **spec: Any) -> Container:
    group = pod_group("", "Pod", {"spec": {"containers": [container], **spec}})
    assert group is not None
    return (await with_config_maps(group, "serving", config_maps)).containers[0]


def a_volume(**config_map: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "configMap": {"name": "settings", **config_map}}]}


def a_mount(**mount: Any) -> dict[str, Any]:
    return {"volumeMounts": [{"name": "v", "mountPath": "/etc/x", **mount}]}


async def test_a_whole_config_map_and_single_keys_are_variables_and_the_objects_own_come_first():
    container = {
        "envFrom": [{"configMapRef": {"name": "settings"}}, {"prefix": "P_", "configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "TP", "value": "4"},
            {"name": "NAME", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "MODEL"}}},
        ],
    }
    read = await filled(container)
    assert dict(read.env) == {"MODEL": "m", "TP": "4", "P_MODEL": "m", "P_TP": "2", "NAME": "m"}
    assert read.unread == ()


@pytest.mark.parametrize(
    ("volume", "mount", "files"),
    [
        (a_volume(), a_mount(), {"/etc/x/MODEL": "m", "/etc/x/TP": "2"}),
        (a_volume(items=[{"key": "TP", "path": "a/tp"}]), a_mount(), {"/etc/x/a/tp": "2"}),
        (a_volume(), a_mount(mountPath="/app/tp.txt", subPath="TP"), {"/app/tp.txt": "2"}),
        (a_volume(), a_mount(subPath="none"), {}),
        (a_volume(), {"volumeMounts": [{"name": "other", "mountPath": "/etc/x"}]}, {}),
        (
            {
                "volumes": [
                    {"name": "v", "projected": {"sources": [{"configMap": {"name": "settings"}}, {"secret": {}}]}}
                ]
            },
            a_mount(),
            {"/etc/x/MODEL": "m", "/etc/x/TP": "2"},
        ),
    ],
)
async def test_files_lie_where_they_are_mounted(volume, mount, files: Mapping[str, str]):
    assert dict((await filled(mount, **volume)).files) == files


@pytest.mark.parametrize(
    ("config_maps", "told"),
    [(NoConfigMaps(), "no Kubernetes API is configured"), (GivenConfigMaps({}), "it is not in the file")],
)
async def test_what_is_not_at_hand_is_told_once(config_maps, told: str):
    container = {"envFrom": [{"configMapRef": {"name": "settings"}}], **a_mount()}
    read = await filled(container, config_maps, **a_volume())
    assert len(read.unread) == 1
    assert read.unread[0].startswith("ConfigMap settings (")
    assert told in read.unread[0]


class Counted:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def get(self, namespace: str, name: str) -> Mapping[str, str]:
        self.asked.append(name)
        raise ObjectNotRead("away")


@pytest.mark.parametrize("number", [MOST_CONFIG_MAPS, MOST_CONFIG_MAPS + 1])
async def test_no_more_are_asked_for_than_a_workload_names(number: int):
    counted = Counted()
    read = await filled({"envFrom": [{"configMapRef": {"name": f"c{n}"}} for n in range(number)]}, counted)
    assert len(counted.asked) == MOST_CONFIG_MAPS
    assert len(read.unread) == number


@pytest.mark.parametrize("part", [5, "x", [5], [[]], [{}], {"a": 1}, [{"name": 5}], [{"name": ["x"]}]])
async def test_parts_of_any_form_break_nothing(part: Any):
    for place in ("envFrom", "volumeMounts"):
        assert (await filled({place: part}, volumes=part)).unread == ()
    for source in (part, {"name": part}, {"name": "settings", "items": part}):
        volumes = [{"name": "v", "configMap": source, "projected": {"sources": part}}]
        assert await filled(a_mount(subPath=part), volumes=volumes) is not None
