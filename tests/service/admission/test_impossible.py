from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll import planners, service
from plimsoll.planners.ground.errors import BrokenRule, ImpossibleLayout, InvalidQuestion, PlimsollError, UnknownModel
from plimsoll.planners.search.rules.every import RULES, RULES_OF_REQUESTS
from plimsoll.planners.serving.releases.cards import CARD_FORMAT
from plimsoll.planners.serving.settings.lengths import LONG_POSITIONS
from plimsoll.service.admission.impossible import CHECKED_OF_PLANS, is_impossible, is_impossible_plan
from plimsoll.service.engines.engine import engines
from plimsoll.service.workloads.commands.launches import Launch

# Rules that are the planner's own way of dividing, or that programs are not known to check before they start.
NOT_KNOWN_TO_BE_CHECKED = {
    "context-parallel-full-attention", "engine-has-degree", "experts-divide", "pools-need-replicas",
    "shard-ranks-divide", "stages-have-layers",
    *(rule.name for rule in (*RULES_OF_REQUESTS, *RULES) if rule.name not in CHECKED_OF_PLANS),
}  # fmt: skip


def a_launch(engine: str, unchecked: frozenset[str] = frozenset()) -> Launch:
    return Launch(program="p", kind="infer", request={"serving": {"engine": engine}}, unchecked=unchecked)


def every_error() -> Iterator[type[PlimsollError]]:
    for package in (planners, service):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("plimsoll.service.worker"):
                importlib.import_module(module.name)
    waiting = [PlimsollError]
    while waiting:
        error = waiting.pop()
        waiting.extend(error.__subclasses__())
        if not error.__module__.startswith(("plimsoll.service.worker", "tests.")):
            yield error


def test_only_these_errors_can_say_that_nothing_runs():
    # All others say that something is unknown, unreadable, not planned yet, away or late: nothing is refused for them.
    able = {error.code for error in every_error() if issubclass(error, ImpossibleLayout | InvalidQuestion)}
    assert able == {"impossible-layout", "invalid-question", "unstorable"}
    others = [error for error in every_error() if error.code not in able]
    assert others
    assert all(error.rules == () for error in others)


def named_rules() -> set[str]:
    """Return every rule that the planners' source names where it raises."""
    names = set()
    for file in Path(planners.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        constants = dict(re.findall(r'^([A-Z_]+) = "([a-z-]+)"$', file.read_text(), re.MULTILINE))
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "rule" and isinstance(node.value, ast.Constant):
                names.add(node.value.value)
            if isinstance(node, ast.keyword) and node.arg == "rule" and getattr(node.value, "id", None) in constants:
                names.add(constants[node.value.id])
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_impossible":
                names |= {arg.value for arg in node.args[2:3] if isinstance(arg, ast.Constant)}
    return names


def test_every_rule_of_the_planners_is_on_one_side():
    checked = {rule for engine in engines().values() for rule in engine.checked_rules} | CHECKED_OF_PLANS
    assert named_rules() >= {LONG_POSITIONS, CARD_FORMAT, "experts-needed", "tensor-parallel-divides"}
    assert named_rules() - checked <= NOT_KNOWN_TO_BE_CHECKED
    assert not checked & NOT_KNOWN_TO_BE_CHECKED


@pytest.mark.parametrize(
    ("engine", "rule", "expected"),
    [
        ("vllm", "tensor-parallel-divides", True),
        # SGLang pads the vocabulary for any degree, and runs bf16 checkpoints in fp16 where a card has no bf16.
        ("sglang", "vocabulary-divides", False),
        ("sglang", CARD_FORMAT, False),
        # Only vLLM is known to refuse experts' parallelism of a dense model.
        ("tensorrt-llm", "experts-needed", False),
        ("vllm", "experts-divide", False),
        # vLLM gives a stage without layers none; SGLang and TensorRT-LLM assert one for each.
        ("vllm", "pipeline-needs-layers", False),
        ("sglang", "pipeline-needs-layers", True),
    ],
)
def test_a_rule_counts_for_programs_that_check_it(engine: str, rule: str, expected: bool):
    assert is_impossible(ImpossibleLayout("x", rule=rule), a_launch(engine)) is expected


def test_a_rule_that_may_be_switched_off_refuses_nothing():
    error = InvalidQuestion("x", rule=LONG_POSITIONS)
    assert is_impossible(error, a_launch("vllm"))
    assert not is_impossible(error, a_launch("vllm", frozenset({LONG_POSITIONS})))


@pytest.mark.parametrize("error", [InvalidQuestion("x"), UnknownModel("m", ()), PlimsollError("x")])
def test_what_names_no_rule_refuses_nothing(error: PlimsollError):
    assert not is_impossible(error, a_launch("vllm"))
    assert not is_impossible_plan(error)


def test_one_broken_rule_of_several_is_enough():
    broken = tuple(BrokenRule(rule=rule, detail="x", pointer="") for rule in ("framework", "degrees_multiply_to_gpus"))
    assert is_impossible_plan(ImpossibleLayout("x", rule="framework", broken=broken))
