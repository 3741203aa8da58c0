from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.shell import Program, programs
from tests.service.admission.reviews import a_plain_container


def read(text: str, *arguments: str, **env: str) -> list[Program]:
    return list(programs(a_plain_container(command=("bash", "-c", text), args=arguments, env=env)))


def words(text: str, *arguments: str, **env: str) -> list[str]:
    return [" ".join(program.words) for program in read(text, *arguments, **env)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a b\tc", ["a b c"]),
        ("a # b\nc", ["a", "c"]),
        ("a b#c", ["a b#c"]),
        ("a;b && c || d | e & f", ["a", "b", "c", "d", "e", "f"]),
        ("(a; b)", ["a", "b"]),
        ("{ a; b; } 2>&1 | c", ["a", "b", "c"]),
        ("! a", ["a"]),
        ("a &&\n# why\nb", ["a", "b"]),
        ("a >out 2>&1 b <in c", ["a b c"]),
        ("a &> out b 2>>err c", ["a b c"]),
        ("a 2>&- b", ["a b"]),
        (">out a b", ["a b"]),
        ("a > >(tee log) b", ["a b"]),
        ("a <(b) c", ["a <(b) c"]),
        ("if a; then b; elif c; then d; else e; fi; f", ["a", "b", "c", "d", "e", "f"]),
        ("for x in a b; do c; done", ["c"]),
        ("for ((i = 0; i < 2; i++)); do c; done", ["c"]),
        ("case $x in a|b) c;; (d) e;& *) f; esac", ["c", "e", "f"]),
        ("while ! a; do b; done", ["a", "b"]),
        ("A=1 B=2\nC=3\na $A$B$C", ["a 123"]),
        ("A=1 B= # two\n{ a $A$B; }", ["a 1"]),
        ("exec a; b", ["a"]),
        ("exec 2>&1; b", ["b"]),
        ("if a; then exit 1; fi; b; exit; c", ["a", "exit 1", "b", "exit"]),
        ("(exit); a", ["exit", "a"]),
        ("eval 'a 1' '2'", ["a 1 2"]),
        ("set -euo pipefail\nbash -euo pipefail -c 'a'", ["set -euo pipefail", "a"]),
    ],
)
def test_statements_are_read_in_the_order_in_which_a_shell_runs_them(text: str, found: list[str]):
    assert words(text) == found


@pytest.mark.parametrize(
    ("text", "last_is_conditional"),
    [
        ("a; b", False),
        ("a && b", False),
        ("a || b", True),
        ("[ -n x ] && b", True),
        ("! [[ -n x ]] && b", True),
        ("((1 > 0)) && b", True),
        ("[ -n x ] && a && b", True),
        ("[ -n x ] && { a; b; }", True),
        ("[ -n x ] && a; b", False),
        ("if a; then b; fi", True),
        ("if a; then c; fi; b", False),
        ("case x in a) b;; esac", True),
        ("until a; do b; done", True),
        ("if a; then f() { b; }; fi; f", True),
    ],
)
def test_a_command_that_may_be_left_out_says_so(text: str, last_is_conditional: bool):
    assert read(text)[-1].is_conditional is last_is_conditional


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("f() { e $1; }; f a", "e a"),
        ("function f { e $#; }; f a b", "e 2"),
        ("f() { e in; }; e out", "e out"),
        ("f() { A=1; }; f; e $A", "e 1"),
        ("f() { local A=1; }; A=2; f; e $A", "e $A"),
        ("f() { return; e in; }; f; e out", "e out"),
    ],
)
def test_a_function_runs_where_it_is_called(text: str, last: str):
    assert words(text)[-1] == last


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("A=1; (A=2); e $A", "e 1"),
        ("A=1; A=2 | a; e $A", "e 1"),
        ("A=1; A=2 & e $A", "e 1"),
        ("A=1; A=2 e; e $A", "e 1"),
        ("export A=1; bash -c 'e $A'", "e 1"),
        ("A=1 bash -c 'e $A'", "e 1"),
        ("A=1 eval 'e $A'", "e 1"),
        ("f() { e $A; }; A=1 f", "e 1"),
        # It is not handed on, but the image may have one.
        ("A=1; bash -c 'e $A'", "e $A"),
        ("A=1; if a; then A=2; e $A; fi", "e 2"),
        ("A=1; if a; then A=2; fi; e $A", "e $A"),
        ("A=1; if a; then A=2; exit; fi; e $A", "e 1"),
        ("A=1; for i in a b; do e $A; A=2; done", "e $A"),
        ("i=1; for i in a b; do :; done; e $i", "e $i"),
        ("i=1; for ((i=0; i<2; i++)); do e $i; done", "e $i"),
        ("A=1; read -r A; e $A", "e $A"),
        ("A=1; unset A; e $A", "e $A"),
        ("A=1; ((A++)); e $A", "e $A"),
        ("A=1; A[1]=2; e ${A[1]}", "e ${A[1]}"),
        ("A='a b' IFS=,; e $A", "e $A"),
        ("set -- a b; shift; e $1", "e b"),
        ("set -- a b; if [ $X ]; then shift; fi; e $1", "e $1"),
        ("set -- $X b; e $2", "e $2"),
    ],
)
def test_a_value_is_known_only_where_the_shell_surely_has_it(text: str, last: str):
    assert words(text)[-1] == last


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("A=(b 'c d'\n  # no\n e); e \"${A[@]}\"", ("e", "b", "c d", "e")),
        ("A=(b 'c d'); e ${A[@]} ${A[1]} \"${A[*]}\" $A", ("e", "b", "c", "d", "c", "d", "b c d", "b")),
        ("e ${A:-${B:-c}} ${A:-'d e'} \"${A:-f g}\"", ("e", "c", "d e", "f g")),
        (": ${A:=b}; e $A ${A:+c} ${A:?no}", ("e", "b", "c", "b")),
        ("e $'a\\tb' a\\ b c\\\nd \\  'e'", ("e", "a\tb", "a b", "cd", " ", "e")),
        ("A=' b c '; e x$A\"y\"", ("e", "x", "b", "c", "y")),
        ("A=é; e \"ü $A\"'ï'", ("e", "ü éï")),
    ],
)
def test_words_are_those_that_bash_makes(text: str, last: tuple[str, ...]):
    assert read(text)[-1].words == last


@pytest.mark.parametrize("expansion", ["${#A}", "${A%b}", "${A/a/b}", "${A:1}", "${!A}", "$(e)", "`e`", "$((A ** 2))"])
def test_what_is_not_worked_out_stands_as_it_is_written(expansion: str):
    ((_, word),) = (program.words for program in read(f"A='a b'; e {expansion}"))
    assert word == ("$(e)" if expansion == "`e`" else expansion)


@pytest.mark.parametrize(
    "text",
    [
        "a; b 'c",
        'a; b "c',
        "a; b $(c",
        "a; b ${c",
        "a; b `c",
        "a; b=(c",
        "a\nif b; then c",
        "a\nb )\nc",
        "a; A='x'$\"b c",
    ],
)
def test_what_follows_something_that_cannot_be_read_is_not_read(text: str):
    assert words(text) in (["a"], [])


@pytest.mark.parametrize("assignment", ['A=""b$1', 'A="x"1\\\n2', "export A=1\\\n2"])
def test_a_value_that_the_grammar_tears_in_two_ends_what_is_read(assignment: str):
    assert words(f"a\n{assignment}\nb $A") == ["a"]


def test_a_long_text_of_escapes_is_read_in_one_pass():
    # 50,000 escaped letters are one word of 50,000 letters.
    assert words("\\a" * 50_000) == ["a" * 50_000]


LONG = {
    "closing": ")" * 100_000, "arrays": "a=(" * 33_000, "redirections": "<" * 100_000, "opening": "(" * 50_000,
    "substitutions": "$(" * 50_000, "pipes": "a|" * 50_000 + "b", "backticks": "`" * 100_000,
    "branches": "if a; then " * 300 + "b" + "; fi" * 300, "a function in itself": "f() { f; f; }; f",
    "loops": "for i in a; do " * 40 + "b;" + "done;" * 40,
    "calls": "f() { A=1 " + "a " * 40_000 + "; }\n" + "f;" * 5_000,
    "evaluations": "X='" + "a " * 40_000 + "'\n" + 'eval "$X";' * 5_000, "zero bytes": "a\0" * 50_000,
    "expansions": "A=(" + "x " * 20_000 + ")\n" + 'e "${A[@]}"\n' * 5_000, "half a character": "\ud800",
}  # fmt: skip


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_text_of_100_kb_makes_a_hundred_programs_and_a_million_letters_at_most(text: str):
    found = read(text)
    assert len(found) <= 100
    assert sum(len(word) for program in found for word in program.words) < 1_000_000
