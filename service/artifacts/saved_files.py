"""Launch files as they are saved: under the name by which others look for them, and as text."""

from __future__ import annotations

import json
from typing import Any

# A text is a command, or a script, unless it stands here.
_TEXT_ENDINGS = {
    # Read by `accelerate launch`, `litgpt`, llm-foundry's train.py and nanotron's run_train.py.
    **dict.fromkeys(("accelerate", "litgpt", "composer", "nanotron"), ".yaml"),
    # Read by `kubectl apply`.
    **dict.fromkeys(("dlrover", "pytorchjob", "trainjob", "jobset"), ".yaml"),
    **dict.fromkeys(("deployment", "inferenceservice", "leaderworkerset"), ".yaml"),
    "torchtitan": ".toml",
    # Arguments alone, one a line.
    **dict.fromkeys(("megatron", "pai-megatron", "megatron-deepspeed"), ".txt"),
    # `horovodrun` is told to run it by its name alone.
    "horovod-hosts": "",
}
# What peft looks for in an adapter's folder.
_OBJECT_NAMES = {"peft": "adapter_config.json"}
COMMAND_ENDING = ".sh"


def file_name(artifact: str, content: Any) -> str:
    """Return the file of an artifact; one whose name has an ending already is called so."""
    if "." in artifact:
        return artifact
    if isinstance(content, str):
        return artifact + _TEXT_ENDINGS.get(artifact, COMMAND_ENDING)
    return _OBJECT_NAMES.get(artifact, f"{artifact}.json")


def file_text(content: Any) -> str:
    """Return what is written: text as it is, everything else as JSON; its last line is ended."""
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    return text if text.endswith("\n") else text + "\n"
