"""What stands in for NCCL between ranks of which one is here."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class Communicator(DeviceCommunicatorBase):  # type: ignore[misc]
    """What NCCL's communicator allocates: sums and gathered tensors are new ones.

    Source: vllm/distributed/device_communicators/pynccl.py, all_reduce (an empty tensor as the input).
    """

    def __init__(self, cpu_group: Any, device_group: Any = None, unique_name: str = "", **_options: Any) -> None:
        self.cpu_group, self.device_group, self.unique_name = cpu_group, device_group, unique_name
        self.world_size = self.global_world_size = dist.get_world_size(cpu_group)
        self.rank_in_group = self.rank = self.global_rank = dist.get_rank(cpu_group)
        self.ranks = list(range(self.world_size))
        self.device = torch.device("cpu")
        self.use_all2all = self.is_ep_communicator = False
        self.all2all_manager = None

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Return a sum by shape."""
        return torch.empty_like(input_)

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Return what all ranks have, by shape."""
        shape = list(input_.shape)
        shape[dim] *= self.world_size
        return input_.new_empty(shape)
