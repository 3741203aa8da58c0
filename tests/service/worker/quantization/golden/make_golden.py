"""Write `transformers_bitsandbytes.json`: what transformers saves after it quantized the small Llama itself.

    PYTHONPATH=. python tests/service/worker/quantization/golden/make_golden.py

Needs accelerate beside transformers and bitsandbytes. Each tensor is told by its
dtype, its shape and the SHA-256 of its bytes; the configs are as saved.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tests.service.worker.quantization.small_llama import described, write_checkpoint

GOLDEN = Path(__file__).with_name("transformers_bitsandbytes.json")
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.bfloat16}
CONFIGS = {
    "nf4-double": BitsAndBytesConfig(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, **FOUR_BITS),
    "fp4": BitsAndBytesConfig(bnb_4bit_quant_type="fp4", **FOUR_BITS),
    "int8-channel": BitsAndBytesConfig(load_in_8bit=True),
}


def main() -> None:
    """Quantize, save and describe."""
    golden: dict[str, Any] = {
        "made_with": {name: version(name) for name in ("torch", "transformers", "bitsandbytes", "accelerate")}
    }
    with tempfile.TemporaryDirectory() as folder:
        source = write_checkpoint(Path(folder) / "source")
        for name, config in CONFIGS.items():
            model = AutoModelForCausalLM.from_pretrained(
                source, quantization_config=config, dtype=torch.bfloat16, device_map="cpu"
            )
            model.save_pretrained(Path(folder) / name)
            golden[name] = described(Path(folder) / name)
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
