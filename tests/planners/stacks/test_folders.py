"""What a stack's file inherits, and what nobody may."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from plimsoll.planners.stacks import folders
from plimsoll.planners.stacks.folders import OWN, STACK, TIMING, StackFolders
from plimsoll.planners.stacks.profile import load_profile, profile_of, stack_names

SHIPPED = Path(folders.__file__).parent
OWN_LINES = """
title = "DeepSpeed with fp32 gradients on the host"
listed = 99
measured = false
sources = ["a page of its own"]
versions = {}
"""
BAND = """
[band]
low = 0.7
high = 1.6
reason = "No measured run of it is on record."
"""


@pytest.fixture
def stacks(tmp_path: Path) -> StackFolders:
    """The folders that ship, in a place where a stack can be added."""
    shutil.copytree(SHIPPED, tmp_path / "stacks", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    return StackFolders(tmp_path / "stacks")


def add(stacks: StackFolders, text: str, *, folder: str = "made_up", file: str = "stack.toml") -> None:
    path = stacks.root / folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_folders_are_the_list_and_underscores_are_dashes(stacks: StackFolders):
    assert stacks.names() == stack_names()
    add(stacks, OWN_LINES + BAND)
    assert set(stacks.names()) - set(stack_names()) == {"made-up"}


def test_a_stack_like_another_has_its_numbers_and_its_own_in_their_place(stacks: StackFolders):
    add(stacks, f'like = "deepspeed"\n{OWN_LINES}\n[kernels]\nnorm_statistic_bytes = 8\n{BAND}')
    made = profile_of("made-up", stacks.table("made-up", STACK))
    kin = load_profile("deepspeed")
    assert (made.kernels.norm_statistic_bytes, made.kernels.eager_score_bytes) == (8, kin.kernels.eager_score_bytes)
    assert (made.states, made.can, made.zero) == (kin.states, kin.can, kin.zero)


def test_a_stack_like_another_shards_as_that_one_does_in_every_stage(stacks: StackFolders):
    add(stacks, f'like = "deepspeed"\n{OWN_LINES}{BAND}')
    made = profile_of("made-up", stacks.table("made-up", STACK))
    assert made.placement == load_profile("deepspeed").placement


def test_a_stack_without_a_kin_has_to_say_how_it_shards(stacks: StackFolders):
    text = (SHIPPED / "deepspeed" / "stack.toml").read_text()
    without = text.replace('3 = "each_tensor_flat"\n', "")
    own = without.replace('title = "', 'title = "another ').replace("listed = 4", "listed = 99")
    add(stacks, own.replace("sources = [", 'sources = [\n    "a page of its own",'))
    with pytest.raises(ValueError, match=r"placement\.cuts: ZeRO stage 3 is not stated"):
        profile_of("made-up", stacks.table("made-up", STACK))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[placement.cuts]\n2 = "whole"', "placement.cuts: ZeRO stage 0, 1, 3 is not stated"),
        ('[placement.cuts]\n0 = "whole"\n1 = "whole"\n22 = "whole"', "placement.cuts: 22 is no ZeRO stage"),
        ("[can]\nzero_stages = [2, 4]", "placement.cuts: 4 is no ZeRO stage"),
        ('[weights]\ngathering = { 2 = "resident" }', "weights.gathering: ZeRO stage 0, 1, 3 is not stated"),
        (
            '[weights]\ngathering = { 2 = "residnet" }\n[can]\nzero_stages = [2]',
            "gathering: 'residnet' is none of resident",
        ),
        ('[can]\noffload = ["optimiser"]', "Capabilities.offload: 'optimiser' is none of none, optimizer"),
        ("[states]\nbf16_mixed = {}", "states: bf16_mixed is no precision"),
    ],
)
def test_a_stage_left_out_and_a_word_misspelt_are_refused_by_name(stacks: StackFolders, text: str, message: str):
    add(stacks, f'like = "deepspeed"\n{OWN_LINES}{BAND}\n{text}')
    with pytest.raises(ValueError, match=message):
        profile_of("made-up", stacks.table("made-up", STACK))


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_cuts_weights_as_it_or_its_kin_states_in_each_stage_that_it_can_do(name: str):
    table = folders.shipped().table(name, STACK)
    assert {str(stage) for stage in table["can"]["zero_stages"]} <= set(table["placement"]["cuts"])
    assert table["placement"]["source"]
    assert "cuts" not in tomllib.loads((SHIPPED / "stack_defaults.toml").read_text())["placement"]


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in (STACK, TIMING) for key in sorted(OWN[kind])])
def test_what_says_where_numbers_come_from_is_inherited_by_nobody(stacks: StackFolders, kind: str, key: str):
    own = tomllib.loads((SHIPPED / "ddp" / f"{kind}.toml").read_text())
    lines = [f"{each} = {_toml(own[each])}" for each in sorted(OWN[kind]) if each != key]
    lines = [line.replace("DistributedDataParallel", "Something else") for line in lines]
    add(stacks, OWN_LINES + BAND)
    add(stacks, "\n".join(['like = "ddp"', *lines]), file=f"{kind}.toml")
    with pytest.raises(ValueError, match=f"{key} must be its own"):
        stacks.table("made-up", kind)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_a_title_that_another_stack_has_is_refused(stacks: StackFolders):
    title = OWN_LINES.splitlines()[1].replace("DeepSpeed with fp32 gradients on the host", "ATorch on FSDP1")
    add(stacks, OWN_LINES.replace(OWN_LINES.splitlines()[1], title) + 'like = "atorch"\n' + BAND)
    with pytest.raises(ValueError, match="title of atorch"):
        stacks.table("made-up", STACK)


def test_a_place_in_the_list_that_another_stack_has_is_refused(stacks: StackFolders):
    add(stacks, f'like = "atorch"\n{OWN_LINES.replace("99", "12")}{BAND}')
    with pytest.raises(ValueError, match="listed of atorch, 12"):
        stacks.table("made-up", STACK)


@pytest.mark.parametrize("sources", ["[]", '["torch.distributed.fsdp: flat parameters, 16-bit gathers"]'])
def test_a_stack_without_a_source_of_its_own_is_refused(stacks: StackFolders, sources: str):
    add(stacks, f'like = "atorch"\n{OWN_LINES}{BAND}'.replace('["a page of its own"]', sources))
    with pytest.raises(ValueError, match="made-up: every one of its sources is another's"):
        stacks.table("made-up", STACK)


def test_kernels_that_were_looked_at_under_one_stack_are_not_another_s(stacks: StackFolders):
    add(stacks, f'like = "accelerate"\n{OWN_LINES}{BAND}')
    assert load_profile("accelerate").kernel_choices
    assert profile_of("made-up", stacks.table("made-up", STACK)).kernel_choices == ()


def test_what_is_like_the_textbook_is_not_another_textbook(stacks: StackFolders):
    add(stacks, f'like = "reference"\n{OWN_LINES}{BAND}')
    assert not profile_of("made-up", stacks.table("made-up", STACK)).is_textbook


def test_two_stacks_that_are_like_one_another_are_refused(stacks: StackFolders):
    add(stacks, f'like = "zero-too"\n{OWN_LINES}{BAND}')
    add(stacks, f'like = "made-up"\n{OWN_LINES.replace("host", "card")}{BAND}', folder="zero_too")
    with pytest.raises(ValueError, match="in a ring"):
        stacks.table("made-up", STACK)


@pytest.mark.parametrize("text", ["wrong = 1", "[kernels]\nwrong = 1", "[wrong]\nkey = 1"])
def test_an_unknown_key_is_refused_by_name(stacks: StackFolders, text: str):
    table, _, lines = text.rpartition("\n")
    top = f'like = "deepspeed"\n{OWN_LINES}'
    add(stacks, f"{top}{BAND}{table}\n{lines}" if table else f"{text}\n{top}{BAND}")
    with pytest.raises(ValueError, match="wrong"):
        profile_of("made-up", stacks.table("made-up", STACK))
