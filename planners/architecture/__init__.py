"""What a model is made of: named weights, operations and state for the sequence."""

from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Scan, ScanKernel, Tensor
from plimsoll.planners.architecture.sequence_state import GROWING, CompressedState, KvKind, KvState
from plimsoll.planners.architecture.weight import Part, Split, Weight

__all__ = [
    "GROWING",
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
