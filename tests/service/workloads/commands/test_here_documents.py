from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.here_documents import with_here_documents
from plimsoll.service.workloads.commands.shell import programs
from tests.service.admission.reviews import a_plain_container

BODY = "a: 1\nb: don't"


def shell(text: str):
    return with_here_documents(a_plain_container(command=("bash", "-c"), args=(text,)))


@pytest.mark.parametrize(
    "head",
    ["cat > /o.yaml <<EOF", "cat <<'EOF' > /o.yaml", 'cat <<-"EOF" >/./o.yaml', "cat > '/o.yaml' << EOF && true"],
)
def test_a_file_that_is_written_before_is_at_hand(head: str):
    read = shell(f"{head}\n{BODY}\nEOF\nvllm serve m")
    assert dict(read.files) == {"/o.yaml": BODY}
    # Its text, which an apostrophe would have ended, is no command.
    assert list(programs(read))[-1].words == ("vllm", "serve", "m")


@pytest.mark.parametrize(
    "text", ["vllm serve m", "cat <<< text; vllm serve m", "python3 - <<EOF\nprint('<')\nEOF\nvllm serve m"]
)
def test_what_writes_no_file_leaves_none(text: str):
    read = shell(text)
    assert dict(read.files) == {}
    assert list(programs(read))[-1].words == ("vllm", "serve", "m")


def test_a_document_without_an_end_ends_with_the_text():
    assert dict(shell("cat > /o <<EOF\nx").files) == {"/o": "x"}


def test_many_marks_are_read_in_one_pass():
    assert len(shell("cat <<A > /x\n" * 30_000).files) == 1
