from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.shell import Program, programs
from tests.service.admission.reviews import a_plain_container

BODY = "a: 1\n  b: don't\n"


def launched(text: str, **env: str) -> Program:
    """Return the last program of a text."""
    return list(programs(a_plain_container(command=("bash", "-c"), args=(text,), env=env)))[-1]


@pytest.mark.parametrize(
    "head",
    [
        "cat > /o.yaml <<EOF",
        "cat <<'EOF' > /o.yaml",
        'cat <<"EOF" >/./o.yaml',
        "cat > '/o.yaml' << EOF && true",
        "a && cat > /o.yaml <<EOF",
        "cat > $FILE << \\EOF",
    ],
)
def test_a_file_that_is_written_before_is_at_hand(head: str):
    last = launched(f"{head}\n{BODY}EOF\nvllm serve m", FILE="/o.yaml")
    assert dict(last.container.files) == {"/o.yaml": BODY}
    # Its text, which an apostrophe would have ended, is no command.
    assert last.words == ("vllm", "serve", "m")


def test_blanks_in_front_of_the_first_line_are_kept_and_tabs_where_they_are_wanted():
    assert dict(launched("cat > /o <<EOF\n\n  a: 1\n\tb\nEOF\ne").container.files) == {"/o": "\n  a: 1\n\tb\n"}
    assert dict(launched("cat > /o <<-EOF\n\t\ta: 1\n\tb\n\tEOF\ne").container.files) == {"/o": "a: 1\nb\n"}


@pytest.mark.parametrize(
    ("mark", "body"), [("EOF", "tp: 2 \\d $(nproc) $NO\n"), ("'EOF'", "tp: $TP \\\\d $(nproc) $NO\n")]
)
def test_variables_are_put_in_unless_the_mark_is_quoted(mark: str, body: str):
    written = "tp: $TP \\\\d $(nproc) $NO"
    assert dict(launched(f"cat > /o <<{mark}\n{written}\nEOF\ne", TP="2").container.files) == {"/o": body}


def test_what_is_appended_stands_behind_what_is_known():
    text = "cat > /o <<EOF\na\nEOF\ncat >> /o <<EOF\nb\nEOF\ncat >> /p <<EOF\nc\nEOF\ne"
    assert dict(launched(text).container.files) == {"/o": "a\nb\n"}


@pytest.mark.parametrize("after", ["sed s/a/b/ /x > /o", "if [ $X ]; then cat > /o <<EOF\nb\nEOF\nfi", "{ a; } >> /o"])
def test_a_file_that_something_else_may_write_is_not_at_hand(after: str):
    assert dict(launched(f"cat > /o <<EOF\na\nEOF\n{after}\ne").container.files) == {}


@pytest.mark.parametrize(
    "text", ["vllm serve m", "cat <<< text; vllm serve m", "python3 - <<EOF\nprint('<')\nEOF\nvllm serve m"]
)
def test_what_writes_no_file_leaves_none(text: str):
    last = launched(text)
    assert dict(last.container.files) == {}
    assert last.words == ("vllm", "serve", "m")


def test_a_program_behind_a_mark_is_read():
    assert launched("cat <<EOF | vllm serve m\nx\nEOF\n").words == ("vllm", "serve", "m")
    assert launched("cat <<EOF && vllm serve m\nx\nEOF\n").words == ("vllm", "serve", "m")


def test_a_mark_that_the_grammar_reads_wrongly_ends_what_is_read():
    # bash ends it at the first EOF; the grammar looks for one with a `;`.
    assert list(programs(a_plain_container(command=("bash", "-c", "cat > /o <<EOF; a\nx\nEOF\nb")))) == []


def test_many_marks_are_read_in_one_pass():
    assert list(programs(a_plain_container(command=("bash", "-c", "cat <<A > /x\n" * 30_000)))) == []
