"""What a model is made of: named weights, operations and state for the sequence."""

from planners.architecture.model import Block, ModelSpec
from planners.architecture.operation import Operation, OperationKind, Region, Scan, ScanKernel, Tensor
from planners.architecture.sequence_state import CompressedState, KvKind, KvState
from planners.architecture.weight import Part, Split, Weight

__all__ = [
    "Block",
    "CompressedState",
    "KvKind",
    "KvState",
    "ModelSpec",
    "Operation",
    "OperationKind",
    "Part",
    "Region",
    "Scan",
    "ScanKernel",
    "Split",
    "Tensor",
    "Weight",
]
