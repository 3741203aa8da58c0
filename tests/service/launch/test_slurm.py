"""The Slurm script: options that sbatch has, and a torchrun command that its own parser reads."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from plimsoll.service.launch.slurm import slurm_script
from tests.service.engines.serving_plans import PLAN_ID, hardware
from tests.service.launch.training_layouts import layout

# Of sbatch(1).
OPTIONS = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive"}


@pytest.mark.parametrize(("gpus", "nodes", "processes"), [(1, 1, 1), (8, 1, 8), (16, 2, 8)])
def test_the_script_starts_a_process_a_gpu_on_every_node(gpus: int, nodes: int, processes: int):
    from torch.distributed.run import get_args_parser

    script = slurm_script("org/tiny", layout(gpus), hardware(), PLAN_ID)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, re.MULTILINE))
    assert options.keys() == OPTIONS
    assert (int(options["nodes"]), int(options["gpus-per-node"])) == (nodes, processes)
    srun, torchrun, *arguments = shlex.split(script.splitlines()[-1])
    parsed = get_args_parser().parse_args(arguments)
    assert (srun, torchrun) == ("srun", "torchrun")
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.standalone) == (str(nodes), str(processes), nodes == 1)


def test_bash_reads_the_script():
    script = slurm_script("org/tiny", layout(16), hardware(), PLAN_ID)
    subprocess.run(["/bin/bash", "-n"], input=script.encode(), check=True)


def test_gpus_that_do_not_fill_their_nodes_have_no_script():
    assert slurm_script("org/tiny", layout(12), hardware(), PLAN_ID) is None
