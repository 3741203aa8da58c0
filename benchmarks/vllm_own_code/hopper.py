"""A platform of vLLM's: an H100 that is not there, whose tensors are fake ones on the CPU."""

from __future__ import annotations

from vllm.platforms.cuda import CudaPlatformBase
from vllm.platforms.interface import DeviceCapability

NAME = "NVIDIA H100 80GB HBM3"
MULTIPROCESSORS, NODE_GPUS = 132, 8


class Hopper(CudaPlatformBase):  # type: ignore[misc]
    """CUDA's platform of vLLM, asked for the card's figures."""

    device_type = "cpu"
    total_bytes = 85_029_027_840

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:  # noqa: ARG003
        """Return Hopper's."""
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
        """Return its name, by which vLLM chooses defaults."""
        return NAME

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:  # noqa: ARG003
        """Return all its memory."""
        return cls.total_bytes

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:  # noqa: ARG003
        """Return that NVLink joins all."""
        return True

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return where what stands in for NCCL is."""
        return "benchmarks.vllm_own_code.communicator.Communicator"

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:  # noqa: ARG003
        """Return its multiprocessors."""
        return MULTIPROCESSORS

    @classmethod
    def device_count(cls) -> int:
        """Return a node's cards."""
        return NODE_GPUS
