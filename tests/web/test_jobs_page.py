"""Jobs, lists, comparison and accuracy in a real browser, with a worker that does the work."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.service.worker.quantization.small_llama import write_checkpoint
from tests.web.browser import CATALOGUES, NEEDS_CHROMIUM, Browser
from tests.web.running import RunningService

pytestmark = NEEDS_CHROMIUM

TINY = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 64, "n_layer": 3, "n_head": 2}
TINY_LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# Long enough to be cancelled: a gigabyte of weights and more.
LONG = {"model_type": "gpt2", "vocab_size": 50_000, "n_embd": 2048, "n_layer": 24, "n_head": 16}
QUESTION = {
    "model": {"config": TINY_LLAMA},
    "hardware": {"gpu": "t4-16gb", "gpus": 1},
    "training": {"sequence_length": 64, "global_batch_size": 2, "precision": "fp32"},
    "framework": "accelerate",
}


@pytest.fixture(scope="module")
def plans(service: RunningService) -> list[str]:
    """Return the ids of two plans that differ in their batch."""
    with httpx.Client(base_url=service.address, trust_env=False, timeout=60) as client:
        questions = [QUESTION | {"training": QUESTION["training"] | {"global_batch_size": size}} for size in (2, 4)]
        return [client.post("/plan/train", json=each).raise_for_status().json()["plan_id"] for each in questions]


def quantize(page: Browser, config: dict[str, object]) -> None:
    page.visit("/ui/jobs")
    page.until(CATALOGUES)
    page.fill("model.config", json.dumps(config), form="#quantize")
    page.click("#quantize button")
    page.until_text("#job h2", "quantize:")


def test_a_quantization_is_followed_to_its_plots(page: Browser):
    quantize(page, TINY)
    page.until_text("#job h2", "quantize: succeeded")
    assert "After: " in page.text("#job")
    # Four matrices in each of three layers.
    assert page.value("document.querySelectorAll('#job .point').length") == 12
    page.until("document.querySelectorAll('#list tbody tr').length > 0")


def test_a_checkpoint_is_quantized_and_written_and_its_estimate_told(page: Browser, service: RunningService):
    write_checkpoint(service.models / "small")
    page.visit("/ui/jobs")
    page.until(CATALOGUES)
    page.fill("weights.path", "small", form="#quantize")
    page.fill("output", "small-nf4", form="#quantize")
    page.click("#quantize button")
    page.until_text("#job h2", "quantize:")
    page.until_text("#job", "Left alone: ")
    page.until_text("#job h2", "quantize: succeeded")
    assert "Written to small-nf4" in page.text("#job")


def test_a_folder_that_may_not_be_read_is_marked_and_asks_for_no_key(page: Browser):
    page.visit("/ui/jobs")
    page.until(CATALOGUES)
    page.fill("weights.path", "/elsewhere", form="#quantize")
    page.click("#quantize button")
    page.until_text("#note", "outside")
    assert "key" not in page.text("#note")
    page.until("document.querySelector('[name=\"weights.path\"]').getAttribute('aria-invalid') === 'true'")
    page.forget_refusals()


def test_a_quantization_of_nothing_is_refused_in_the_form_s_words(page: Browser):
    page.visit("/ui/jobs")
    page.until(CATALOGUES)
    page.click("#quantize button")
    page.until_text("#note", "Model: model is missing.")
    page.forget_refusals()


def test_a_scheme_is_asked_for_its_own_settings_only(page: Browser):
    page.visit("/ui/jobs")
    shown = "[...document.querySelectorAll('#quantize [data-when]')].map((field) => !field.hidden)"
    page.until(CATALOGUES)
    # Block size, double quantization.
    assert page.value(shown) == [True, True]
    page.fill("scheme", "int4", form="#quantize")
    assert page.value(shown) == [True, False]
    page.fill("scheme", "fp8", form="#quantize")
    assert page.value(shown) == [False, False]


def test_a_running_job_is_cancelled(page: Browser):
    quantize(page, LONG)
    page.until("[...document.querySelectorAll('#job button')].some((button) => button.textContent === 'Cancel')")
    page.value("[...document.querySelectorAll('#job button')].find((each) => each.textContent === 'Cancel').click()")
    page.until_text("#job h2", "quantize: cancelled")


def test_a_plan_is_validated_and_stands_in_the_scatter(page: Browser, plans: list[str]):
    page.visit(f"/ui/jobs?plan_id={plans[0]}")
    page.until("document.querySelector('#validate')?.elements.plan_id.value.length === 40")
    page.fill("level", "trace", form="#validate")
    page.click("#validate button")
    page.until_text("#job h2", "validate: succeeded")
    page.visit("/ui/accuracy")
    page.until("document.querySelectorAll('#scatter .point').length > 0")
    assert page.value("document.querySelector('#export button').textContent") == "Download all as CSV"
    page.fill("framework", "accelerate", form="#filters")
    page.until("location.search.includes('framework=accelerate')")


def test_jobs_are_filtered(page: Browser):
    page.visit("/ui/jobs?kind=validate")
    page.until("document.querySelector('#list table')")
    kinds = "[...document.querySelectorAll('#list tbody tr td:nth-child(2)')].map((cell) => cell.textContent)"
    assert set(page.value(kinds)) <= {"validate"}


def test_stored_plans_are_filtered_and_opened(page: Browser, plans: list[str]):
    page.visit("/ui/plans?kind=train&gpu=t4-16gb")
    page.until("document.querySelectorAll('#list tbody tr').length === 2")
    page.visit(page.value("document.querySelector('#list a').href"))
    page.until("document.querySelector('#question')?.hidden && document.querySelectorAll('#parts .part').length > 4")


def test_two_plans_are_compared_and_differences_marked(page: Browser, plans: list[str]):
    page.visit(f"/ui/compare?a={plans[0]}&b={plans[1]}")
    page.until("document.querySelector('tr.differs')")
    marked = page.value("[...document.querySelectorAll('tr.differs th')].map((cell) => cell.textContent)")
    assert "≠ memory: peak" in marked
    assert "≠ training: global batch size" in marked
    assert "layout: data parallel" not in " ".join(marked)


def test_plans_of_one_question_differ_in_nothing(page: Browser, plans: list[str]):
    page.visit(f"/ui/compare?a={plans[0]}&b={plans[0]}")
    page.until_text("[data-part='What was asked']", "No difference.")
    page.until_text("[data-part='What came of it']", "No difference.")


def test_the_reference_works_without_the_outside(page: Browser):
    page.visit("/docs")
    page.until("document.querySelectorAll('.opblock').length > 5")
