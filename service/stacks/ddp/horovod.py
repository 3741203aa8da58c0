"""Horovod elastic: its command, and the script that tells it which hosts are there.

Options: Horovod 0.28.1, `runner/launch.py`; what it makes of the script's lines,
`runner/elastic/discovery.py`: one host a line with its slots, and exit status 0.
"""

from __future__ import annotations

from plimsoll.service.launch.training import (
    MAX_RESTARTS,
    Target,
    TrainingLaunch,
    given_reasons,
    uneven_nodes,
)

SCRIPT_FILE = "./horovod-hosts"
HOSTS_FILE = "hosts"
CONNECT_SECONDS = 5


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    return given_reasons(uneven_nodes(launch))


def horovod_command(launch: TrainingLaunch) -> str:
    """Return the command: it shrinks and grows between the sizes on all of which the batch stays the same."""
    slots = launch.processes_per_node
    fewest, most = launch.elastic_nodes
    return (
        f"horovodrun -np {launch.layout.gpus} --min-np {fewest * slots} --max-np {most * slots} "
        f"--host-discovery-script {SCRIPT_FILE} --reset-limit {MAX_RESTARTS} python train.py"
    )


def discovery_script(launch: TrainingLaunch) -> str:
    """Return the script: each host of the file `hosts` whose GPUs answer, with one slot a GPU."""
    return "\n".join(
        (
            "#!/bin/sh",
            f"# Prints the hosts that answer, one a line, of those that the file {HOSTS_FILE} names.",
            "while read -r host; do",
            f'  if ssh -n -o BatchMode=yes -o ConnectTimeout={CONNECT_SECONDS} "$host" nvidia-smi >/dev/null 2>&1',
            "  then",
            f'    echo "$host:{launch.processes_per_node}"',
            "  fi",
            f"done < {HOSTS_FILE}",
        )
    )


HOROVOD = Target(name="horovod", is_starter=True, why_not=_why_not, write=horovod_command)
# `horovodrun` is told to run it by its name alone.
HOROVOD_HOSTS = Target(
    name="horovod-hosts", is_starter=True, saved_as="horovod-hosts", why_not=_why_not, write=discovery_script
)
