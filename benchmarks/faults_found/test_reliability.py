"""What strangers and floods once did to a running service."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import httpx
import pytest

EVIL = "evil.example"


@pytest.mark.parametrize(
    "led_here",
    [{"host": EVIL}, {"host": EVIL, "origin": f"http://{EVIL}"}, {"origin": f"http://{EVIL}"}, {"host": "intranet"}],
    ids=["host", "host and origin", "origin", "host without a dot"],
)
def test_a_page_of_another_site_is_told_nothing_without_a_key(service: httpx.Client, led_here: dict[str, str]):
    with httpx.Client(base_url=service.base_url, headers=led_here) as browser:
        assert browser.get("/plans").status_code == httpx.codes.UNAUTHORIZED
        assert browser.post("/plan/train", json={}).status_code == httpx.codes.UNAUTHORIZED


def test_a_config_of_two_thousand_unread_keys_is_answered_in_a_page(service: httpx.Client):
    config = {
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
    unread = {f"{number}{'x' * 400}": "y" * 400 for number in range(1_900)}
    question = {
        "model": {"config": {**config, **unread}},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "serving": {"weights": "bf16", "max_model_len": 4096, "input_tokens": 100, "output_tokens": 100},
    }
    answer = service.post("/plan/infer", json=question)
    assert answer.status_code == httpx.codes.OK
    assert len(answer.content) < 50_000
    asked = service.get(f"/plans/{answer.json()['plan_id']}/question")
    assert len(asked.content) < 50_000


def test_every_client_sees_that_its_body_is_too_large(service: httpx.Client):
    address = (service.base_url.host, service.base_url.port or 80)
    body = b" " * (20 * 2**20)
    head = f"POST /plan/infer HTTP/1.1\r\nhost: {address[0]}\r\ncontent-length: {len(body)}\r\n"
    key = service.headers.get("authorization")
    head += f"authorization: {key}\r\n\r\n" if key else "\r\n"
    for _ in range(10):
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(head.encode() + body)
            answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413")


def test_half_open_connections_leave_room_for_others(service: httpx.Client):
    address = (service.base_url.host, service.base_url.port or 80)
    with ExitStack() as opened:
        for _ in range(800):
            connection = opened.enter_context(socket.create_connection(address, timeout=30))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1")
        assert httpx.get(f"{service.base_url}/healthz", timeout=5).status_code == httpx.codes.OK
