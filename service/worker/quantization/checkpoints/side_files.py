"""What stands beside the weights of a checkpoint and goes with them: tokenizers and generation settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.errors import InvalidCheckpoint
from plimsoll.service.ground.untrusted_files import UnusableFile, whole_content
from plimsoll.service.worker.quantization.checkpoints.sources import POINTER

# By transformers 5.23: tokenization_utils_base.py, generation/configuration_utils.py, processing_utils.py. No code
# and no pickle is among them.
SIDE_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
# The largest tokenizers (256,000 tokens as JSON) take 35 MB.
MOST_SIDE_FILE_BYTES = 128 * 2**20


def copied_side_files(folder: Path, roots: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of those that are there; raises `InvalidCheckpoint` where one cannot be read."""
    for name in SIDE_FILES:
        if not (folder / name).exists():
            continue
        try:
            path = allowed_path(str(folder / name), roots, pointer=POINTER)
            yield name, whole_content(path, most_bytes=MOST_SIDE_FILE_BYTES)
        except UnusableFile as error:
            raise InvalidCheckpoint(
                f"A file beside the weights is unusable: {error.detail}", pointer=POINTER
            ) from error
