"""`docker-compose.yml` and the proxy's configuration: of one mind with the service."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml

from plimsoll.api.auth.forwarded import caller_behind
from plimsoll.api.auth.led_here import OwnHosts
from plimsoll.service.ground.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
NGINX = (ROOT / "deploy" / "nginx.conf").read_text()
VARIABLE_WITH_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of the API's containers, with nothing set around them."""
    for name, value in SERVICES["api"]["environment"].items():
        monkeypatch.setenv(name, VARIABLE_WITH_DEFAULT.sub(r"\1", str(value)))
    return Settings()


def test_every_setting_exists():
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    told = {name for service in SERVICES.values() for name in service.get("environment", {}) if name.startswith(PREFIX)}
    assert told <= known


def test_whoever_asks_the_published_port_needs_no_key_and_a_strangers_page_does(settings: Settings):
    assert SERVICES["proxy"]["ports"] == ["127.0.0.1:8000:8000"]
    assert not settings.needs_keys
    hosts = OwnHosts((*settings.allowed_hosts, settings.host))
    assert hosts.refusal({"headers": [(b"host", b"127.0.0.1:8000")]}) is None
    evil = [(b"host", b"evil.example:8000"), (b"origin", b"http://evil.example:8000")]
    assert hosts.refusal({"headers": evil}) is not None
    # The proxy hands on what was asked for, port included.
    assert "proxy_set_header Host $http_host;" in NGINX


@pytest.mark.parametrize("network", ["172.18.0.4", "192.168.16.3"])
def test_the_proxy_in_a_network_of_dockers_is_believed_and_says_only_what_it_saw(settings: Settings, network: str):
    assert any(ip_address(network) in trusted for trusted in settings.trusted_proxies)
    assert caller_behind(network, "203.0.113.7", settings.trusted_proxies) == "203.0.113.7"
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in NGINX
