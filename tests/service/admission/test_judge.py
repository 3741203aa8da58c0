from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import PlanningStopped
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.launch_judge import ADVICE_CUT_SHORT
from plimsoll.service.admission.policy import Policies
from plimsoll.service.admission.review import read_review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.ground.errors import DatabaseUnavailable, PlanNotFound
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.workloads.objects.config_maps import GivenConfigMaps
from tests.service.admission.reviews import H100, KINDS, a_container, a_review, an_object

SMALL = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192")
# 72.7e9 parameters x 2 bytes over two GPUs are 67.7 GiB of weights in 79.2 GiB: nothing is left for 32,768 tokens.
LARGE = ("--model", "Qwen/Qwen2.5-72B-Instruct", "--tensor-parallel-size", "2")


def a_stored_plan(**changes: Any) -> Any:
    """Return a plan for two replicas of two GPUs."""
    layout = {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 1, "attention_data_parallel": 1}
    parts = {
        "plan_id": "known", "kind": "infer", "gpus": 4, "gpu": "h100-sxm-80gb", "fits": True, "verdict": "fits",
        "summary": "Fits.", "model": "Qwen/Qwen2.5-72B-Instruct", "answer": json.dumps({"plan": {"layout": layout}}),
    }  # fmt: skip
    return SimpleNamespace(**{**parts, **changes})


class Plans:
    """Stored plans by id; a database that is away."""

    async def get(self, plan_id: str) -> Any:
        if plan_id == "away":
            raise DatabaseUnavailable("it does not answer")
        if plan_id != "known":
            raise PlanNotFound(plan_id)
        return a_stored_plan()


class Broken:
    """A planner that fails."""

    def remembered(self, request: Any) -> None:
        return None

    def answer(self, request: Any, budget: Any) -> Any:
        raise RuntimeError("bug")


class Hurried:
    """A planner that is told that the time is over."""

    def remembered(self, request: Any) -> None:
        return None

    def answer(self, request: Any, budget: Any) -> Any:
        raise PlanningStopped


def service(policy: str = "", tmp_path=None, answers: Any = None, config_maps: Any = None) -> AdmissionService:
    known = catalogue()
    file = None
    if policy:
        file = tmp_path / "policy.toml"
        file.write_text(policy)
    answers = answers or Sizer(ModelResolver(known, Settings()), known)
    return AdmissionService(
        answers=answers, plans=Plans(), catalogue=known, policies=Policies(file), config_maps=config_maps
    )


@pytest.fixture(scope="module")
def judge() -> AdmissionService:
    return service()


def annotated(manifest: dict[str, Any], **annotations: str) -> dict[str, Any]:
    named = {f"plimsoll.dev/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": named}}


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "StatefulSet", "LeaderWorkerSet", "InferenceService"])
@pytest.mark.parametrize(("args", "gpus", "is_allowed"), [(SMALL, 1, True), (LARGE, 2, False)])
async def test_serving_is_judged_in_every_kind_of_object(judge, kind, args, gpus, is_allowed):
    manifest = an_object(kind, a_container(*args, gpus=gpus))
    answer = await judge.review(read_review(a_review(kind, manifest)))
    assert answer.is_allowed is is_allowed
    assert not answer.warnings


TRAINING = (
    "torchrun train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 "
    "--max_seq_length 4096 --bf16 --torch_dtype float32 --gradient_checkpointing"
)


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob"])
@pytest.mark.parametrize(("flags", "is_allowed"), [("--fsdp full_shard", True), ("", False)])
async def test_training_is_judged_over_all_pods_of_a_job(judge, kind, flags, is_allowed):
    # Unsharded, 8.03e9 parameters with fp32 AdamW take 16 bytes each: 120 GiB in 79.2 GiB.
    container = a_container(gpus=8, image="trainer", command=[*f"{TRAINING} {flags}".split()])
    answer = await judge.review(read_review(a_review(kind, an_object(kind, container, pods=2))))
    assert (answer.is_allowed, answer.warnings) == (is_allowed, ())


MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 "
    "--num-attention-heads 64 --group-query-attention --num-query-groups 8 --max-position-embeddings 131072 "
    "--vocab-size 128256 --normalization RMSNorm --swiglu --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --tensor-model-parallel-size 8 "
    "--sequence-parallel --seq-length 4096 --micro-batch-size 1 --global-batch-size 64"
)


async def test_what_a_command_does_not_send_to_the_host_stays_on_the_gpu(judge):
    # An eighth of 70.6e9 parameters takes 18 bytes each, of weight, gradient, master weight and moments: 148 GiB.
    container = a_container(gpus=8, image="trainer", command=MEGATRON.split())
    answer = await judge.review(read_review(a_review("Job", an_object("Job", container))))
    assert not answer.is_allowed
    needed = re.search(r"needs ([\d.]+) GiB", answer.message)
    assert needed is not None
    assert float(needed[1]) > 148


async def test_a_refusal_gives_the_numbers_and_the_way_out(judge):
    args = ("--model", "meta-llama/Llama-3.1-70B-Instruct", "-tp", "2", "--max-model-len", "32768")
    manifest = an_object("Deployment", a_container(*args, gpus=2))
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    # 80 layers x 8 KV heads x 128 x 2 (K and V) x 2 bytes x 32,768 tokens over two GPUs are 5.0 GiB.
    assert "one request of 32,768 tokens needs 5.0 GiB of KV cache per GPU" in answer.message
    # 70.55e9 x 2 bytes over two GPUs.
    assert "65.7 GiB of weights" in answer.message
    # From 0.90 to 0.95 of 79.19 GiB are 4.0 GiB more than the 1.5 that are left.
    assert "; it fits with --gpu-memory-utilization 0.95 or --max-model-len " in answer.message


async def test_the_way_out_with_more_gpus_is_on_the_same_node(judge):
    # 70.55e9 x 2 bytes are 131.4 GiB.
    container = a_container("--model", "meta-llama/Meta-Llama-3-70B-Instruct", image="vllm/vllm-openai:v0.11.0")
    answer = await judge.review(read_review(a_review("Deployment", an_object("Deployment", container))))
    assert "131.4 GiB of weights" in answer.message
    assert re.search(r"fits with ([0-9]) GPUs and --tensor-parallel-size \1 or", answer.message)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("python3 -m sglang.launch_server --model-path {model}", "--tp-size"),
        ("trtllm-serve {model}", "--tp_size"),
        ("text-generation-launcher --model-id {model}", "--num-shard"),
    ],
)
async def test_the_way_out_is_typed_as_the_engine_takes_it(judge, command: str, flag: str):
    words = command.format(model="meta-llama/Meta-Llama-3-70B-Instruct").split()
    container = a_container(image="x", command=words)
    answer = await judge.review(read_review(a_review("Deployment", an_object("Deployment", container))))
    assert re.search(rf"fits with ([0-9]) GPUs and {flag} \1\b", answer.message)


@pytest.mark.parametrize(
    ("annotations", "is_allowed", "told"),
    [
        ({"plan_id": "known"}, True, ""),
        ({"plan_id": "unknown"}, False, "is not known here"),
        ({"plan_id": "away"}, True, "cannot be looked up"),
        ({"plan": "{"}, True, "is not JSON"),
        ({"plan": "[]"}, True, "is not a planning request"),
        ({"plan": '{"serving": {"engin": "vllm"}}'}, True, "did not judge"),
    ],
)
async def test_annotations_come_before_the_command(judge, annotations, is_allowed, told):
    manifest = annotated(an_object("Deployment", a_container("--model", "none", "-tp", "2", gpus=2)), **annotations)
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert answer.is_allowed is is_allowed
    assert told in " ".join((answer.message, *answer.warnings))


@pytest.mark.parametrize(
    ("gpus", "selector", "told"),
    [
        (8, None, "is for 2 GPUs a replica, the workload asks for 8"),
        (2, {"nvidia.com/gpu.product": "NVIDIA-L4"}, "is for h100-sxm-80gb, the workload selects l4-24gb"),
    ],
)
async def test_a_workload_that_is_not_its_plans_is_refused(judge, gpus, selector, told):
    manifest = an_object("Deployment", a_container(gpus=gpus), selector=selector)
    answer = await judge.review(read_review(a_review("Deployment", annotated(manifest, plan_id="known"))))
    assert (answer.is_allowed, told in answer.message) == (False, True)


@pytest.mark.parametrize(("gpus", "is_allowed"), [(1, True), (2, False)])
async def test_a_plan_written_inline_is_made_and_compared(judge, gpus, is_allowed):
    request = {
        "model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 1},
        "serving": {"max_model_len": 8192},
    }  # fmt: skip
    manifest = annotated(an_object("Deployment", a_container(gpus=gpus)), plan=json.dumps(request))
    assert (await judge.review(read_review(a_review("Deployment", manifest)))).is_allowed is is_allowed


@pytest.mark.parametrize(
    ("container", "template", "told"),
    [
        (a_container(command=["sleep", "1"], image="x"), {}, "starts nothing this service can read"),
        (a_container("sleep", image="x"), {}, "container main leaves its command to its image (x)"),
        (a_container("--model", "nobody/knows"), {}, "Unknown model"),
        (a_container(*SMALL, "--quantization", "odd"), {}, "--quantization odd"),
        (a_container(*SMALL), {"selector": {"a": "b"}}, "no node selector or affinity names the GPU"),
        (a_container(*SMALL), {"selector": {"nvidia.com/gpu.product": "Z9"}}, "gpu.product=Z9 is in no catalogue"),
        (
            a_container(*SMALL, resources={"limits": {"nvidia.com/mig-9g.10gb": "1"}}),
            {},
            "no listing tells the memory of a MIG slice 9g.10gb of h100-sxm-80gb",
        ),
        (a_container(*SMALL, resources={"limits": {"nvidia.com/gpu": "many"}}), {}, "are no whole number"),
        (a_container(args="x"), {}, "/spec/template/spec/containers/0/args must be a list"),
    ],
)
async def test_what_cannot_be_read_is_let_through_with_what_is_missing(judge, container, template, told):
    manifest = an_object("Deployment", container, **template)
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert answer.is_allowed
    [said] = answer.warnings
    assert told in said


async def test_degrees_beyond_the_pods_gpus_are_refused(judge):
    manifest = an_object("Deployment", a_container(*SMALL, "-tp", "4", gpus=2))
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert "needs 4 GPUs by its own degrees, the pods ask for 2" in answer.message


async def test_what_a_planner_does_not_read_is_a_warning(judge):
    manifest = an_object("Deployment", a_container(*SMALL, "--enable-lora"))
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert answer.is_allowed
    [said] = answer.warnings
    assert "--enable-lora changes memory" in said


SLICE = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
A100_SLICES = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-2g.20gb"}
MI300X = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}


@pytest.mark.parametrize(
    ("container", "selector", "is_allowed"),
    [
        # 8.03e9 x 2 bytes are 15.0 GiB: too much for a slice of 9.75 GiB, not for one of 19.5 GiB.
        (a_container(*SMALL, resources=SLICE), None, False),
        (a_container(*SMALL), A100_SLICES, True),
        (a_container(*SMALL, resources={"limits": {"amd.com/gpu": 1}}), MI300X, True),
        # 67.7 GiB of weights on each of two of 192 GB.
        (a_container(*LARGE, resources={"limits": {"amd.com/gpu": 2}}), MI300X, True),
    ],
)
async def test_slices_and_amds_gpus_are_judged_by_their_own_memory(judge, container, selector, is_allowed):
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container, selector=selector))))
    assert (answer.is_allowed, answer.is_judged) == (is_allowed, True)


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ({"limits": {"amd.com/cpx_nps4": 1}}, "a partition of a GPU (cpx_nps4)"),
        ({"claims": [{"name": "gpu"}]}, "takes its devices by a resource claim"),
    ],
)
async def test_devices_that_cannot_be_read_are_told(judge, resources, told):
    answer = await judge.review(
        read_review(a_review("Pod", an_object("Pod", a_container(*SMALL, resources=resources))))
    )
    [said] = answer.warnings
    assert (answer.is_allowed, answer.is_judged, told in said) == (True, False, True)


async def test_every_container_with_gpus_is_judged(judge):
    manifest = an_object("Pod", a_container(*SMALL))
    manifest["spec"]["containers"].append({**a_container(*LARGE, gpus=2), "name": "second"})
    assert not (await judge.review(read_review(a_review("Pod", manifest)))).is_allowed


class Stored(Plans):
    """One stored plan, and how often it was asked for."""

    def __init__(self, **changes: Any) -> None:
        self.plan = a_stored_plan(**changes)
        self.asked = 0

    async def get(self, plan_id: str) -> Any:
        self.asked += 1
        return self.plan


def planned(plans: Stored) -> AdmissionService:
    known = catalogue()
    return AdmissionService(answers=Broken(), plans=plans, catalogue=known, policies=Policies(None))


def served(*flags: str, replicas: int = 2) -> dict[str, Any]:
    manifest = an_object("Deployment", a_container("--model", "qwen2.5-72b-instruct", *flags, gpus=2))
    manifest["spec"]["replicas"] = replicas
    return a_review("Deployment", annotated(manifest, plan_id="known"))


@pytest.mark.parametrize(
    ("review", "told"),
    [
        (served("-pp", "2"), "has tensor_parallel 2, the command 1; has pipeline_parallel 1, the command 2"),
        (
            served("-tp", "2", "--model", "llama-3.1-8b"),
            "is for Qwen/Qwen2.5-72B-Instruct, the command names llama-3.1-8b",
        ),
    ],
)
async def test_a_command_that_is_not_its_plans_is_refused(review, told):
    answer = await planned(Stored()).review(read_review(review))
    assert (answer.is_allowed, told in answer.message) == (False, True)


async def test_another_number_of_replicas_is_a_warning():
    answer = await planned(Stored()).review(read_review(served("-tp", "2", replicas=3)))
    assert answer.is_allowed
    [said] = answer.warnings
    assert "counts 2 replicas, the workload has 3" in said


async def test_a_plan_that_was_read_once_needs_no_database_again():
    plans = Stored()
    service = planned(plans)
    for _ in range(2):
        assert (await service.review(read_review(served("-tp", "2")))).is_allowed
    assert plans.asked == 1


DEGREES = {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 1}
KV_PLAN = {"layout": DEGREES, "settings": {"engine": "vllm"}}
TRAIN_PLAN = {"layout": DEGREES}


@pytest.mark.parametrize(
    ("verdict", "fits", "kv", "is_allowed"),
    [
        ("tight", True, None, True),
        # Half a request fits into what is left; into the most that may be left, 0.9 or 1.2 of one.
        ("no", False, (0.5, 10, 18), False),
        ("no", False, (0.5, 10, 24), True),
        ("no", False, (0.0, 0, 0), False),
        ("no", False, (0.0, 0, 1), True),
    ],
)
async def test_a_plan_that_may_not_fit_is_refused_only_where_it_is_certain(verdict, fits, kv, is_allowed):
    body: dict[str, Any] = {"plan": dict(KV_PLAN)}
    if kv is not None:
        body["plan"]["kv"] = dict(zip(("max_concurrency", "available_bytes", "available_high_bytes"), kv, strict=True))
    plans = Stored(verdict=verdict, fits=fits, answer=json.dumps(body))
    answer = await planned(plans).review(read_review(served("-tp", "2")))
    assert (answer.is_allowed, len(answer.warnings)) == (is_allowed, 1 if is_allowed else 0)


@pytest.mark.parametrize(("low", "is_allowed"), [(99, True), (100, True), (101, False)])
async def test_a_training_plan_is_refused_where_even_its_low_end_does_not_fit(low, is_allowed):
    plan = {**TRAIN_PLAN, "memory": {"peak_low_bytes": low, "limit_bytes": 100}}
    plans = Stored(kind="train", fits=False, verdict="no", answer=json.dumps({"plan": plan}))
    container = a_container(gpus=4, image="x", command=["torchrun", "train.py"])
    manifest = annotated(an_object("Job", container), plan_id="known")
    assert (await planned(plans).review(read_review(a_review("Job", manifest)))).is_allowed is is_allowed


@pytest.mark.parametrize("owners", [5, "x", {"kind": "Job"}, [5], [{"kind": ["Job"]}]])
async def test_owners_that_are_none_change_nothing(judge, owners):
    manifest = {**LARGE_OBJECT, "metadata": {"name": "x", "ownerReferences": owners}}
    assert not (await judge.review(read_review(a_review("Deployment", manifest)))).is_allowed


LARGE_OBJECT = an_object("Deployment", a_container(*LARGE, gpus=2))
OWNED = {**LARGE_OBJECT, "metadata": {"name": "x", "ownerReferences": [{"kind": "ReplicaSet"}]}}


@pytest.mark.parametrize(
    "review",
    [
        a_review("Deployment", None, operation="DELETE", oldObject=LARGE_OBJECT),
        a_review("Deployment", LARGE_OBJECT, operation="CONNECT"),
        a_review("Deployment", LARGE_OBJECT, operation="UPDATE", oldObject=LARGE_OBJECT),
        a_review("Deployment", OWNED),
        a_review("ConfigMap", {"data": {}}),
        a_review("Deployment", an_object("Deployment", a_container(*LARGE, gpus=0))),
    ],
)
async def test_what_starts_nothing_new_on_gpus_passes_without_a_word(judge, review):
    answer = await judge.review(read_review(review))
    assert (answer.is_allowed, answer.warnings) == (True, ())


async def test_an_update_that_changes_the_command_is_judged(judge):
    before = an_object("Deployment", a_container(*SMALL, gpus=2))
    review = a_review("Deployment", LARGE_OBJECT, operation="UPDATE", oldObject=before)
    assert not (await judge.review(read_review(review))).is_allowed


@pytest.mark.parametrize(
    ("policy", "is_allowed", "warnings"),
    [("[default]\nmode = 'warn'", True, 1), ("[namespaces.serving]\nmode = 'off'", True, 0), ("[default]", False, 0)],
)
async def test_the_policy_decides_what_a_refusal_becomes(tmp_path, policy, is_allowed, warnings):
    answer = await service(policy, tmp_path).review(read_review(a_review("Deployment", LARGE_OBJECT)))
    assert (answer.is_allowed, len(answer.warnings)) == (is_allowed, warnings)


@pytest.mark.parametrize(("on_error", "is_allowed"), [("allow", True), ("deny", False)])
async def test_trouble_inside_is_answered_as_the_policy_says(tmp_path, on_error, is_allowed):
    judge = service(f"[default]\non_error = '{on_error}'", tmp_path, answers=Broken())
    answer = await judge.review(read_review(a_review("Deployment", LARGE_OBJECT)))
    assert answer.is_allowed is is_allowed
    assert "failed to judge" in " ".join((answer.message, *answer.warnings))


@pytest.mark.parametrize(("on_error", "is_allowed"), [("allow", True), ("deny", False)])
async def test_a_search_that_ends_with_its_time_is_decided_by_the_policy(tmp_path, on_error: str, is_allowed: bool):
    judge = service(f"[default]\non_error = '{on_error}'", tmp_path, answers=Hurried())
    answer = await judge.review(read_review(a_review("Deployment", LARGE_OBJECT)))
    assert (answer.is_allowed, answer.is_judged) == (is_allowed, False)
    assert "in time" in " ".join((answer.message, *answer.warnings))


async def test_a_refusal_without_time_for_advice_says_so():
    # The review and its search begin at 0; when that is next asked, 6.5 of 8 s are over, and three quarters are 6.
    clock = iter((0.0, 0.0, 6.5))
    answers = Sizer(ModelResolver(catalogue(), Settings()), catalogue())
    judge = AdmissionService(
        answers=answers, plans=Plans(), catalogue=catalogue(), policies=Policies(None), clock=lambda: next(clock, 6.5)
    )
    answer = await judge.review(read_review(a_review("Deployment", LARGE_OBJECT)))
    assert (answer.is_allowed, answer.is_judged) == (False, True)
    assert ADVICE_CUT_SHORT in answer.message
    assert "fits with" not in answer.message


async def test_the_policys_gpu_stands_in_where_nothing_names_one(tmp_path):
    judge = service("[default]\ngpu = 'l4-24gb'", tmp_path)
    manifest = an_object("Deployment", a_container(*LARGE, gpus=2), selector={"a": "b"})
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert "GiB per GPU" in answer.message


class Counted:
    """A planner that counts what it is asked to compute."""

    def __init__(self) -> None:
        known = catalogue()
        self._sizer = Sizer(ModelResolver(known, Settings()), known)
        self.computed = 0

    def remembered(self, request: Any) -> Any:
        return self._sizer.remembered(request)

    def answer(self, request: Any, budget: Any) -> Any:
        self.computed += 1
        return self._sizer.answer(request, budget)


async def test_the_same_workload_is_planned_once():
    answers = Counted()
    judge = service(answers=answers)
    for name in ("a", "b"):
        manifest = {**an_object("Deployment", a_container(*SMALL)), "metadata": {"name": name}}
        assert (await judge.review(read_review(a_review("Deployment", manifest)))).is_allowed
    assert answers.computed == 1


@pytest.mark.parametrize("tag", ["v0.19.0", "v0.28.0"])
async def test_eight_bits_are_offered_before_four_and_nothing_that_vllm_has_no_longer(judge, tag):
    container = a_container(*LARGE, gpus=2, image=f"vllm/vllm-openai:{tag}")
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container))))
    assert "--quantization fp8" in answer.message
    assert "bitsandbytes" not in answer.message


TGI = "ghcr.io/huggingface/text-generation-inference:3.3.6"


def from_config_map(container: dict[str, Any]) -> dict[str, Any]:
    return {**container, "envFrom": [{"configMapRef": {"name": "settings"}}]}


# 72.7e9 x 2 bytes are 135.4 GiB: in four bits they fit two cards of 79.2 GiB, in 16 with nothing left for the cache.
@pytest.mark.parametrize(("quantize", "is_allowed"), [("bitsandbytes-nf4", True), ("", False)])
async def test_tgis_variables_are_judged_from_a_config_map(quantize: str, is_allowed: bool):
    settings = {
        "MODEL_ID": "Qwen/Qwen2.5-72B-Instruct",
        "NUM_SHARD": "1",
        **({"QUANTIZE": quantize} if quantize else {}),
    }
    judge = service(config_maps=GivenConfigMaps({("serving", "settings"): settings}))
    manifest = an_object("Deployment", from_config_map(a_container(image=TGI)))
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert (answer.is_allowed, answer.is_judged) == (is_allowed, True)


async def test_a_config_map_that_is_not_read_is_named(judge):
    manifest = an_object("Deployment", from_config_map(a_container(image=TGI)))
    (warning,) = (await judge.review(read_review(a_review("Deployment", manifest)))).warnings
    assert "Not read: ConfigMap settings (no Kubernetes API is configured to read it through)" in warning


async def test_a_command_that_needs_no_config_map_is_judged_without_it(judge):
    answer = await judge.review(
        read_review(a_review("Deployment", an_object("Deployment", from_config_map(a_container(*LARGE, gpus=2)))))
    )
    assert (answer.is_allowed, answer.is_judged) == (False, True)


class NeverAsked:
    async def get(self, namespace: str, name: str) -> Any:
        raise AssertionError(f"{namespace}/{name} was asked for")


async def test_a_workload_without_gpus_asks_for_no_config_map():
    manifest = an_object("Deployment", from_config_map(a_container(*LARGE, gpus=0)))
    assert (await service(config_maps=NeverAsked()).review(read_review(a_review("Deployment", manifest)))).is_judged


DEEPSEEK = ("python3", "-m", "sglang.launch_server", "--model-path", "deepseek-ai/DeepSeek-R1", "--tp", "16")
LLAMA = "vllm serve meta-llama/Llama-3.1-405B-Instruct -tp 8 -pp 2"


@pytest.mark.parametrize(
    ("command", "is_allowed"),
    [
        ((*DEEPSEEK, "--nnodes", "2", "--node-rank", "0"), True),
        # Nothing says where the other eight are.
        (DEEPSEEK, False),
        (("sh", "-c", f"ray start --address=head:6379 && {LLAMA}"), True),
        (("sh", "-c", f"bash /workspace/multi-node-serving.sh leader; {LLAMA}"), True),
        (("sh", "-c", LLAMA), False),
    ],
)
async def test_one_of_several_nodes_needs_no_more_than_its_own_gpus(judge, command, is_allowed):
    # 671e9 parameters of a byte over 16 GPUs are 39 GiB of 79, 405.9e9 of two bytes 47 GiB.
    manifest = an_object("StatefulSet", a_container(gpus=8, command=list(command)))
    assert (await judge.review(read_review(a_review("StatefulSet", manifest)))).is_allowed is is_allowed


async def test_one_of_several_nodes_that_cannot_hold_its_share_is_refused(judge):
    # 756 GiB over 8 GPUs are more than 80 GB each, whichever node they are on.
    command = "vllm serve meta-llama/Llama-3.1-405B-Instruct -tp 8 --nnodes 2 --node-rank 0"
    manifest = an_object("StatefulSet", a_container(gpus=4, command=command.split()))
    answer = await judge.review(read_review(a_review("StatefulSet", manifest)))
    assert not answer.is_allowed
    assert "94.5 GiB of weights" in answer.message


LARGE_COMMAND, SMALL_COMMAND = (f"vllm serve {' '.join(arguments[1:])}" for arguments in (LARGE, SMALL))


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        (f'if [ "$BIG" ]; then {LARGE_COMMAND}; else {SMALL_COMMAND}; fi', True),
        (f'if [ "$BIG" ]; then {LARGE_COMMAND}; else sleep 1; fi', False),
        (f"{LARGE_COMMAND} & {SMALL_COMMAND}", False),
    ],
)
async def test_a_branch_is_refused_only_where_no_other_starts_something_that_fits(judge, text, is_allowed):
    manifest = an_object("Pod", a_container(gpus=2, command=["bash", "-c", text]))
    answer = await judge.review(read_review(a_review("Pod", manifest)))
    assert answer.is_allowed is is_allowed
    assert any("may start another command instead" in line for line in answer.warnings) is is_allowed


async def test_a_flag_that_may_leave_more_makes_a_refusal_a_warning(judge):
    manifest = an_object("Pod", a_container(*LARGE, "--enforce-eager", gpus=2))
    answer = await judge.review(read_review(a_review("Pod", manifest)))
    assert answer.is_allowed
    assert any("--enforce-eager may leave more" in line for line in answer.warnings)


@pytest.mark.parametrize(("engine", "is_allowed"), [("vllm", False), ("sglang", True), ("tensorrt-llm", True)])
async def test_an_engine_that_takes_shorter_requests_is_not_refused_for_the_longest(judge, engine, is_allowed):
    # 131,072 tokens x 131,072 bytes are 16 GiB, beside 15 GiB of weights in 23 GiB.
    command = {
        "vllm": "vllm serve meta-llama/Llama-3.1-8B-Instruct",
        "sglang": "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct",
        "tensorrt-llm": "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --max_seq_len 131072",
    }[engine]
    template = {"selector": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}
    manifest = an_object("Pod", a_container(command=command.split(), image="lmsysorg/sglang:v0.5.10"), **template)
    answer = await judge.review(read_review(a_review("Pod", manifest)))
    assert answer.is_allowed is is_allowed
    assert any("takes only shorter requests" in line for line in answer.warnings) is is_allowed


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
async def test_a_stored_plan_of_an_engine_that_takes_shorter_requests_is_a_warning(engine):
    kv = {"max_concurrency": 0.5, "available_bytes": 10, "available_high_bytes": 10}
    body = {"plan": {"layout": DEGREES, "settings": {"engine": engine}, "kv": kv}}
    plans = Stored(verdict="no", fits=False, answer=json.dumps(body))
    assert (await planned(plans).review(read_review(served("-tp", "2")))).is_allowed


@pytest.mark.parametrize(("tag", "is_allowed"), [("v0.5.23", False), ("latest", True)])
async def test_an_engine_of_unknown_version_is_refused_only_where_no_version_fits(judge, tag, is_allowed):
    # SGLang 0.5.23 keeps 4,096 tokens' room on a card of 24 GB, which leaves no cache beside 15 GiB; older ones 2,048.
    command = "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct"
    template = {"selector": {"cloud.google.com/gke-accelerator": "nvidia-l4"}}
    manifest = an_object("Pod", a_container(command=command.split(), image=f"lmsysorg/sglang:{tag}"), **template)
    answer = await judge.review(read_review(a_review("Pod", manifest)))
    assert answer.is_allowed is is_allowed
    assert any("An older sglang may fit" in line for line in answer.audit_annotations.values()) is is_allowed


@pytest.mark.parametrize(
    ("command", "gpus", "is_allowed", "told"),
    [
        # 405.9e9 x 2 bytes are 94.5 GiB on each of 8, under any version; on 16 they fit, under those that are known.
        ("meta-llama/Llama-3.1-405B-Instruct -tp 8", 8, False, "94.5 GiB of weights"),
        ("meta-llama/Llama-3.1-405B-Instruct -tp 16", 16, True, "0.6.3 is older than the versions that are known"),
        ("meta-llama/Llama-3.1-8B-Instruct -tp 3", 3, False, "32 attention heads do not divide by 3"),
        # 65.7 GiB of 79.2 leave too little for a request by the versions that are known, and others may reserve less.
        ("meta-llama/Llama-3.1-70B-Instruct -tp 2", 2, True, "0.6.3 is older than the versions that are known"),
    ],
)
async def test_an_older_version_than_any_known_is_refused_by_what_holds_for_all(judge, command, gpus, is_allowed, told):
    container = a_container(
        image="vllm/vllm-openai:v0.6.3.post1", command=["vllm", "serve", *command.split()], gpus=gpus
    )
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container))))
    assert answer.is_allowed == is_allowed
    assert answer.is_judged != is_allowed
    assert told in " ".join((answer.message, *answer.warnings))


@pytest.mark.parametrize(
    ("model", "gpus", "is_allowed", "told"),
    [
        # 70.55e9 x 2 bytes of weights alone are more than an H100; 8.03e9 on 8 GPUs may fit, at lengths nobody told.
        ("meta-llama/Llama-3.1-70B", 1, False, "training of meta-llama/Llama-3.1-70B needs"),
        ("meta-llama/Llama-3.1-8B", 8, True, "does not say how many tokens a sample has"),
    ],
)
async def test_a_trainer_that_says_no_length_is_refused_where_none_fits(judge, model, gpus, is_allowed, told):
    flags = f"--model_name_or_path {model} --per_device_train_batch_size 1 --bf16 --fsdp full_shard"
    container = a_container(image="x", command=["torchrun", "run_clm.py", *flags.split()], gpus=gpus)
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container))))
    assert answer.is_allowed == is_allowed
    assert answer.is_judged != is_allowed
    assert told in " ".join((answer.message, *answer.warnings))


async def test_what_is_not_judged_is_not_said_to_be_judged_as_a_copy(judge):
    words = "vllm serve someone/Odd-Model-AWQ --quantization awq"
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", a_container(command=words.split())))))
    assert [line for line in answer.warnings if "judged as a copy" in line] == []
    assert any("did not judge" in line for line in answer.warnings)


@pytest.mark.parametrize(
    ("gpus", "is_allowed", "warnings"),
    [
        # 70.55e9 x 2 bytes are 32.9 GiB on each of four.
        (("NVIDIA-A100-SXM4-40GB", "NVIDIA-L40S"), False, 0),
        (("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"), True, 1),
        (("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"), True, 0),
    ],
)
async def test_of_gpus_to_choose_from_only_what_none_can_run_is_refused(judge, gpus, is_allowed, warnings):
    words = "vllm serve meta-llama/Llama-3.1-70B-Instruct --max-model-len 65536 -tp 4"
    listed = {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(gpus)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [listed]}]}
    template = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    pod = an_object("Pod", a_container(command=words.split(), gpus=4), selector={"zone": "a"}, **template)
    answer = await judge.review(read_review(a_review("Pod", pod)))
    assert answer.is_judged
    assert answer.is_allowed == is_allowed
    assert len([line for line in answer.warnings if "GiB" in line]) == warnings


@pytest.mark.parametrize(
    ("words", "gpu", "told"),
    [
        ("vllm serve Qwen/Qwen2.5-1.5B-Instruct --dtype bfloat16", "Tesla-T4", "that is --dtype half"),
        ("vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 65536", "NVIDIA-L40S", "states it in --hf-overrides"),
        ("vllm serve google/gemma-2-9b-it --dtype float16", "NVIDIA-L40S", "that is --dtype float32, or bfloat16"),
    ],
)
async def test_a_rule_that_is_broken_tells_the_option_that_mends_it(judge, words, gpu, told):
    container = a_container(command=words.split())
    pod = an_object("Pod", container, selector={"nvidia.com/gpu.product": gpu})
    answer = await judge.review(read_review(a_review("Pod", pod)))
    assert not answer.is_allowed
    assert told in answer.message


async def test_a_model_in_a_store_that_is_not_read_is_named(judge):
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    model = {"modelFormat": {"name": "huggingface"}, "storageUri": "s3://models/chat", "resources": limits}
    manifest = {"metadata": {"name": "chat"}, "spec": {"predictor": {"model": model, "nodeSelector": H100}}}
    answer = await judge.review(read_review(a_review("InferenceService", manifest)))
    assert (answer.is_allowed, answer.is_judged) == (True, False)
    assert "s3://models/chat" in " ".join(answer.warnings)


def scaled(replicas: int) -> dict[str, Any]:
    return {**LARGE_OBJECT, "spec": {**LARGE_OBJECT["spec"], "replicas": replicas}}


@pytest.mark.parametrize(("before", "after", "is_allowed"), [(3, 4, True), (3, 0, True), (0, 0, True), (0, 3, False)])
async def test_scaling_what_runs_already_is_no_new_launch(judge, before, after, is_allowed):
    review = a_review("Deployment", scaled(after), operation="UPDATE", oldObject=scaled(before))
    assert (await judge.review(read_review(review))).is_allowed is is_allowed


@pytest.mark.parametrize(("replicas", "is_allowed"), [(0, True), (1, False)])
async def test_a_deployment_without_replicas_starts_nothing(judge, replicas, is_allowed):
    assert (await judge.review(read_review(a_review("Deployment", scaled(replicas))))).is_allowed is is_allowed


async def test_what_is_being_deleted_may_lose_its_finalizers(judge):
    going = {**scaled(2), "metadata": {"name": "chat", "deletionTimestamp": "2026-11-21T15:00:00Z"}}
    review = a_review("Deployment", going, operation="UPDATE", oldObject=an_object("Deployment", a_container(*SMALL)))
    assert (await judge.review(read_review(review))).is_allowed


@pytest.mark.parametrize("kind", KINDS)
async def test_an_update_of_each_kind_that_changes_its_command_is_judged(judge, kind):
    large, small = (an_object(kind, a_container(*arguments, gpus=2)) for arguments in (LARGE, SMALL))
    for before, after, is_allowed in ((small, large, False), (large, small, True), (large, large, True)):
        review = a_review(kind, after, operation="UPDATE", oldObject=before)
        assert (await judge.review(read_review(review))).is_allowed is is_allowed


@pytest.mark.parametrize(
    ("image", "command", "model", "way_out"),
    [
        # Each of two tensor ranks would keep all of the latents that Kimi-Linear caches: its attention is parallel over
        # data. SGLang divides its tensor ranks for that, and the number of GPUs alone is told.
        (
            "vllm/vllm-openai:v0.19.0",
            "vllm serve",
            "moonshotai/Kimi-Linear-48B-A3B-Instruct",
            "2 GPUs and --data-parallel-size 2",
        ),
        ("vllm/vllm-openai:v0.19.0", "vllm serve", "Qwen/Qwen2.5-72B-Instruct", "4 GPUs and --tensor-parallel-size 4"),
        ("lmsysorg/sglang:v0.5.6", "python3 -m sglang.launch_server --model-path", "openai/gpt-oss-120b", "2 GPUs."),
    ],
)
async def test_the_degrees_of_a_way_out_are_told_where_the_command_has_options_for_them(
    judge, image, command, model, way_out
):
    container = a_container(image=image, command=[*command.split(), model])
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container))))
    assert way_out in " ".join((answer.message, *answer.warnings))


async def test_more_gpus_are_no_way_out_where_a_format_would_be_needed_that_the_command_cannot_be_told(judge):
    # 70.55e9 x 2 bytes are 65.7 GiB on each of two; trtllm-serve has no option that quantizes.
    container = a_container(
        image="nvcr.io/nvidia/tensorrt-llm/release:1.0.0",
        command=["trtllm-serve", "meta-llama/Llama-3.3-70B-Instruct"],
    )
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container))))
    assert not answer.is_allowed
    assert "fits with 4 GPUs and --tp_size 4." in answer.message


async def test_vllms_data_parallel_ranks_divide_the_experts_of_a_mixture(judge):
    # 46.7e9 x 2 bytes are 21.8 GiB on each of four L4 of 22 GiB. Ranks of a second replica take half of each expert.
    flags = "--max-model-len 4096 --tensor-parallel-size 4 --data-parallel-size"
    answers = []
    for replicas in (1, 2):
        command = f"vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 {flags} {replicas}".split()
        container = a_container(image="vllm/vllm-openai:v0.11.0", command=command, gpus=4 * replicas)
        pod = an_object("Pod", container, selector={"nvidia.com/gpu.product": "NVIDIA-L4"})
        answers.append(await judge.review(read_review(a_review("Pod", pod))))
    assert [answer.is_allowed for answer in answers] == [False, True]
    assert "8 GPUs and --data-parallel-size 2" in answers[0].message
    assert answers[1].warnings == ()


@pytest.mark.parametrize(("tag", "is_allowed"), [("v0.11.0", False), ("v0.14.1", False), ("v0.15.1", True)])
async def test_weights_that_are_loaded_whole_before_they_are_quantized_have_to_fit(judge, tag: str, is_allowed: bool):
    # 14.8e9 x 2 bytes are 27.5 GiB of an A10G's 22; vllm-project/vllm#31914, in 0.15, makes them on no device.
    command = ["vllm", "serve", "Qwen/Qwen2.5-14B-Instruct", "--max-model-len", "4096"]
    selector = {"nvidia.com/gpu.product": "NVIDIA-A10G"}
    quantized = a_container(image=f"vllm/vllm-openai:{tag}", command=[*command, "--quantization", "fp8"])
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", quantized, selector=selector))))
    assert answer.is_allowed == is_allowed
    assert ("loads all weights in 16 bits" in answer.message) != is_allowed
    plain = a_container(image=f"vllm/vllm-openai:{tag}", command=command)
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", plain, selector=selector))))
    assert ("--quantization fp8" in answer.message) == is_allowed


async def test_a_cache_in_fp8_is_typed_as_sglang_takes_it(judge):
    # Its choices are fp8_e5m2 and fp8_e4m3; "fp8" alone is none of them.
    model = "meta-llama/Llama-3.1-70B-Instruct"
    command = f"python3 -m sglang.launch_server --model-path {model} --tp 4 --mem-fraction-static 0.3"
    container = a_container(image="lmsysorg/sglang:v0.5.6", command=command.split(), gpus=4)
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container))))
    assert "--kv-cache-dtype fp8_e4m3" in answer.message


async def test_a_quantized_checkpoint_is_not_quantized_again(judge):
    # 671e9 parameters in fp8 take 79.5 GiB of each of 8 GPUs; vLLM refuses --quantization over the checkpoint's own.
    container = a_container("--model", "deepseek-ai/DeepSeek-R1", "-tp", "8", gpus=8)
    answer = await judge.review(read_review(a_review("Pod", an_object("Pod", container))))
    assert not answer.is_allowed
    assert "fits with 16 GPUs and --tensor-parallel-size" in answer.message
    assert "--quantization" not in answer.message


@pytest.mark.parametrize(
    ("args", "gpu", "reason"),
    [
        (("--model", "Qwen/Qwen2.5-7B-Instruct", "-tp", "8"), None, "28 attention heads do not divide by 8."),
        (("--model", "Qwen/Qwen2.5-7B-Instruct", "-tp", "8"), None, "Possible: 1, 2 or 4."),
        (("--model", "Qwen/Qwen2.5-7B-Instruct", "--max-model-len", "262144"), None, "beyond the 32768 positions"),
        (("--model", "Qwen/Qwen2.5-1.5B-Instruct", "--dtype", "bfloat16"), "Tesla-T4", "does not compute in bf16"),
        (("--model", "meta-llama/Llama-3.1-8B-Instruct", "-tp", "2", "-ep"), None, "no experts to divide"),
    ],
)
async def test_what_the_engine_would_refuse_of_the_model_and_the_card_is_refused(judge, args, gpu, reason):
    selector = None if gpu is None else {"nvidia.com/gpu.product": gpu}
    manifest = an_object("Pod", a_container(*args, gpus=8), selector=selector)
    answer = await judge.review(read_review(a_review("Pod", manifest)))
    assert (answer.is_allowed, answer.is_judged) == (False, True)
    assert " cannot run: " in answer.message
    assert reason in answer.message


@pytest.mark.parametrize(
    "args",
    [
        # vLLM takes fp16 by itself where the card has no bf16, and needs no option for it.
        ("--model", "Qwen/Qwen2.5-1.5B-Instruct", "--max-model-len", "4096"),
        ("--model", "Qwen/Qwen2.5-1.5B-Instruct", "--max-model-len", "4096", "--dtype", "half"),
    ],
)
async def test_a_format_that_the_engine_chooses_itself_is_one_of_the_cards(judge, args):
    manifest = an_object("Pod", a_container(*args), selector={"nvidia.com/gpu.product": "Tesla-T4"})
    answer = await judge.review(read_review(a_review("Pod", manifest)))
    assert (answer.is_allowed, answer.is_judged, answer.warnings) == (True, True, ())


async def test_what_cannot_run_is_refused_beside_what_cannot_be_read(judge):
    text = "vllm serve Qwen/Qwen2.5-7B-Instruct -tp 0 & vllm serve /mnt/models/unknown & wait"
    answer = await judge.review(read_review(a_review("Deployment", in_one_container(text))))
    assert "tensor parallelism of 0" in answer.message
    assert any("did not judge" in warning for warning in answer.warnings)


async def test_a_plan_that_contradicts_itself_is_refused(judge):
    request = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
        "training": {"sequence_length": 4096, "global_batch_size": 64},
        "layout": {"tensor_parallel": 3},
    }
    manifest = annotated(an_object("Job", a_container("x", gpus=8, image="x")), plan=json.dumps(request))
    answer = await judge.review(read_review(a_review("Job", manifest)))
    assert "tensor_parallel 3 does not divide 8 GPUs" in answer.message


def in_one_container(text: str, gpus: int = 1) -> dict[str, Any]:
    return an_object("Deployment", a_container(command=["bash", "-c", text], gpus=gpus))


PAIR = ("vllm serve Qwen/Qwen3-8B --max-model-len 8192", "vllm serve Qwen/Qwen3-4B --max-model-len 8192")


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("{} & {} & wait", False),
        ("{} & {}", False),
        # One may have ended before the other starts, or each has a card.
        ("{}; {}", True),
        ("{} & wait; {}", True),
        ("{} & kill $!; {}", True),
        ("CUDA_VISIBLE_DEVICES=0 {} & CUDA_VISIBLE_DEVICES=1 {} & wait", True),
        ("{} --gpu-memory-utilization 0.4 & {} --gpu-memory-utilization 0.4 & wait", True),
        ("if [ $A ]; then {} & fi; {}", True),
        ("bash -c '{}; {}' & wait", True),
    ],
)
async def test_engines_of_one_container_are_added_up_where_they_run_together(judge, text: str, is_allowed: bool):
    # Weights of 15.3 and 7.5 GiB; 0.9 twice leaves the caches 0.8 x 79.2 GiB less the weights of both: never enough.
    answer = await judge.review(read_review(a_review("Deployment", in_one_container(text.format(*PAIR)))))
    assert answer.is_allowed is is_allowed
    assert ("the GPU they share together" in answer.message) is not is_allowed


async def test_what_is_missing_of_one_container_hides_no_refusal_of_another(judge):
    manifest = an_object("Deployment", a_container(*LARGE, gpus=2))
    manifest["spec"]["template"]["spec"]["containers"].append(a_container(image="nobody/knows", command=["x"]))
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert (answer.is_allowed, answer.is_judged) == (False, True)
    [said] = answer.warnings
    assert "starts nothing this service can read" in said


async def test_a_length_that_the_engine_finds_fits_with_any_cache(judge):
    # 16.0 GiB for 131,072 tokens beside 15.0 GiB of weights are more than an A10G has.
    container = a_container("--model", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "auto")
    manifest = an_object("Deployment", container, selector={"nvidia.com/gpu.product": "NVIDIA-A10G"})
    answer = await judge.review(read_review(a_review("Deployment", manifest)))
    assert (answer.is_allowed, answer.warnings) == (True, ())
    assert "it shortens requests by itself, to some " in answer.audit_annotations["plimsoll"]


async def test_more_slices_of_a_card_are_no_way_out(judge):
    container = a_container("--model", "Qwen/Qwen3-4B", resources={"limits": {"nvidia.com/mig-1g.10gb": 1}})
    answer = await judge.review(read_review(a_review("Deployment", an_object("Deployment", container))))
    assert not answer.is_allowed
    assert "GPUs and" not in answer.message


async def test_a_process_sees_one_of_a_pods_slices(judge):
    for degree, allowed in (("1", True), ("2", False)):
        container = a_container(
            "--model", "Qwen/Qwen3-0.6B", "--max-model-len", "2048", "--tensor-parallel-size", degree,
            resources={"limits": {"nvidia.com/mig-1g.10gb": 2}},
        )  # fmt: skip
        answer = await judge.review(read_review(a_review("Deployment", an_object("Deployment", container))))
        assert answer.is_allowed is allowed, answer.message
    assert "cannot run: it takes 2 GPUs, and of its 2 MIG slices each process sees one" in answer.message


async def test_what_no_plan_exists_of_is_a_warning_and_not_unjudged(judge):
    # torchrun without a number of processes may start one, whose batch of 66 divides; 32 would not.
    words = (
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
        "--vocab-size 128256 --micro-batch-size 1 --bf16 --tensor-model-parallel-size 2 --global-batch-size 66"
    )
    container = a_container(gpus=8, command=words.split())
    answer = await judge.review(read_review(a_review("Job", an_object("Job", container))))
    assert (answer.is_allowed, answer.is_judged) == (True, True)
    [said] = answer.warnings
    assert "may not start: global_batch_size 66 is not a multiple of data_parallel 4" in said
    [said] = answer.warnings
    assert "did not judge" not in said


async def test_a_plan_whose_batch_does_not_divide_contradicts_itself(judge):
    request = {
        "model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
        "training": {"sequence_length": 4096, "global_batch_size": 66}, "framework": "megatron",
        "layout": {"tensor_parallel": 2, "data_parallel": 4},
    }  # fmt: skip
    manifest = annotated(an_object("Job", a_container(gpus=8)), plan=json.dumps(request))
    answer = await judge.review(read_review(a_review("Job", manifest)))
    assert not answer.is_allowed
    assert "global_batch_size to 64 or 68" in answer.message
