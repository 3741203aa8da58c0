"""What the webhook says of degrees: those that the model's own numbers forbid are refused, and no others for that."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import Answer, read_review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from tests.properties.laws import law
from tests.service.admission.reviews import a_container, a_review, an_object

ENGINES = {
    "vllm": ("vllm/vllm-openai:v0.19.0", "vllm serve {model} --tensor-parallel-size {tensor} --max-model-len 512"),
    "sglang": (
        "lmsysorg/sglang:v0.5.6",
        "python3 -m sglang.launch_server --model-path {model} --tp {tensor} --context-length 512",
    ),
}
MODELS = sorted(model.id for model in catalogue().models)
PADDED_ROWS = 64
MEGATRON = (
    "torchrun --nproc-per-node 8 --nnodes {nodes} pretrain_gpt.py --num-layers {layers} --hidden-size 4096 "
    "--num-attention-heads {heads} --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 "
    "--micro-batch-size 1 --global-batch-size {batch} --num-experts {experts} --expert-model-parallel-size {expert} "
    "--tensor-model-parallel-size {tensor} --pipeline-model-parallel-size {stages} --bf16 --swiglu "
    "--use-distributed-optimizer"
)


class NoPlans:
    """Holds no plan."""

    async def get(self, plan_id: str) -> Any:
        raise AssertionError(plan_id)


@cache
def webhook() -> AdmissionService:
    known = catalogue()
    sizer = Sizer(ModelResolver(known, Settings()), known)
    return AdmissionService(answers=sizer, plans=NoPlans(), catalogue=known, policies=Policies(None))


def reviewed(kind: str, command: str, *, gpus: int, pods: int = 1, image: str = "x") -> Answer:
    """Return what the webhook answers."""
    container = a_container(gpus=gpus, image=image, command=command.split())
    review = read_review(a_review(kind, an_object(kind, container, pods=pods)))
    return asyncio.run(webhook().review(review))


def refusal(answer: Answer) -> str | None:
    """Return why a command cannot run, None where it may; how much memory it needs is another question."""
    return answer.message if "cannot run: " in answer.message else None


def divides_heads(model: str, tensor: int, *, pads_any: bool) -> bool:
    """Return whether the heads, and the vocabulary in whole units, divide over so many ranks."""
    spec = ModelResolver(catalogue(), Settings()).resolve(model).spec
    heads, shared = spec.attention_heads, spec.key_value_heads
    rows = -(-spec.vocabulary_size // PADDED_ROWS) * PADDED_ROWS
    even_heads = heads % tensor == 0 and (shared % tensor == 0 or tensor % shared == 0)
    return even_heads and (pads_any or rows % tensor == 0)


@law(few=25, many=2_000)
@given(
    model=st.sampled_from(MODELS),
    engine=st.sampled_from(sorted(ENGINES)),
    tensor=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16]),
)
def test_tensor_parallelism_is_refused_where_the_models_numbers_do_not_divide_and_nowhere_else(
    model: str, engine: str, tensor: int
) -> None:
    image, command = ENGINES[engine]
    answer = reviewed("Deployment", command.format(model=model, tensor=tensor), gpus=tensor, image=image)
    # Of a model that the engine does not run at all nothing divides.
    assume(not any(" has no code for " in warning for warning in answer.warnings))
    found = refusal(answer)
    if not divides_heads(model, tensor, pads_any=engine == "sglang"):
        assert found is not None
    elif found is not None:
        # Checkpoints with a scale per block are divided between blocks (vllm and sglang, quantization/fp8.py).
        cut = re.search(r"have ([\d,]+) each, which is no multiple of (\d+)", found)
        if cut is not None:
            assert int(cut[1].replace(",", "")) % int(cut[2])
            return
        # Each rank of a matrix has as many rows or columns (vllm and sglang, distributed/utils.py, divide).
        uneven = re.search(r"dimension (\d+) of", found)
        assert uneven is not None
        assert int(uneven[1]) % tensor


@law(few=60, many=5_000)
@given(
    layers=st.sampled_from([24, 30, 32, 36, 48, 61, 64, 80, 94, 126]),
    heads=st.sampled_from([16, 24, 28, 32, 40, 64, 96]),
    experts=st.sampled_from([8, 60, 64, 128, 160]),
    nodes=st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
    tensor=st.sampled_from([1, 2, 3, 4, 6, 8]),
    stages=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]),
    expert=st.sampled_from([1, 2, 3, 4, 8]),
    batch=st.sampled_from([96, 100, 128, 192, 384, 480, 896, 1000]),
)
def test_megatrons_degrees_are_refused_where_its_assertions_fail_and_nowhere_else(**job: int) -> None:
    ranks, replica = 8 * job["nodes"], job["tensor"] * job["stages"]
    stands = [
        job["heads"] % job["tensor"] == 0,
        job["layers"] % job["stages"] == 0,
        job["experts"] % job["expert"] == 0,
        ranks % replica == 0,
        # Each expert is cut as the layers are (core/parallel_state.py, expert_tensor_parallel_size).
        ranks % (replica * job["expert"]) == 0,
        ranks % replica or job["batch"] % (ranks // replica) == 0,
    ]
    found = refusal(reviewed("Job", MEGATRON.format(**job), gpus=8, pods=job["nodes"]))
    assert (found is None) is all(stands)
