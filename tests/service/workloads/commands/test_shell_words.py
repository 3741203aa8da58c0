from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.shell_words import commands


def plain(text: str) -> list[list[str]]:
    """Return the words of each command, pieces joined as they stand."""
    return [["".join(piece.text for piece in word.pieces) for word in command.words] for command in commands(text)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a b\tc", [["a", "b", "c"]]),
        ("a 'b c' \"d e\"f", [["a", "b c", "d ef"]]),
        (r"a b\ c \'d", [["a", "b c", "'d"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a b#c", [["a", "b#c"]]),
        ("a;b && c || d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("(a; b)", [["a"], ["b"]]),
        ("f() { a; }", [["f"], ["a"]]),
        ("a $(b (c)) d", [["a", "$(b (c))", "d"]]),
        ("a `b | c` d", [["a", "$(b | c)", "d"]]),
        ("a ${B:-c d} e", [["a", "${B:-c d}", "e"]]),
        ('a "$(b "c")" d', [["a", '$(b "c")', "d"]]),
        ("a >out 2>&1 b <in", [["a", "b"]]),
        ("a &> out b 2>>err c", [["a", "b", "c"]]),
        ("a > >(tee log) b", [["a", "b"]]),
        ("if a; then b; elif c; then d; else e; fi; f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("for x in a b; do c; done", [["c"]]),
        ("case $x in a) b;; esac", [["b"]]),
        ("while ! a; do b; done", [["a"], ["b"]]),
    ],
)
def test_text_is_split_as_a_shell_splits_it(text: str, read: list[list[str]]):
    assert plain(text) == read


@pytest.mark.parametrize("text", ["a; b 'c", 'a; b "c', "a; b $(c", "a; b ${c", "a; b `c", "a; b=(c"])
def test_what_follows_something_unclosed_is_not_read(text: str):
    assert plain(text) == [["a"]]


@pytest.mark.parametrize(
    ("text", "last_is_conditional"),
    [
        ("a; b", False),
        ("a && b", False),
        ("a || b", True),
        ("[ -n x ] && b", True),
        ("[ -n x ] && a && b", True),
        ("[ -n x ] && a; b", False),
        ("if a; then b; fi", True),
        ("if a; then c; fi; b", False),
        ("case x in a) b;; esac", True),
        ("until a; do b; done", True),
    ],
)
def test_a_command_that_may_be_left_out_says_so(text: str, last_is_conditional: bool):
    assert list(commands(text))[-1].is_conditional is last_is_conditional


def test_an_array_is_one_word_with_its_elements():
    ((word,),) = [command.words for command in commands("A=(b 'c d'\n  # no\n e)")]
    assert word.elements is not None
    assert [piece.text for element in word.elements for piece in element.pieces] == ["b", "c d", "e"]


def test_a_long_text_of_escapes_is_read_in_one_pass():
    # 50,000 escaped letters are one word of 50,000 letters.
    assert plain("\\a" * 50_000) == [["a" * 50_000]]
