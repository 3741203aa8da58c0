"""The main job in one go, against a running service: plan, prove, size, quantize."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from plimsoll.cli.asking import NoAnswer
from plimsoll.cli.refusing import refuse
from plimsoll.cli.remote import Remote
from plimsoll.cli.screen import FITS, NO_ANSWER, print_text, progress_bar
from plimsoll.service.requests import examples
from plimsoll.service.text.answers import job_text, plan_text


def run_demo(url: str) -> int:
    """Run the four steps and print their tables; return 0, or 2 where a step has no answer."""
    try:
        with Remote(url) as service, progress_bar("Demo") as show:
            _heading("1. Plan Llama-3.1-8B training on 8 H100s")
            training = service.plan("train", examples.PLAN_TRAINING, show)
            print_text(plan_text(training), verdict=training["verdict"])
            _heading("2. Validate that plan by tracing one rank's step")
            proof = service.validate(training["plan_id"], "trace", show)
            _print_job(proof)
            _heading("3. Size Qwen2.5-72B serving on 4 H100s")
            serving = service.plan("infer", examples.SIZE_SERVING, show)
            print_text(plan_text(serving), verdict=serving["verdict"])
            _heading("4. Quantize Llama-3.2-1B (random weights) to NF4")
            quantization = service.quantize(examples.QUANTIZE, show)["job"]
            _print_job(quantization)
    except NoAnswer as error:
        return refuse(error, ())
    return FITS if all(job["state"] == "succeeded" for job in (proof, quantization)) else NO_ANSWER


def _print_job(job: Mapping[str, Any]) -> None:
    print_text(job_text(job), verdict=job["state"])


def _heading(text: str) -> None:
    sys.stdout.write(f"\n{text}\n{'=' * len(text)}\n\n")
    sys.stdout.flush()
