"""A quantized checkpoint as compressed-tensors stores one, which vLLM, SGLang and transformers load.

Source: compressed-tensors 0.20.0, compressors/ (naive_quantized, pack_quantized,
mxfp4) and quantization/quant_args.py; the schemes are those that vLLM's
compressed_tensors.py (_get_scheme_from_parts) knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from plimsoll.planners.architecture import Part
from plimsoll.planners.quantization.planning import SchemeSettings
from plimsoll.service.worker.quantization.checkpoints.shard_file import PlannedTensor
from plimsoll.service.worker.quantization.checkpoints.sources import SourceTensor
from plimsoll.service.worker.quantization.schemes.group_codes import swap_nibbles, unpack_nibbles
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor

WORD_BITS = 32
INT4_BITS = 4
# Codes are stored without a sign, those of int8 128 higher than they are: the uppermost bit the other way round.
SIGN_BIT = 0x80
# Is a linear layer in every causal model, and has no tensor of its own where it is tied to the embedding.
HEAD = "lm_head"
ROUNDED_ACTIVATIONS_NOTE = (
    "Engines that load the checkpoint round activations to 8 bits too, with a scale for each token; the errors are "
    "those of the weights alone."
)
NARROWED_SCALES_NOTE = "Engines load the scales of groups in the dtype in which they compute."


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedScheme:
    """How compressed-tensors names a scheme: its format, and what `quantization_config` says of the weights.

    Where activations are rounded, they are each token for itself, to as many bits
    as the weights: engines multiply 8-bit numbers with one scale a tensor or a
    row by each other.
    """

    format: str
    bits: int
    type: str
    strategy: str
    is_symmetric: bool = True
    rounds_activations: bool = False

    def weight_arguments(self, group_size: int | None) -> dict[str, Any]:
        """Return the arguments of the weights."""
        is_microscaled = self.format == "mxfp4-pack-quantized"
        return {
            **self._arguments(self.strategy, is_dynamic=False),
            "symmetric": self.is_symmetric,
            "group_size": group_size,
            **({"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"} if is_microscaled else {}),
        }

    def activation_arguments(self) -> dict[str, Any] | None:
        """Return the arguments of the activations, or None where they are left alone."""
        if not self.rounds_activations:
            return None
        return {**self._arguments("token", is_dynamic=True), "symmetric": True, "group_size": None}

    def _arguments(self, strategy: str, *, is_dynamic: bool) -> dict[str, Any]:
        return {"num_bits": self.bits, "type": self.type, "strategy": strategy, "dynamic": is_dynamic}


COMPRESSED_SCHEMES: Mapping[str, CompressedScheme] = {
    "int8": CompressedScheme(
        format="int-quantized", bits=8, type="int", strategy="tensor", rounds_activations=True
    ),
    "int8-group": CompressedScheme(format="pack-quantized", bits=8, type="int", strategy="group"),
    "int4": CompressedScheme(
        format="pack-quantized", bits=INT4_BITS, type="int", strategy="group", is_symmetric=False
    ),
    "fp8": CompressedScheme(
        format="float-quantized", bits=8, type="float", strategy="tensor", rounds_activations=True
    ),
    "fp8-channel": CompressedScheme(
        format="float-quantized", bits=8, type="float", strategy="channel", rounds_activations=True
    ),
    "mxfp4": CompressedScheme(format="mxfp4-pack-quantized", bits=4, type="float", strategy="group"),
}  # fmt: skip


class CompressedCheckpoint:
    """The tensors and the config of a checkpoint in one scheme."""

    def __init__(self, settings: SchemeSettings) -> None:
        """Take settings whose scheme is one of `COMPRESSED_SCHEMES`."""
        self._settings = settings
        self._scheme = COMPRESSED_SCHEMES[settings.scheme]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what differs between what was measured and what an engine computes."""
        if self._scheme.rounds_activations:
            return (ROUNDED_ACTIVATIONS_NOTE,)
        return (NARROWED_SCALES_NOTE,) if self._scheme.format == "pack-quantized" else ()

    def planned_parts(self, tensor: SourceTensor) -> tuple[PlannedTensor, ...]:
        """Return the tensors that stand for a quantized one."""
        rows, columns = tensor.shape
        scale = f"{tensor.name}_scale"
        if self._scheme.strategy == "group":
            return self._planned_groups(tensor, rows, columns)
        dtype = "I8" if self._scheme.type == "int" else "F8_E4M3"
        return (
            PlannedTensor(name=tensor.name, dtype=dtype, shape=tensor.shape),
            PlannedTensor(name=scale, dtype="F32", shape=(1,) if self._scheme.strategy == "tensor" else (rows, 1)),
        )

    def stored_parts(self, tensor: SourceTensor, quantized: QuantizedTensor) -> dict[str, torch.Tensor]:
        """Return the same by name, filled."""
        name, parts = tensor.name, quantized.parts
        rows, _ = tensor.shape
        if self._scheme.strategy == "tensor":
            return {name: parts["codes"].view(tensor.shape), f"{name}_scale": parts["scale"].view(1)}
        if self._scheme.strategy == "channel":
            return {name: parts["codes"], f"{name}_scale": parts["scale"].view(rows, 1)}
        if self._scheme.type == "float":
            packed = swap_nibbles(parts["codes"]).view(rows, -1)
            return {f"{name}_packed": packed, f"{name}_scale": parts["exponent"]}
        stored = {
            f"{name}_packed": self._packed(parts["codes"]).view(torch.int32).view(rows, -1),
            f"{name}_scale": parts["scale"],
            f"{name}_shape": torch.tensor(tensor.shape, dtype=torch.int64),
        }
        if not self._scheme.is_symmetric:
            stored[f"{name}_zero_point"] = _packed_zero_points(
                parts["zero_point"], rows=rows, groups=parts["scale"].shape[1]
            )
        return stored

    def quantization_config(self, tensors: Sequence[SourceTensor], *, dtype: str) -> dict[str, Any]:  # noqa: ARG002
        """Return what `config.json` says of it; `dtype` is told by the config itself."""
        scheme = self._scheme
        group = {
            "targets": ["Linear"],
            "weights": scheme.weight_arguments(self._settings.block_size),
            "input_activations": scheme.activation_arguments(),
            "output_activations": None,
            "format": scheme.format,
        }
        return {
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "format": scheme.format,
            "config_groups": {"group_0": group},
            "ignore": _ignored_modules(tensors),
            "kv_cache_scheme": None,
            "global_compression_ratio": None,
            # compressed-tensors 0.20.0 gives a module that is still to be filled zero points of their unpacked shape,
            # so that transformers takes packed ones only where it restores the weights as it loads.
            **({} if scheme.is_symmetric else {"dequantize": True}),
        }

    def _planned_groups(self, tensor: SourceTensor, rows: int, columns: int) -> tuple[PlannedTensor, ...]:
        name, scheme = tensor.name, self._scheme
        groups = columns // self._group_size()
        if scheme.type == "float":
            return (
                PlannedTensor(name=f"{name}_packed", dtype="U8", shape=(rows, columns // 2)),
                PlannedTensor(name=f"{name}_scale", dtype="U8", shape=(rows, groups)),
            )
        parts = [
            PlannedTensor(name=f"{name}_packed", dtype="I32", shape=(rows, columns * scheme.bits // WORD_BITS)),
            PlannedTensor(
                name=f"{name}_scale", dtype="F16" if scheme.bits == INT4_BITS else "F32", shape=(rows, groups)
            ),
            PlannedTensor(name=f"{name}_shape", dtype="I64", shape=(2,)),
        ]
        if not scheme.is_symmetric:
            words = -(-rows * scheme.bits // WORD_BITS)
            parts.append(PlannedTensor(name=f"{name}_zero_point", dtype="I32", shape=(words, groups)))
        return tuple(parts)

    def _packed(self, codes: torch.Tensor) -> torch.Tensor:
        """Return codes as a line of bytes, those of a word from its lowest bits on."""
        if self._scheme.bits == INT4_BITS:
            return swap_nibbles(codes)
        return codes.view(torch.uint8) ^ SIGN_BIT

    def _group_size(self) -> int:
        if self._settings.block_size is None:
            raise ValueError(f"{self._settings.scheme} needs a block size.")
        return self._settings.block_size


def _packed_zero_points(nibbles: torch.Tensor, *, rows: int, groups: int) -> torch.Tensor:
    """Return zero points, stored row by row, with those of eight rows in one int32, the first in its lowest bits."""
    in_word = WORD_BITS // INT4_BITS
    codes = unpack_nibbles(nibbles)[: rows * groups].view(rows, groups)
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -rows % in_word)).view(-1, in_word, groups).to(torch.int32)
    shifts = torch.arange(0, WORD_BITS, INT4_BITS, dtype=torch.int32, device=codes.device).view(1, in_word, 1)
    return (padded << shifts).sum(dim=1, dtype=torch.int32)


def _ignored_modules(tensors: Sequence[SourceTensor]) -> list[str]:
    """Return the modules with a matrix that stays as it is: heads, routers, towers, whatever the description lacks.

    A name of a module that is no linear layer changes nothing.
    """
    left = [
        tensor.name.removesuffix(".weight")
        for tensor in tensors
        if tensor.reason is not None and tensor.name.endswith(".weight") and len(tensor.shape) == 2
        if tensor.weight is None or tensor.weight.part is not Part.EMBEDDING
    ]
    return list(dict.fromkeys([*left, HEAD]))
