from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from plimsoll.service.ground.settings import Settings, settings_reference


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(f"PLIMSOLL_{name.upper()}", raising=False)


def test_nothing_need_be_set():
    settings = Settings()
    assert (settings.database_url, settings.host, settings.port) == (None, "127.0.0.1", 8000)
    assert (settings.data_dir, settings.worker_queues) == (Path(".plimsoll"), ("cpu",))


def test_a_setting_is_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("PLIMSOLL_PORT", "9000")
    assert Settings().port == 9000


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("PLIMSOLL_DATABASE_URL", "")
    assert Settings().database_url is None


@pytest.mark.parametrize("written", ["/a:/b", '["/a", "/b"]', " /a : /b :"])
def test_folders_are_a_list_or_stand_between_colons(monkeypatch, written):
    monkeypatch.setenv("PLIMSOLL_MODEL_ROOTS", written)
    assert Settings().model_roots == (Path("/a"), Path("/b"))


def test_queues_stand_between_commas(monkeypatch):
    monkeypatch.setenv("PLIMSOLL_WORKER_QUEUES", "cpu, gpu:h100")
    assert Settings().worker_queues == ("cpu", "gpu:h100")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("max_body_bytes", "1023"),
        ("job_max_attempts", "0"),
        ("queue_limit", "-1"),
        ("log_level", "loud"),
        ("hub_url", "ftp://hub"),
        ("database_url", "mysql://host/name"),
        ("database_url", "no url"),
        ("worker_queues", ","),
        ("model_roots", '["unclosed"'),
        ("request_timeout_seconds", "0"),
        ("keep_plans_days", "2"),
        ("keep_plans_days", "-1"),
        ("tls_certificate_file", "/only/one"),
        ("tls_key_file", "/only/one"),
        ("tls_client_ca_file", "/without/a/certificate"),
        ("key_requests_per_second", "-1"),
        ("allowed_hosts", "plimsoll.example:8000"),
        ("allowed_hosts", "http://plimsoll.example"),
        ("trusted_proxies", "proxy"),
        ("trusted_proxies", "10.0.0.1/8"),
    ],
)
def test_a_value_that_makes_no_sense_stops_the_start(monkeypatch, name, value):
    monkeypatch.setenv(f"PLIMSOLL_{name.upper()}", value)
    with pytest.raises(ValidationError, match=f"(?i){name}"):
        Settings()


@pytest.mark.parametrize(("name", "value"), [("port", "65535"), ("port", "0"), ("max_body_bytes", "1024")])
def test_a_value_at_the_edge_is_taken(monkeypatch, name, value):
    monkeypatch.setenv(f"PLIMSOLL_{name.upper()}", value)
    assert getattr(Settings(), name) == int(value)


def test_a_worker_must_be_heard_twice_before_it_counts_as_dead():
    assert Settings(heartbeat_seconds=3, stalled_after_seconds=6).heartbeat_seconds == 3
    with pytest.raises(ValidationError, match=r"at least 6\.2"):
        Settings(heartbeat_seconds=3.1, stalled_after_seconds=6)


SECRET_ADDRESSES = ("database_url", "hub_url", "traces_url")


def test_no_password_of_an_address_is_shown_by_a_repr():
    address = "://u:planted@h"
    settings = Settings(database_url=f"postgresql{address}", hub_url=f"http{address}", traces_url=f"http{address}")
    assert "planted" not in repr(settings) + str(settings)


@pytest.mark.parametrize("name", SECRET_ADDRESSES)
def test_no_password_of_an_address_that_makes_no_sense_is_told(name):
    with pytest.raises(ValidationError) as refused:
        Settings(**{name: "ftp://u:planted@h"})
    assert name in str(refused.value)
    assert "planted" not in str(refused.value)


def test_every_setting_is_described_in_the_reference():
    reference = settings_reference()
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"| `PLIMSOLL_{name.upper()}` |" in reference
        assert field.description.replace("|", "\\|") in reference


def test_the_reference_shows_defaults():
    reference = settings_reference()
    assert "| `PLIMSOLL_PORT` | `8000` |" in reference
    assert "| `PLIMSOLL_WORKER_QUEUES` | `cpu` |" in reference
    assert "| `PLIMSOLL_MODEL_ROOTS` | unset |" in reference


def test_the_page_of_settings_shows_the_reference_as_it_is():
    page = Path(__file__).parents[3] / "docs" / "settings.md"
    assert settings_reference() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("host", "needs_keys"),
    [("127.0.0.1", False), ("127.8.9.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True),  # noqa: S104
     ("::", True), ("10.0.0.1", True), ("plimsoll.example", True)],
)  # fmt: skip
def test_keys_are_needed_as_soon_as_others_can_connect(host, needs_keys):
    assert Settings(host=host).needs_keys is needs_keys
    assert not Settings(host=host, allow_anonymous=True).needs_keys


@pytest.mark.parametrize("days", [0, 3])
def test_plans_are_kept_for_longer_than_they_are_remembered_or_for_ever(days):
    assert Settings(keep_plans_days=days).keep_plans_days == days
