"""One of four real ranks: takes the steps of every case in one group, and leaves its accounts as JSON.

Started by `test_real_ranks.py` with RANK and WORLD_SIZE set: `gloo_rank FOLDER`. FOLDER holds `cases.json`.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch

from plimsoll.service.worker.devices.device import find_device
from plimsoll.service.worker.proofs.device.processes import PATIENCE_SECONDS
from plimsoll.service.worker.proofs.device.rank_process import real_group
from plimsoll.service.worker.proofs.device.running import run_rank
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import job

# Longer than those who started it wait for all: they ask each rank where it stands.
PATIENCE = timedelta(seconds=PATIENCE_SECONDS)


def main():
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    device = find_device("cpu", planned_gpu="h100-sxm-80gb", any_gpu_kind=False)
    accounts = {}
    ranks = int(os.environ["WORLD_SIZE"])
    with real_group(folder, device, rank=rank, ranks=ranks, patience=PATIENCE):
        for name, case in json.loads((folder / "cases.json").read_text()).items():
            wanted = job(**case)
            (stage,) = wanted.deciding_stages
            account = run_rank(
                wanted, find_stack(wanted.framework), stage, device, rank=rank, report=lambda *_progress: None
            )
            accounts[name] = {key: account[key] for key in ("held", "kept_for_backward_bytes", "peak_bytes")}
    (folder / f"rank{rank}.json").write_text(json.dumps(accounts))


if __name__ == "__main__":
    main()
