"""Plans read in a terminal of a hundred columns; only commands, which are there to be copied, may be wider."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.in_process import InProcess
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest
from plimsoll.service.text.answers import plan_text
from plimsoll.service.text.tables import COLUMNS
from tests.api.questions import infer, train

CLUSTER = {"gpu": "h100-sxm-80gb", "gpus": 64, "usd_per_gpu_hour": 2.5}
EVERYTHING = {
    "tokens": 1.5e12,
    "evaluation": {"batch_size": 8, "keeps_logits": True},
    "companions": [{"role": "reference"}],
    "activation_offload": True,
}
COMPARED = [{"tensor_parallel": 3}, {"data_parallel": 64, "zero_stage": 1}]


@pytest.mark.parametrize(
    "asked",
    [
        TrainRequest.model_validate(train(hardware=CLUSTER, compare=COMPARED, training={"global_batch_size": 64})),
        TrainRequest.model_validate(train(training=EVERYTHING, framework="accelerate")),
        TrainRequest.model_validate(train(hardware={"fleet": [CLUSTER, {"gpu": "a100-sxm-80gb", "gpus": 8}]})),
        InferRequest.model_validate(infer(serving={"concurrency": 4, "slo": {"ttft_seconds": 1.0}})),
    ],
    ids=["compared", "everything", "fleet", "serving"],
)
async def test_no_line_but_a_command_is_wider_than_the_terminal(asked: TrainRequest | InferRequest):
    body: dict[str, Any] = await InProcess(Settings()).plan(asked)
    commands = {f"  {command}" for command in body["artifacts"].values() if isinstance(command, str)}
    wide = [line for line in plan_text(body).splitlines() if len(line) > COLUMNS]
    assert [line for line in wide if not any(line in command for command in commands)] == []
