"""The main job's requests are ones that the service takes, and the start-up shows them ready to paste."""

import json
import shlex

import pytest

from plimsoll.service.requests import examples
from plimsoll.service.requests.jobs import QuantizeRequest
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest
from plimsoll.service.running.supervisor import banner

REQUESTS = {
    "/plan/train?format=text": (TrainRequest, examples.PLAN_TRAINING),
    "/plan/infer?format=text": (InferRequest, examples.SIZE_SERVING),
    "/quantize": (QuantizeRequest, examples.QUANTIZE),
}


@pytest.mark.parametrize("path", REQUESTS)
def test_the_start_up_suggests_a_command_that_sends_the_request(path):
    shape, body = REQUESTS[path]
    commands = banner("http://127.0.0.1:8000", 1).replace("\\\n", " ").split("\n")
    words = next(shlex.split(line) for line in commands if f"127.0.0.1:8000{path}'" in line)
    assert json.loads(words[-1]) == body
    shape.model_validate(body)
