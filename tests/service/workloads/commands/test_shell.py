from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.shell import programs
from plimsoll.service.workloads.objects.pods import Container
from tests.service.admission.reviews import a_plain_container


def words(*command: str, args: tuple[str, ...] = (), **env: str) -> list[tuple[str, ...]]:
    container = Container(
        name="c", image="x", command=command, args=args, env=env, resources={}, pointer="/spec/containers/0"
    )
    return [program.words for program in programs(container)]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --tensor-parallel-size 2",
        "exec vllm serve m --tensor-parallel-size 2",
        "A=1 nohup vllm serve m --tensor-parallel-size 2",
        "numactl --interleave=all vllm serve m --tensor-parallel-size 2",
        "vllm serve m \\\n  --tensor-parallel-size 2",
        'vllm serve "m" --tensor-parallel-size ${TP:-2}',
        "export TP=2\nvllm serve m --tensor-parallel-size $TP # the engine",
    ],
)
@pytest.mark.parametrize("flag", ["-c", "-lc", "-ec"])
def test_a_shells_text_gives_the_program_in_it(text: str, flag: str):
    assert words("/bin/bash", flag, text)[-1] == ("vllm", "serve", "m", "--tensor-parallel-size", "2")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("A='--tp 2 --x'; e m $A", ("e", "m", "--tp", "2", "--x")),
        ("A='--tp 2'; e m \"$A\"", ("e", "m", "--tp 2")),
        ("A='--tp 2'; e m '$A'", ("e", "m", "$A")),
        ('A=--tp; A+="=2"; e m $A', ("e", "m", "--tp=2")),
        ("A=(--tp 2); A+=('x y'); e m \"${A[@]}\"", ("e", "m", "--tp", "2", "x y")),
        ('A+=(x); e "${A[@]}"', ("e", "${A[@]}", "x")),
        ("A=; e m $A ${A}", ("e", "m")),
        ("A=; e m ${A:-2} ${A-3}", ("e", "m", "2")),
        ("export A=1 B='2 3'; e $A$B", ("e", "12", "3")),
        ('set -- --tp 2; e m "$@"', ("e", "m", "--tp", "2")),
        ("e m $A ${A[@]} $(nvidia-smi | wc)", ("e", "m", "$A", "${A[@]}", "$(nvidia-smi | wc)")),
        # Which of them the shell assigns is not known.
        ("A=1; if [ $B ]; then A=8; fi; e $A", ("e", "$A")),
        ("A=1; [ $B ] && A=8; e ${A:-4}", ("e", "${A:-4}")),
        ("A=1; [ $B ] && A=8; A=2; e $A", ("e", "2")),
    ],
)
def test_variables_become_the_words_a_shell_makes_of_them(text: str, read: tuple[str, ...]):
    assert words("bash", "-c", text)[-1] == read


def test_a_scripts_arguments_are_put_in_their_places():
    # The third is not given: no word.
    assert words("sh", "-c", 'exec vllm serve "$@" $2 $3', "--", "m", "--tp") == [
        ("vllm", "serve", "m", "--tp", "--tp")
    ]


def test_an_arguments_variable_without_a_script_stands_as_it_is():
    assert words("vllm", "serve", "$@") == [("vllm", "serve", "$@")]


@pytest.mark.parametrize("text", ["A=$(head x); e $A", "A=`x`; e $A"])
def test_what_a_command_prints_is_not_known(text: str):
    assert words("bash", "-c", text)[-1][0] == "e"
    assert "$(" in words("bash", "-c", text)[-1][1]


def test_a_short_text_does_not_grow_without_bound():
    # Twenty doublings of 1,000 letters would be a thousand million.
    text = "A=" + "a" * 1000 + ";" + "A=$A$A;" * 20 + "e $A$A$A$A"
    assert sum(map(len, words("bash", "-c", text)[-1])) < 2_000_000


@pytest.mark.parametrize("runner", ["uv run", "poetry run", "/opt/nvidia/nvidia_entrypoint.sh"])
def test_a_runner_starts_what_follows(runner: str):
    assert words(*runner.split(), "vllm", "serve", "m") == [("vllm", "serve", "m")]


def test_a_command_of_a_branch_is_known_as_such():
    container = a_plain_container(command=("bash", "-c", "if a; then bash -c 'b; c'; fi; d"))
    assert [(program.words[0], program.is_conditional) for program in programs(container)] == [
        ("a", True), ("b", True), ("c", True), ("d", False),
    ]  # fmt: skip


def test_each_command_of_a_line_is_one_program():
    text = "nvidia-smi && (python prepare.py; torchrun train.py) | tee log"
    assert words("sh", "-c", text) == [
        ("nvidia-smi",),
        ("python", "prepare.py"),
        ("torchrun", "train.py"),
        ("tee", "log"),
    ]


def test_a_shell_in_a_shell_is_opened_too():
    assert words("bash", "-c", "exec bash -lc 'vllm serve m'") == [("vllm", "serve", "m")]


def test_kubernetes_variables_are_replaced_where_their_value_is_written():
    assert words("vllm", "serve", "$(MODEL)", "$(OTHER)", MODEL="m") == [("vllm", "serve", "m", "$(OTHER)")]


@pytest.mark.parametrize("command", [("bash", "run.sh"), ("bash",), ("sleep", "1"), ("bash", "-c")])
def test_what_is_no_shell_text_stands_as_it_is(command: tuple[str, ...]):
    assert words(*command) == [command]


def test_an_unclosed_quote_ends_what_can_be_read():
    assert words("sh", "-c", "vllm serve m; echo 'x") == [("vllm", "serve", "m")]


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -np 16 -x NCCL_DEBUG=INFO --allow-run-as-root -mca pml ob1 python train.py",
        "/usr/bin/mpiexec -n 16 --bind-to=none python train.py",
        "mpirun python train.py",
    ],
)
def test_an_mpi_launcher_starts_what_comes_after_its_options(command: str):
    assert words(*command.split()) == [("python", "train.py")]


RUN = "#!/usr/bin/env bash\nset -e\nexec vllm serve m --tensor-parallel-size $TP\n"


@pytest.mark.parametrize(
    "command", [("bash", "/scripts/run.sh"), ("/scripts/run.sh",), ("sh", "-c", "/scripts/run.sh")]
)
def test_a_script_that_is_at_hand_is_opened(command: tuple[str, ...]):
    container = a_plain_container(command=command, env={"TP": "2"}, files={"/scripts/run.sh": RUN})
    assert list(programs(container))[-1].words == ("vllm", "serve", "m", "--tensor-parallel-size", "2")


def test_a_script_that_starts_itself_ends():
    files = {"/run.sh": "#!/bin/sh\n/run.sh; /run.sh"}
    assert len(list(programs(a_plain_container(command=("/run.sh",), files=files)))) <= 100


def test_a_python_script_is_no_shell_text():
    files = {"/run.py": "#!/usr/bin/env python3\nvllm serve m"}
    assert [program.words for program in programs(a_plain_container(command=("/run.py",), files=files))] == [
        ("/run.py",)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "timeout 600 vllm serve m",
        "timeout -k 5 --foreground 600 vllm serve m",
        "timeout -s TERM 1h nohup vllm serve m",
        "taskset 0-15 vllm serve m",
    ],
)
def test_a_prefix_takes_its_own_word_and_no_more(text: str):
    assert words("sh", "-c", text) == [("vllm", "serve", "m")]


def test_what_a_shell_does_not_wait_for_is_known():
    container = a_plain_container(command=("bash", "-c", "a & b; (c) & d && e & wait"))
    assert [(program.words[0], program.is_background) for program in programs(container)] == [
        ("a", True), ("b", False), ("c", True), ("d", False), ("e", True), ("wait", False),
    ]  # fmt: skip


def test_no_arguments_are_no_word():
    assert words("bash", "-c", 'e "$@" "" "$A"', "--") == [("e", "", "$A")]


def test_sums_are_worked_out_in_words_and_in_variables():
    text = "N=$((GROUP * LOCAL)); e --dp $((N / 2)) --all $N $((N * UNKNOWN))"
    assert words("bash", "-c", text, GROUP="2", LOCAL="8") == [("e", "--dp", "8", "--all", "16", "$((N * UNKNOWN))")]
