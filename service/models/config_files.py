"""A `config.json` that came as a file: from a folder of this machine, or from a hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.untrusted_files import UnusableFile, parsed_object, whole_content
from plimsoll.service.requests.configs import special_number
from plimsoll.service.requests.models import ConfigModel

CONFIG_FILE = "config.json"
# MiniMax-M3-NVFP4's is 3.1 MB: it names every matrix that was quantized.
MOST_CONFIG_BYTES = 16 * 2**20


def read_config(folder: Path, roots: Sequence[Path], *, pointer: str) -> dict[str, Any]:
    """Return the config in a folder that is allowed; raises PathNotAllowed and InvalidModelConfig at `pointer`."""
    # The folder is allowed, but the file in it may be a link to somewhere else.
    path = allowed_path(str(folder / CONFIG_FILE), roots, pointer=pointer)
    try:
        content = whole_content(path, most_bytes=MOST_CONFIG_BYTES)
    except UnusableFile as error:
        raise InvalidModelConfig(f"The folder has no usable {CONFIG_FILE}: {error.detail}", pointer=pointer) from error
    return checked_config(content, pointer=pointer)


def checked_config(content: bytes, *, pointer: str) -> dict[str, Any]:
    """Return the config that a file holds, within the bounds of one in a request; raises InvalidModelConfig."""
    try:
        return ConfigModel.model_validate(
            {"config": parsed_object(content, name=CONFIG_FILE, constant=special_number)}
        ).config
    except UnusableFile as error:
        raise InvalidModelConfig(error.detail, pointer=pointer) from error
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise InvalidModelConfig(f"{CONFIG_FILE} {reason}.", pointer=pointer) from error
