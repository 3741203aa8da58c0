"""What ranks printed, and which lines of it are kept."""

from plimsoll.service.worker.processes.child_main import LOG_LINES
from plimsoll.service.worker.proofs.device.rank_logs import STACK_HEADING, last_words, log_file


def logs(folder, *texts):
    for rank, text in enumerate(texts):
        log_file(folder, rank).write_text(text)
    return last_words(folder, len(texts)).splitlines()


def numbered(count):
    return "".join(f"line {number}\n" for number in range(count))


def test_each_rank_has_its_share_of_the_lines(tmp_path):
    lines = logs(tmp_path, numbered(100), numbered(100))
    # 80 lines for two ranks: a heading and 39 lines each.
    assert len(lines) == LOG_LINES == 80
    assert (lines[0], lines[1], lines[39]) == ("Rank 0:", "  line 61", "  line 99")
    assert (lines[40], lines[79]) == ("Rank 1:", "  line 99")


def test_a_rank_that_said_little_is_quoted_whole(tmp_path):
    assert logs(tmp_path, "out of luck\n", "") == ["Rank 0:", "  out of luck", "Rank 1:"]


def test_of_a_stack_the_innermost_frames_are_kept(tmp_path):
    frames = "".join(f'  File "f{number}.py", line 1 in f\n' for number in range(100))
    lines = logs(tmp_path, f"{numbered(100)}Stack {STACK_HEADING}\n{frames}")
    # One rank: 79 lines after the heading, 39 of them the stack's first, 40 what stands before.
    assert len(lines) == LOG_LINES
    assert (lines[1], lines[40]) == ("  line 61", "  Stack ")
    assert (lines[41], lines[79]) == ('    File "f0.py", line 1 in f', '    File "f38.py", line 1 in f')
