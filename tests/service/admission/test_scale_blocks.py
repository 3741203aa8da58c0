from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import read_review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from tests.service.admission.reviews import a_container, a_review, an_object
from tests.service.admission.test_judge import Plans

R1 = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --dist-init-addr $(LWS_LEADER_ADDRESS):20000"
QWEN = "vllm serve Qwen/Qwen3-235B-A22B-FP8 --max-model-len 16384 -tp"
MINIMAX = "vllm serve MiniMaxAI/MiniMax-M2 --max-model-len 16384 -tp"
VLLM, SGLANG = "vllm/vllm-openai:v0.19.0", "lmsysorg/sglang:v0.5.6"


@pytest.fixture(scope="module")
def judge() -> AdmissionService:
    known = catalogue()
    sizer = Sizer(ModelResolver(known, Settings()), known)
    return AdmissionService(answers=sizer, plans=Plans(), catalogue=known, policies=Policies(None))


@pytest.mark.parametrize(
    ("image", "command", "gpus", "told"),
    [
        # An expert of 1,536 over 8 ranks is 192, a block and a half of 128; over 4 it is 384, three blocks.
        (VLLM, f"{QWEN} 8", 8, "192 each, which is no multiple of 128"),
        (VLLM, f"{QWEN} 8 --enable-expert-parallel", 8, None),
        (VLLM, f"{QWEN} 4", 4, None),
        (VLLM, f"{QWEN} 4 --data-parallel-size 2", 8, "192 each"),
        ("vllm/vllm-openai:v0.33.0", f"{QWEN} 8", 8, None),
        ("vllm/vllm-openai:latest", f"{QWEN} 8", 8, None),
        (VLLM, f"{MINIMAX} 8", 8, "192 each"),
        (VLLM, f"{MINIMAX} 4", 4, None),
        # 2,048 over 16 ranks is one block, over 32 half of one.
        (SGLANG, f"{R1} --tp 16 --nnodes 2", 16, None),
        # So are dense layers of 18,432: four blocks and a half.
        (SGLANG, f"{R1} --tp 32 --nnodes 4", 32, "576 each, which is no multiple of 128"),
        (SGLANG, f"{R1} --tp 32 --nnodes 4 --ep-size 32 --moe-dense-tp-size 1", 32, None),
    ],
)
async def test_a_rank_takes_whole_blocks_of_each_expert(judge, image, command, gpus, told):
    container = a_container(image=image, command=command.split(), gpus=min(gpus, 8))
    manifest = an_object("LeaderWorkerSet", container, pods=max(gpus // 8, 1))
    answer = await judge.review(read_review(a_review("LeaderWorkerSet", manifest)))
    assert answer.is_allowed == (told is None), answer.message
    assert (told or "") in answer.message
