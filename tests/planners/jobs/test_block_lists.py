"""Lists of every stage's blocks, in letters and in modules; what they cannot be stands with the ways (`read`)."""

import json

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.block_lists import POINTER, layers_of_letters, layers_of_modules, written


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("Ett|ttt|tL", (2, 3, 1)),
        ("E,tt|t*3|,t L", (2, 3, 1)),
        ("Et|(tt|t|)*2tL", (1, 2, 1, 2, 1, 1)),
        ("Et|(t*2|)*2tL", (1, 2, 2, 1)),
        (" E*1t*0|(t|)*1L*1 ", (0, 1, 0)),
        ("EtttL", (3,)),
    ],
)
def test_lists_are_read_with_their_repetitions(text: str, layers: tuple[int, ...]):
    assert layers_of_letters(text) == (layers, ())


def test_a_list_is_written_with_what_is_alike_in_a_row_once():
    assert written((7, *(8,) * 14, 7)) == "Et*7|(t*8|)*14t*7L"
    assert written((0, 1, 1, 2, 0)) == "E|(t|)*2tt|L"
    assert written((3,)) == "Et*3L"


def modules(*layers: str) -> list[list[str]]:
    """Return a list of stages; each digit is a layer, E the embedding, N the norm and O the head."""
    other = {"E": "tok_embeddings", "N": "norm", "O": "output"}
    return [[other.get(letter, f"layers.{letter}") for letter in stage] for stage in layers]


@pytest.mark.parametrize(
    ("stages", "layers"),
    [(("E01", "23", "4NO"), (2, 2, 1)), (("E", "0", "NO"), (0, 1, 0)), (("10E", "2ON"), (2, 1)), (("E0NO",), (1,))],
)
def test_modules_are_counted_stage_by_stage(stages: tuple[str, ...], layers: tuple[int, ...]):
    assert layers_of_modules(json.dumps(modules(*stages))) == layers


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (("E01", "2", "4NO"), "layers.3 is in no stage, and layers.4 is in stage 2"),
        (("E01", "12", "3NO"), "layers.1 is in stage 0 and again in stage 1"),
        (("E00", "1NO"), "layers.0 is in stage 0 and again in stage 0"),
        (("E0", "3", "12NO"), "layers.3 is in stage 1, before layers.2 in stage 2"),
        (("01", "2NO"), "tok_embeddings is in no stage"),
        (("E01", "2O"), "norm is in no stage"),
        (("E01", "2N"), "output is in no stage"),
        (("01", "E2NO"), "tok_embeddings must be in the first stage"),
        (("E01N", "2O"), "norm and output in the last"),
        (("E01", "", "2NO"), "stage 1 of 3, counted from 0, has no module"),
    ],
)
def test_modules_that_are_no_division_are_named(stages: tuple[str, ...], words: str):
    with pytest.raises(InvalidQuestion) as refused:
        layers_of_modules(json.dumps(modules(*stages)))
    assert words in str(refused.value)
    assert refused.value.pointer == POINTER


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "a list for each stage"),
        ("[", "a list for each stage"),
        ("[" * 4096, "a list for each stage"),
        ('["tok_embeddings"]', "a list for each stage"),
        ("[[1]]", "a list for each stage"),
        ('[["tok_embeddings", "model.layers.0"]]', "'model.layers.0' in stage 0 is no module"),
        ('[["layers.01"]]', "'layers.01' in stage 0 is no module"),
    ],
)
def test_what_is_no_list_of_modules_is_refused_with_one(text: str, words: str):
    with pytest.raises(InvalidQuestion) as refused:
        layers_of_modules(text)
    assert words in str(refused.value)
