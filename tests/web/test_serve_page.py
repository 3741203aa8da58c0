"""The serving page in a real browser: a deployment is sized, priced and measured."""

from __future__ import annotations

from tests.web.browser import NEEDS_CHROMIUM, SETTLED, Browser

pytestmark = NEEDS_CHROMIUM

PRICED = (
    "/ui/serve?model=Qwen/Qwen2.5-7B-Instruct&hardware.gpu=h100-sxm-80gb&hardware.gpus=1&hardware.usd_per_gpu_hour=2"
    "&serving.max_model_len=32768&serving.input_tokens=2048&serving.output_tokens=512&serving.concurrency=48"
    "&serving.slo.ttft_seconds=1&serving.slo.tpot_seconds=0.05&serving.engine=vllm"
)


def test_a_deployment_is_sized_mapped_and_priced(page: Browser):
    page.ask(PRICED)
    assert "Meets the service level" in page.text("#verdict")
    assert "A million output tokens\nUS$ " in page.text("#verdict")
    # 1,024 to 32,768 tokens are six lengths; the concurrency that was asked for has a row of its own.
    assert page.value("document.querySelectorAll('.heat thead tr:first-child th').length") == 7
    assert page.text(".heat tr.asked th") == "48"


def test_the_curves_show_what_was_promised(page: Browser):
    page.ask(PRICED)
    marks = page.value("[...document.querySelectorAll('.mark-text')].map((mark) => mark.textContent)")
    assert marks == ["service level 50 ms", "service level 1 s"]


def test_single_requests_of_the_asked_load_are_told(page: Browser):
    page.ask(PRICED)
    assert "Simulated request by request:" in page.text("#parts")
    page.ask(PRICED + "&serving.burst_seconds=90")
    assert "Keeps up with bursts of 48 requests" in page.text("#verdict")
    assert "A burst is answered to the last after" in page.text("#parts")
    page.ask(PRICED.replace("serving.concurrency=48", "serving.concurrency=") + "&serving.requests_per_second=2")
    assert "Keeps up with the requests that come" in page.text("#verdict")


def test_another_layout_is_taken_from_the_table(page: Browser):
    page.ask("/ui/serve")
    page.value("[...document.querySelectorAll('#parts button')].find((each) => each.textContent === 'Use').click()")
    page.until(f"location.search.includes('layout.pipeline_parallel=') && {SETTLED}")


def test_an_engine_s_log_is_answered_with_a_comparison_or_with_what_to_do(page: Browser):
    page.ask(PRICED)
    page.click("label + p button")
    page.until_text("#parts", "Paste a log first.")
    page.value("document.querySelector('[name=log]').value = 'GPU KV cache size: 1,000,000 tokens'")
    page.click("label + p button")
    page.until("document.querySelector('#parts [role=status] .problem, #parts [role=status] table')")
    page.forget_refusals()


def test_advice_says_whether_it_fits(page: Browser):
    page.ask("/ui/serve?model=meta-llama/Llama-3.1-70B-Instruct&hardware.gpu=h100-sxm-80gb&hardware.gpus=1")
    badges = page.value(
        "[...document.querySelectorAll('.advice .row > :last-child')].map((badge) => badge.textContent)"
    )
    assert badges
    assert set(badges) <= {"Fits", "Tight"}
