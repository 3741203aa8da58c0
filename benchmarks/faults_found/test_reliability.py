"""What strangers and floods once did to a running service."""

from __future__ import annotations

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
