from __future__ import annotations

import pytest

from service.admission.shell import image_name, programs
from service.admission.workloads import Container
from tests.service.admission.reviews import a_plain_container


def words(*command: str, image: str = "x", args: tuple[str, ...] = (), **env: str) -> list[tuple[str, ...]]:
    container = Container(
        name="c", image=image, command=command, args=args, env=env, resources={}, pointer="/spec/containers/0"
    )
    return list(programs(container))


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


def test_the_image_says_what_starts_without_a_command():
    assert words(image="docker.io/vllm/vllm-openai:v0.19.0", args=("--model", "m")) == [
        ("vllm", "serve", "--model", "m")
    ]


@pytest.mark.parametrize("command", [("bash", "run.sh"), ("bash",), ("sleep", "1"), ("bash", "-c")])
def test_what_is_no_shell_text_stands_as_it_is(command: tuple[str, ...]):
    assert words(*command) == [command]


def test_an_unclosed_quote_ends_what_can_be_read():
    assert words("sh", "-c", "vllm serve m; echo 'x") == [("vllm", "serve", "m")]


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("vllm/vllm-openai:v0.19.0", "vllm/vllm-openai"),
        ("docker.io/vllm/vllm-openai", "vllm/vllm-openai"),
        ("localhost:5000/vllm/vllm-openai:x@sha256:00", "vllm/vllm-openai"),
        ("python:3.11", "python"),
        ("", ""),
    ],
)
def test_an_images_name_is_without_registry_tag_and_digest(image: str, name: str):
    assert image_name(image) == name


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
    assert list(programs(container))[-1] == ("vllm", "serve", "m", "--tensor-parallel-size", "2")


def test_a_script_that_starts_itself_ends():
    files = {"/run.sh": "#!/bin/sh\n/run.sh; /run.sh"}
    assert len(list(programs(a_plain_container(command=("/run.sh",), files=files)))) <= 100


def test_a_python_script_is_no_shell_text():
    files = {"/run.py": "#!/usr/bin/env python3\nvllm serve m"}
    assert list(programs(a_plain_container(command=("/run.py",), files=files))) == [("/run.py",)]


@pytest.mark.parametrize(
    "image",
    [
        "ghcr.io/huggingface/text-generation-inference:3.3.6",
        "us-docker.pkg.dev/x/gcr.io/huggingface-text-generation-inference-cu124.2-3.ubuntu2204.py311",
    ],
)
def test_the_launchers_images_start_it(image: str):
    assert words(image=image, args=("--model-id", "m")) == [("text-generation-launcher", "--model-id", "m")]
