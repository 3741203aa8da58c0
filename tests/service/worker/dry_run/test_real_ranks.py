"""A traced rank against a real one, to the byte."""

import json
import os
import socket
import subprocess
import sys

import pytest

from service.worker.dry_run.ledger import Kind
from tests.service.worker.dry_run.cases import requested_bytes, traced

RANKS = 2


@pytest.mark.slow
def test_a_traced_rank_holds_what_a_real_one_of_two_holds():
    case = {"data_parallel": RANKS, "attention": "eager"}  # the flash operator has no CPU kernel
    real = _real_ranks(case)
    ledger = traced(**case)
    for kind in (Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER_STATE):
        assert requested_bytes(ledger, kind) == real[0][kind.value]


def _real_ranks(case):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = os.environ | {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.service.worker.dry_run.gloo_rank", json.dumps(case)],
            env=base | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    found = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    return sorted(found, key=lambda rank: rank["rank"])
