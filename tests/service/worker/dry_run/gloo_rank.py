"""One real rank of a real group: shards a small model, takes a step, and prints its bytes as JSON.

Started by `test_real_ranks.py` with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from service.worker.dry_run.building import traced_model
from service.worker.dry_run.optimizers import TorchOptimizer
from service.worker.dry_run.sharding import shard_fully
from service.worker.dry_run.stacks import find_stack
from service.worker.dry_run.tracker import local_tensor
from tests.service.worker.dry_run.cases import job


def storage_bytes(tensors):
    storages = {}
    for tensor in tensors:
        storage = local_tensor(tensor).untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    wanted = job(**json.loads(sys.argv[1]))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = traced_model(wanted, find_stack(wanted.framework))
    shard_fully(model, mesh, wanted, wraps_vocabulary=False, frees_root=True)
    optimizer = TorchOptimizer(wanted.optimizer, model.parameters())
    ids = torch.randint(0, wanted.vocabulary_size, (wanted.micro_batch_size, wanted.sequence_length))
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = storage_bytes(parameter.grad for parameter in model.parameters())
    optimizer.step()
    found = {
        "rank": dist.get_rank(),
        "parameter": storage_bytes(model.parameters()),
        "gradient": gradients,
        "optimizer_state": storage_bytes(tensor for _, tensor in optimizer.named_states()),
    }
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
