from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.plans import Advice
from plimsoll.service.admission.ways_out import training_ways_out

LAYOUT = "fsdp2, ZeRO 3, micro-batch 1, recompute full"
PLANNED = "Planned for speed: fsdp2, ZeRO 3, micro-batch 1, recompute full"
ON_HOST = f"{PLANNED}, optimizer states and parameters on the host."


def an_offer(change: dict[str, Any], reason: str, *, fits: bool = True) -> Advice:
    return Advice(
        change=change, peak_bytes=1, step_seconds=1.0, peak_bytes_difference=0, step_seconds_difference=0.0, fits=fits,
        verdict="fits" if fits else "no", reason=reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason", "text"),
    [
        ({"training.micro_batch_size": 1}, f"Smaller. {PLANNED}.", "micro_batch_size 1"),
        # What was found in place of what the change leaves open, offload above all.
        (
            {"framework": "any"}, f"Another. {ON_HOST}",
            f"another framework ({LAYOUT}, optimizer states and parameters on the host)",
        ),
        (
            {"training.method": "lora", "layout": {}, "framework": "fsdp2"}, f"Few weights. {PLANNED}.",
            "method lora and the layout left free (fsdp2, ZeRO 3, micro-batch 1, recompute full)",
        ),
        ({"training.method": "lora", "framework": "fsdp2"}, f"Few. {PLANNED}.", "method lora and framework fsdp2"),
        (
            {"hardware.gpus": 16}, f"More. {ON_HOST}",
            "16 GPUs (fsdp2, ZeRO 3, micro-batch 1, recompute full, optimizer states and parameters on the host)",
        ),
        ({"layout.zero_stage": 3, "layout.offload": "optimizer+parameters"}, f"Less. {ON_HOST}",
         "zero_stage 3 and offload optimizer+parameters"),
    ],
)  # fmt: skip
def test_an_offer_says_what_was_planned_where_it_leaves_that_open(change: dict[str, Any], reason: str, text: str):
    assert training_ways_out((an_offer(change, reason),)) == f"; it fits with {text}"


def test_only_what_fits_is_offered_and_three_at_most():
    offers = [an_offer({"hardware.gpus": gpus}, PLANNED, fits=gpus > 8) for gpus in (8, 16, 24, 32, 40)]
    assert training_ways_out(offers) == "; it fits with 16 GPUs or 24 GPUs or 32 GPUs"
