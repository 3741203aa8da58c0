"""The training page in a real browser: a job is sized, understood, changed and launched."""

from __future__ import annotations

import json
import re

from tests.web.browser import DESKTOP, NEEDS_CHROMIUM, PHONE, SETTLED, Browser

pytestmark = NEEDS_CHROMIUM

VERDICT = "document.querySelector('#verdict').innerText"
PIPELINE = (
    "/?model=meta-llama/Llama-3.1-8B&hardware.gpu=h100-sxm-80gb&hardware.gpus=8&training.sequence_length=4096"
    "&training.global_batch_size=32&framework=megatron&layout.pipeline_parallel=4&layout.data_parallel=2"
    "&layout.virtual_pipeline={chunks}&training.micro_batch_size=1"
)
LARGE = (
    "/?model=meta-llama/Llama-3.1-8B&hardware.gpu=h100-sxm-80gb&hardware.gpus=1024&training.sequence_length=4096"
    "&training.global_batch_size=1024&framework=fsdp2&layout.data_parallel=1024&training.micro_batch_size=1"
)
# 70B parameters in 16 bytes each are three times what eight of these cards have, and the host may not hold them.
TOO_LARGE = (
    "/?model=meta-llama/Llama-3.1-70B&hardware.gpu=a100-sxm-40gb&hardware.gpus=8&training.sequence_length=4096"
    "&training.global_batch_size=32&framework=fsdp2&layout.offload=none"
)
# A Llama of 2 layers: 2 x (4 x 64 x 64 + 3 x 64 x 128 + 2 x 64) + 2 x 1,000 x 64 + 64 = 210,240 parameters.
TINY = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}


def test_a_job_is_planned_without_a_word_typed(page: Browser):
    page.ask("/")
    assert page.text("#verdict").startswith("Fits")
    headings = page.value("[...document.querySelectorAll('#parts h2')].map((heading) => heading.textContent)")
    for heading in ("Memory of one GPU", "Memory over a step", "Step time", "Alternatives", "Device mesh", "Launch"):
        assert heading in headings


def test_what_nobody_timed_and_what_bounds_failures_is_shown(page: Browser):
    page.ask("/?model=meta-llama/Llama-3.1-8B&hardware.gpu=mi300x-192gb&hardware.gpus=8&training.tokens=1e10")
    parts = "document.querySelector('#parts').innerText"
    page.until(f"{SETTLED} && {parts}.includes('Failures a day')")
    assert "No timed run on this GPU was fitted." in page.text("#parts")
    # 8 x 0.00877 / 30 = 0.0023 and 8 x 0.0529 / 30 = 0.014.
    assert "(0.0023 to 0.014)" in page.text("#parts")


def test_the_answer_follows_what_is_typed_and_the_address_restores_it(page: Browser):
    page.ask("/")
    page.fill("layout.tensor_parallel", "4")
    page.until(f"{SETTLED} && {VERDICT}.includes('tensor 4')")
    page.ask(page.value("location.href"))
    assert "tensor 4" in page.text("#verdict")


def test_a_pasted_config_is_planned_and_restored_and_never_sent_in_an_address(page: Browser):
    page.ask("/")
    page.fill("model.config", json.dumps(TINY))
    page.until(f"{SETTLED} && {VERDICT}.startsWith('Fits') && !{VERDICT}.includes('Llama-3.1-8B')")
    assert "vocab" not in page.value("location.search")
    page.ask(page.value("location.href"))
    assert page.value("document.querySelector('#question').elements['model.config'].value") == json.dumps(TINY)
    assert "Llama-3.1-8B" not in page.text("#verdict")


def test_the_curve_of_memory_names_its_peak_and_its_moments(page: Browser):
    page.ask("/")
    curve = "figure[data-part=moments]"
    assert page.text(f"{curve} .note").startswith("Peak: ")
    spoken = page.value(f"[...document.querySelectorAll('{curve} .point')].map((p) => p.getAttribute('aria-label'))")
    names = [label.split(":")[0] for label in spoken]
    assert names[0] == "start of the forward pass"
    assert names[1].startswith("forward pass of layer ")
    assert "start of the backward pass" in names
    assert spoken[-1].startswith("optimizer step: ")


def test_a_pipeline_is_drawn_pass_by_pass(page: Browser):
    page.ask(PIPELINE.format(chunks=1))
    # 32 sequences over 2 replicas are 16 micro-batches, 12 of them drawn: 4 stages x 12 x (forward and backward).
    assert page.value("document.querySelectorAll('.schedule .pass').length") == 4 * 12 * 2
    assert "1F1B, 16 micro-batches" in page.text("#parts")


def test_an_interleaved_pipeline_is_drawn_chunk_by_chunk(page: Browser):
    page.ask(PIPELINE.format(chunks=2))
    assert page.value("document.querySelectorAll('.schedule .pass').length") == 4 * 12 * 2 * 2


def test_each_gpu_tells_what_it_holds(page: Browser):
    page.ask(PIPELINE.format(chunks=1))
    page.value("document.querySelectorAll('.gpu')[7].focus()")
    page.until_text(".holds", "GPU 7 in node 0: pipeline 3 of 4, data 1 of 2")
    assert re.search(r"layers \d+–31 with head", page.text(".holds"))
    page.click(".holds summary")
    assert "lm_head.weight" in page.text(".holds")
    assert "embed_tokens" not in page.text(".holds")


def test_the_gpus_are_gone_through_with_the_arrow_keys(page: Browser):
    page.ask(PIPELINE.format(chunks=2))
    page.value("document.querySelector('.gpu[tabindex=\"0\"]').focus()")
    for key, code in (("Home", 36), ("ArrowRight", 39), ("ArrowDown", 40)):
        page.press(key, code)
    # From 0 to 1, and four further a row down.
    page.until_text(".holds", "GPU 5 in node 0")
    # 32 layers on 4 stages in 2 chunks: GPU 5 is on the third stage, which has layers of either half.
    held = re.search(r"layers (\d+)–(\d+), (\d+)–(\d+)", page.text(".holds"))
    assert held is not None
    first, last, second_first, second_last = map(int, held.groups())
    assert 0 < first < last < 16 <= second_first < second_last < 31
    assert page.value("document.querySelectorAll('.gpu[tabindex=\"0\"]').length") == 1


def test_any_gpu_of_a_large_mesh_is_reached(page: Browser):
    page.ask(LARGE)
    assert "GPUs 0 to 511 of 1,024" in page.text(".pager")
    page.value("document.querySelectorAll('.pager button')[1].click()")
    page.until_text(".pager", "GPUs 512 to 1,023 of 1,024")
    page.value("document.querySelector('.pager input').value = '7'")
    page.value("document.querySelector('.pager input').dispatchEvent(new Event('input'))")
    page.until_text(".holds", "GPU 7 in node 0")
    page.until_text(".pager", "GPUs 0 to 511")


def test_an_alternative_is_selected_by_keyboard(page: Browser):
    page.ask("/")
    page.value("document.querySelector('.point[role=button]').focus()")
    page.press("Enter", 13)
    page.until(f"location.search.includes('layout.tensor_parallel=') && {SETTLED}")


def test_an_alternative_is_asked_why_it_was_not_chosen(page: Browser):
    page.ask("/")
    page.value("[...document.querySelectorAll('button')].find((button) => button.textContent === 'Why not?').click()")
    page.until("document.querySelector('td .told').textContent.length > 20")


def test_advice_is_tried_where_a_job_does_not_fit(page: Browser):
    page.ask(TOO_LARGE)
    assert page.text("#verdict").startswith("Does not fit")
    page.value("[...document.querySelectorAll('button')].find((button) => button.textContent === 'Try').click()")
    page.until(f"{SETTLED} && !{VERDICT}.startsWith('Does not fit')")


def test_a_launch_file_is_downloaded(page: Browser):
    page.ask("/")
    # The page makes a file of what the service sends; what a browser does with it is the browser's.
    made = "[...document.querySelectorAll('.file button')].map((button) => button.textContent)"
    assert page.value(made)[:2] == ["Copy", "Download"]
    page.value("window.saved = []; URL.createObjectURL = (blob) => { window.saved.push(blob); return '#'; }")
    page.value("[...document.querySelectorAll('.file button')][1].click()")
    page.until("window.saved.length")
    assert "torchrun" in page.value("window.saved[0].text()")


def test_a_launch_file_that_a_plan_cannot_have_is_named_with_why(page: Browser):
    page.ask(PIPELINE.format(chunks=2))
    assert "accelerate: accelerate's launcher has no option for virtual pipeline stages." in page.text(".missing")


def test_a_model_is_searched_by_words_and_asked_once_it_is_chosen(page: Browser):
    page.ask("/")
    page.value("document.querySelector('[name=model]').focus()")
    page.type_text("llama 3.2 1b")
    page.until("document.querySelectorAll('#models [role=option]').length > 0")
    assert "Llama-3.1-8B" in page.text("#verdict")
    assert page.value("document.querySelector('[name=model]').getAttribute('aria-expanded')") == "true"
    page.press("ArrowDown", 40)
    page.press("Enter", 13)
    page.until(f"{SETTLED} && {VERDICT}.includes('Llama-3.2-1B')")
    assert page.value("document.querySelector('#models').hidden")


def test_any_layout_can_be_asked_why_it_was_not_chosen(page: Browser):
    page.ask(PIPELINE.format(chunks=1))
    part = "document.querySelector('[data-part=\"Why not this layout?\"]')"
    page.value(f"{part}.querySelector('[name=pipeline_parallel]').value = '3'")
    page.value(f"{part}.querySelector('button').click()")
    page.until(f"{part}.querySelector('.told li')")
    assert "3 does not divide 8 GPUs" in page.value(f"{part}.querySelector('.told').innerText")


def test_what_was_unfolded_stays_so_with_the_next_answer(page: Browser):
    page.ask("/")
    page.value("document.querySelectorAll('.file summary')[1].click()")
    page.fill("training.global_batch_size", "128")
    page.until("location.search.includes('=128')")
    page.until(f"{SETTLED} && document.querySelectorAll('.file')[1].open")


def test_a_fixed_layout_is_counted_and_left_to_the_search_again(page: Browser):
    page.ask(PIPELINE.format(chunks=1))
    assert page.text("#fixed") == "4 fixed"
    page.click("#free-layout")
    page.until(f"{SETTLED} && !location.search.includes('layout.')")
    assert page.text("#fixed") == "searched"


def test_what_is_kept_free_is_said_in_gib_and_linked_in_bytes(page: Browser):
    page.ask("/")
    page.fill("hardware.reserve_bytes", "10")
    # 10 x 2^30.
    page.until(f"{SETTLED} && location.search.includes('reserve_bytes=10737418240')")
    page.until_text("#parts", "kept free, 10.0 GiB")
    page.ask(page.value("location.href"))
    assert page.value("document.querySelector('[name=\"hardware.reserve_bytes\"]').value") == "10"


def test_a_deadline_is_asked_for_where_there_is_one_to_keep(page: Browser):
    page.ask("/")
    field = "document.querySelector('[name=\"deadline_seconds\"]').closest('[data-when]')"
    assert page.value(f"{field}.hidden")
    page.fill("objective", "deadline")
    assert not page.value(f"{field}.hidden")
    page.fill("objective", "throughput")
    page.until(SETTLED)
    page.forget_refusals()


def test_a_refused_question_leaves_the_last_answer_standing(page: Browser):
    page.ask("/")
    page.fill("layout.tensor_parallel", "3")
    page.until_text("#verdict", "Showing the previous result")
    assert page.value("document.querySelectorAll('#parts .part').length") > 4
    page.fill("layout.tensor_parallel", "2")
    page.until(f"{SETTLED} && {VERDICT}.startsWith('Fits')")
    page.forget_refusals()


def test_what_a_model_is_called_is_never_markup(page: Browser):
    page.ask("/")
    page.fill("model", "<img src=x onerror=alert(1)>")
    page.until(f"{VERDICT}.includes('<img')")
    assert page.value("document.querySelector('main img') === null")
    assert page.value("document.querySelector('[name=model]').getAttribute('aria-invalid')") == "true"
    page.forget_refusals()


def test_nothing_runs_off_a_phones_side(page: Browser):
    page.resize(*PHONE)
    page.ask(PIPELINE.format(chunks=1))
    assert page.value("document.documentElement.scrollWidth") <= PHONE[0]
    assert page.text("#glance").startswith("Fits")
    # What the form comes to is in sight above all of it.
    assert page.value("document.querySelector('#glance').getBoundingClientRect().bottom") <= PHONE[1]


def test_the_page_is_dark_for_those_who_want_it(page: Browser):
    page.resize(*DESKTOP)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.ask("/")
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(16, 22, 29)"


def test_what_can_be_worked_has_a_name_and_is_reached_by_keyboard(page: Browser):
    page.call("Emulation.setEmulatedMedia", features=[])
    page.ask("/")
    nameless = """[...document.querySelectorAll('a, button, input, select, textarea, summary, [tabindex]')]
        .filter((each) => !(each.labels?.length || each.textContent.trim() || each.getAttribute('aria-label')))
        .map((each) => each.outerHTML.slice(0, 80))"""
    assert page.value(nameless) == []
    page.value("document.body.focus()")
    page.press("Tab", 9)
    assert page.value("document.activeElement.className") == "skip"


def test_an_address_that_names_one_field_leaves_the_others_as_the_page_begins(page: Browser):
    page.ask("/?model=Qwen/Qwen3-8B")
    fields = ("hardware.gpus", "training.sequence_length", "training.global_batch_size")
    values = [page.value(f"document.querySelector('[name=\"{name}\"]').value") for name in fields]
    # The defaults of the API and the terminal, and the page's own example of GPUs.
    assert values == ["8", "4096", "64"]
    assert "Qwen3-8B" in page.text("#verdict")


def test_a_field_that_was_emptied_stays_empty_behind_a_link(page: Browser):
    page.ask("/")
    page.fill("hardware.gpus", "")
    page.until("location.search.includes('hardware.gpus=&')")
    page.ask(page.value("location.pathname + location.search"))
    assert page.value("document.querySelector('[name=\"hardware.gpus\"]').value") == ""


def test_an_answer_that_is_no_longer_the_question_s_is_dimmed_and_said_to_be(page: Browser):
    page.ask("/")
    # The next answer takes a second.
    page.value(
        "(() => { const ask = window.fetch; window.fetch = (...given) => new Promise((answer) => "
        "setTimeout(() => answer(ask(...given)), 1000)); })()"
    )
    page.fill("training.sequence_length", "2048")
    page.until_text("#updating", "Updating")
    assert page.value("getComputedStyle(document.querySelector('#verdict')).opacity") == "0.55"
    page.until(f"{SETTLED} && document.querySelector('#updating').textContent === ''")
    assert page.value("getComputedStyle(document.querySelector('#verdict')).opacity") == "1"
