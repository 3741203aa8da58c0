"""Configs from a hub: fetched within bounds, refused with reasons, remembered."""

from __future__ import annotations

import ipaddress
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plimsoll.planners.ground.errors import InvalidModelConfig, InvalidQuestion, PlimsollError
from plimsoll.service.ground.errors import HubModelNotFound, HubTimedOut, HubUnreachable
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.config_files import MOST_CONFIG_BYTES
from plimsoll.service.models.hub.cache import MOST_FILES, HubCache
from plimsoll.service.models.hub.configs import HubClient
from plimsoll.service.models.hub.redirects import IpAddress, Redirects
from tests.api.questions import TINY_CONFIG
from tests.service.hub_server import Answer, Hub, running_hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = json.dumps(TINY_CONFIG).encode()
MAIN = "/org/name/resolve/main/config.json"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


def client(folder: Path, hub: Hub | None, **settings: Any) -> HubClient:
    url = None if hub is None else hub.url
    return HubClient(Settings(**{"data_dir": folder, "hub_url": url, "hub_timeout_seconds": 60.0, **settings}))


def refused(asked: HubClient, error: type[PlimsollError], name: str = "org/name", revision: str = "main") -> Any:
    with pytest.raises(error) as raised:
        asked.config(name, revision)
    return raised.value


def test_a_config_is_fetched_from_where_hubs_keep_it(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(body=CONFIG)
    found = client(tmp_path, hub).config("org/name", "main")
    assert found.config == TINY_CONFIG
    assert found.source == "config.json of org/name at revision main, from 127.0.0.1"


def test_a_hub_below_a_path_and_a_revision_with_a_slash(tmp_path: Path, hub: Hub):
    hub.answers["/api/hf/org/name/resolve/refs%2Fpr%2F1/config.json"] = Answer(body=CONFIG)
    asked = client(tmp_path, hub, hub_url=f"{hub.url}/api/hf/")
    assert asked.config("org/name", "refs/pr/1").config == TINY_CONFIG


def test_without_a_hub_the_setting_is_named(tmp_path: Path):
    assert "PLIMSOLL_HUB_URL" in refused(client(tmp_path, None), InvalidQuestion).detail


@pytest.mark.parametrize(
    "name", ["../etc", "org/../x", "org/name/more", "/org/name", "org name", "org/na?me", "org/na#me", "örg/name", "."]
)
def test_a_name_that_leads_elsewhere_is_never_asked_for(tmp_path: Path, hub: Hub, name: str):
    assert refused(client(tmp_path, hub), InvalidQuestion, name).pointer == "/model/hub"
    assert hub.asked == []


@pytest.mark.parametrize("revision", ["..", "a/../b", "/main", "ma in", "main\n", "main?x"])
def test_a_revision_that_is_none_is_never_asked_for(tmp_path: Path, hub: Hub, revision: str):
    assert refused(client(tmp_path, hub), InvalidQuestion, revision=revision).pointer == "/model/revision"
    assert hub.asked == []


@pytest.mark.parametrize(
    ("status", "code", "pointer", "words"),
    [
        (404, None, "/model/hub", "not there"),
        (401, None, "/model/hub", "account"),
        (403, "GatedRepo", "/model/hub", "account"),
        (404, "EntryNotFound", "/model/hub", "no config.json"),
        (404, "RevisionNotFound", "/model/revision", "no such revision"),
    ],
)
def test_a_model_that_is_not_there(tmp_path: Path, hub: Hub, status: int, code: str | None, pointer: str, words: str):
    hub.answers[MAIN] = Answer(status=status, headers={"x-error-code": code} if code else {})
    error = refused(client(tmp_path, hub), HubModelNotFound)
    assert words in error.detail
    assert error.pointer == pointer


@pytest.mark.parametrize("status", [204, 429, 500, 503])
def test_a_hub_that_fails_is_unreachable(tmp_path: Path, hub: Hub, status: int):
    hub.answers[MAIN] = Answer(status=status, body=b"")
    assert str(status) in refused(client(tmp_path, hub), HubUnreachable).detail


def test_nobody_at_the_address(tmp_path: Path):
    assert "cannot be reached" in refused(client(tmp_path, None, hub_url="http://127.0.0.1:1"), HubUnreachable).detail


@pytest.mark.parametrize("answer", [Answer(body=CONFIG, delay_seconds=20), Answer(body=CONFIG, drip_seconds=0.25)])
def test_a_slow_hub_is_given_up_in_time_however_it_is_slow(tmp_path: Path, hub: Hub, answer: Answer):
    # Left to itself it would answer after 20 seconds and more, and the config would be found.
    hub.answers[MAIN] = answer
    refused(client(tmp_path, hub, hub_timeout_seconds=0.3), HubTimedOut)


def test_a_config_may_be_as_large_as_one_that_is_sent_and_no_larger(tmp_path: Path, hub: Hub):
    padding = MOST_CONFIG_BYTES - len(CONFIG)
    hub.answers[MAIN] = Answer(body=CONFIG + b" " * padding)
    assert client(tmp_path, hub).config("org/name", "main").config == TINY_CONFIG
    hub.answers["/org/other/resolve/main/config.json"] = Answer(body=CONFIG + b" " * (padding + 1))
    assert "larger than" in refused(client(tmp_path, hub), InvalidModelConfig, "org/other").detail


def test_an_endless_body_is_cut_off(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(body=b" " * (3 * MOST_CONFIG_BYTES), headers={"content-length": str(10**15)})
    refused(client(tmp_path, hub), InvalidModelConfig)


def test_a_compressed_body_was_not_asked_for(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(body=CONFIG, headers={"content-encoding": "gzip"})
    assert "encoding" in refused(client(tmp_path, hub), HubUnreachable).detail


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"", b'{"a": ' * 50_000, b'{"a":1,"a":2}', b'{"a": [[[[' * 30])
def test_what_is_no_config_is_refused_and_not_remembered(tmp_path: Path, hub: Hub, body: bytes):
    hub.answers[MAIN] = Answer(body=body)
    asked = client(tmp_path, hub)
    assert refused(asked, InvalidModelConfig).pointer == "/model/hub"
    hub.answers[MAIN] = Answer(body=CONFIG)
    assert asked.config("org/name", "main").config == TINY_CONFIG


def test_a_redirect_within_the_hub_is_followed(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(status=307, headers={"location": "/cache/x"})
    hub.answers["/cache/x"] = Answer(body=CONFIG)
    assert client(tmp_path, hub).config("org/name", "main").config == TINY_CONFIG


def test_a_circle_of_redirects_is_left(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(status=302, headers={"location": MAIN})
    assert "more than 3 times" in refused(client(tmp_path, hub), HubUnreachable).detail
    assert len(hub.asked) == 4


@pytest.mark.parametrize(
    "location",
    [
        "http://other.example/x",
        "http://127.0.0.1:1/x",
        "//169.254.169.254/x",
        "file:///etc/passwd",
        "http://[bad",
        "ftp://127.0.0.1/",
    ],
)
def test_a_redirect_elsewhere_is_not_followed(tmp_path: Path, hub: Hub, location: str):
    hub.answers[MAIN] = Answer(status=302, headers={"location": location})
    assert "redirects to" in refused(client(tmp_path, hub), HubUnreachable).detail


def resolving(**addresses: str) -> Any:
    def resolver(host: str, _port: int) -> tuple[IpAddress, ...]:
        known = {"127.0.0.1": "127.0.0.1", **{name.replace("_", "."): value for name, value in addresses.items()}}
        if host not in known:
            raise OSError("unknown name")
        return (ipaddress.ip_address(known[host]),)

    return resolver


def test_a_listed_host_is_asked_by_name_at_the_address_that_was_checked(tmp_path: Path, hub: Hub):
    with running_hub() as store:
        hub.answers[MAIN] = Answer(status=302, headers={"location": f"http://store.example:{store.port}/x"})
        store.answers["/x"] = Answer(body=CONFIG)
        settings = Settings(data_dir=tmp_path, hub_url=hub.url, hub_redirect_hosts=(f"Store.example:{store.port}",))
        # The hub is on loopback itself, so the store may be.
        asked = HubClient(settings, resolver=resolving(store_example="127.0.0.1"))
        assert asked.config("org/name", "main").config == TINY_CONFIG
        assert store.hosts == [f"store.example:{store.port}"]


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "169.254.169.254",
        "::ffff:10.0.0.1",
        "fe80::1",
        "fec0::1",
        "::",
        "224.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
    ],
)
def test_a_listed_host_in_another_local_network_is_not_asked(tmp_path: Path, hub: Hub, address: str):
    hub.answers[MAIN] = Answer(status=302, headers={"location": "https://store.example/x"})
    settings = Settings(data_dir=tmp_path, hub_url=hub.url, hub_redirect_hosts=("store.example",))
    asked = HubClient(settings, resolver=resolving(store_example=address))
    assert "local network" in refused(asked, HubUnreachable).detail


def test_not_even_a_mirror_at_a_link_local_address_leads_to_another(tmp_path: Path):
    mirror, store = httpx.URL("http://mirror.example"), "store.example"
    resolver = resolving(mirror_example="169.254.1.1", store_example="169.254.169.254")
    with pytest.raises(HubUnreachable, match="local network"):
        Redirects(mirror, [store], resolver=resolver).target(mirror, f"http://{store}/x")


def test_a_listed_host_without_an_address_is_unreachable(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(status=302, headers={"location": "https://store.example/x"})
    settings = Settings(data_dir=tmp_path, hub_url=hub.url, hub_redirect_hosts=("store.example",))
    assert "not known" in refused(HubClient(settings, resolver=resolving()), HubUnreachable).detail


def test_a_branch_is_remembered_for_a_while(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(body=CONFIG)
    for asked in (client(tmp_path, hub), client(tmp_path, hub)):
        asked.config("org/name", "main")
        asked.config("org/name", "main")
    assert len(hub.asked) == 1
    client(tmp_path, hub, hub_cache_seconds=0).config("org/name", "main")
    assert len(hub.asked) == 2


def test_a_commit_is_remembered_for_ever(tmp_path: Path, hub: Hub):
    hub.answers[f"/org/name/resolve/{COMMIT}/config.json"] = Answer(body=CONFIG)
    for _ in range(2):
        client(tmp_path, hub, hub_cache_seconds=0).config("org/name", COMMIT)
    assert len(hub.asked) == 1


def test_a_damaged_memory_is_fetched_again(tmp_path: Path, hub: Hub):
    hub.answers[MAIN] = Answer(body=CONFIG)
    client(tmp_path, hub).config("org/name", "main")
    (kept,) = (tmp_path / "hub").iterdir()
    kept.write_bytes(b"")
    assert client(tmp_path, hub).config("org/name", "main").config == TINY_CONFIG
    assert len(hub.asked) == 2


def test_what_is_kept_grows_old_below_its_time_and_not_above(tmp_path: Path):
    HubCache(tmp_path, lasting_seconds=100).put("a", b"{}")
    (path,) = tmp_path.iterdir()
    for age_seconds, is_kept in ((90, True), (110, False), (-60, False)):
        os.utime(path, (0, time.time() - age_seconds))
        assert (HubCache(tmp_path, lasting_seconds=100).get("a", is_lasting=False) is not None) is is_kept
        assert HubCache(tmp_path, lasting_seconds=100).get("a", is_lasting=True) == b"{}"


def test_the_folder_keeps_the_youngest(tmp_path: Path):
    for number in range(MOST_FILES):
        path = tmp_path / f"{number}.json"
        path.touch()
        os.utime(path, (0, number))
    HubCache(tmp_path, lasting_seconds=100).put("a", b"{}")
    assert len(list(tmp_path.iterdir())) == MOST_FILES
    assert not (tmp_path / "0.json").exists()


def test_a_folder_that_cannot_be_written_costs_only_another_fetch(tmp_path: Path):
    (tmp_path / "hub").write_text("a file where the folder should be")
    cache = HubCache(tmp_path / "hub", lasting_seconds=100)
    cache.put("a", b"{}")
    assert cache.get("a", is_lasting=False) == b"{}"
    assert HubCache(tmp_path / "hub", lasting_seconds=100).get("a", is_lasting=False) is None


@pytest.mark.parametrize("location", ["/elsewhere/config.json", "elsewhere/config.json"])
def test_a_mirror_with_a_password_in_its_address_redirects_within_itself(location: str):
    mirror = httpx.URL("http://user:password@mirror.example/org/name/resolve/main/config.json")
    target = Redirects(mirror, []).target(mirror, location)
    assert target.url.host == "mirror.example"
    assert target.url.userinfo == b"user:password"
    # One that the mirror itself writes is another matter.
    with pytest.raises(HubUnreachable):
        Redirects(mirror, []).target(mirror, "http://other:secret@mirror.example/x")
