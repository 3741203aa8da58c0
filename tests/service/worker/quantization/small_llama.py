"""A small Llama whose weights follow from a formula, so that every machine makes the same bytes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from plimsoll.planners.families import describe_config

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip


def numbers(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return numbers from -0.05 to 0.05 that depend on the name and the place alone."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    # Knuth's multiplicative hash, and the largest prime below 2^16.
    mixed = (places * 2654435761 + zlib.crc32(name.encode())) % 65521
    return ((mixed.double() / 65521 - 0.5) * 0.1).view(shape)


# bitsandbytes packs 4-bit weights anew on processors with AVX-512 BF16, if each row is whole blocks of 64 and there are
# whole blocks of 32 rows (0.50.2, functional.py, `_convert_weight_packed_for_cpu`); other widths it cannot run there.
IN_WHOLE_BLOCKS = {**CONFIG, "intermediate_size": 192}


def weights(dtype: torch.dtype = torch.bfloat16, config: dict[str, Any] = CONFIG) -> dict[str, torch.Tensor]:
    """Return every tensor of the model; the scales of norms are 1."""
    spec = describe_config(config, name="small")
    return {
        name: torch.ones(weight.shape, dtype=dtype) if "norm" in name else numbers(name, weight.shape).to(dtype)
        for name, weight in spec.named_weights()
    }


def write_checkpoint(
    folder: Path, tensors: dict[str, torch.Tensor] | None = None, *, files: int = 1, config: dict[str, Any] = CONFIG
) -> Path:
    """Write the model, or these tensors, to so many files; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = weights(config=config) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    file_of = {name: f"model-{index % files + 1:05d}-of-{files:05d}.safetensors" for index, name in enumerate(tensors)}
    for file in set(file_of.values()):
        save_file({name: tensors[name] for name in tensors if file_of[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))
    return folder


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in sorted(file.keys())})
    return tensors
