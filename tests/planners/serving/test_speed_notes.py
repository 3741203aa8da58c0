"""Tests of the sentences on what latencies rest on."""

from __future__ import annotations

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.planners.serving.speed_notes import speed_notes
from tests.planners.serving.factories import hardware, model, question
from tests.planners.serving.times.test_attention_seconds import DEEPSEEK_V32, MAMBA2
from tests.planners.serving.times.test_replica_work import work_at


def told(gpu="h100-sxm-80gb", **changes) -> list[str]:
    card = catalogue().gpu(gpu)
    changes = {"hardware": hardware(changes.pop("gpus", 1), gpu=card), **changes}
    profile = resolve_settings(
        question(**{key: value for key, value in changes.items() if key != "tensor_parallel"})
    ).profile
    return list(speed_notes(profile, card, work_at(**changes)))


def test_the_releases_and_the_card_are_named_that_were_measured():
    (only,) = told()
    assert "(vLLM 0.24.0 on h100-sxm-80gb)" in only
    assert "Nine in ten" in only


def test_another_cards_times_are_told_with_the_wider_band():
    _, other = told("rtx-4090-24gb", max_model_len=1024)
    assert other.startswith("Of rtx-4090-24gb no such times are known: those of l40s-48gb are scaled")
    assert "1.5 times as wide" in other


def test_another_engines_kernel_is_told():
    # vLLM's own products in 4 bits were not measured.
    assert (
        told(weights="int4")[-1]
        == "No kernel of vLLM's own was measured for matrix products: another engine's stands in."
    )


def test_what_no_table_holds_is_told():
    assert any("measured on no card" in each for each in told(spec=MAMBA2))


def test_prompts_through_sparse_attention_are_said_to_rest_on_published_rates():
    notes = told(spec=model(DEEPSEEK_V32), tensor_parallel=8, weights="fp8")
    assert any(each.startswith("Sparse attention of prompts is taken to reach 0.6") for each in notes)
    assert not any("measured on no card" in each for each in notes)
