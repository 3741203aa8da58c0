"""Launch files as they are saved: under the name by which others look for them, and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

# A text is a command, or a script, where nothing else is said.
COMMAND_ENDING, OBJECT_ENDING = ".sh", ".json"


def file_name(artifact: str, content: Any) -> str:
    """Return the file of an artifact; one whose name has an ending already is called so."""
    if "." in artifact:
        return artifact
    ending = COMMAND_ENDING if isinstance(content, str) else OBJECT_ENDING
    return _saved_as().get(artifact, artifact + ending)


@cache
def _saved_as() -> Mapping[str, str]:
    """Return what programs look for by artifact; manifests are read by `kubectl apply`."""
    # A terminal that shows another machine's answer needs no stack for it, unless it saves the files.
    from plimsoll.service.launch.kubernetes_serving import MANIFESTS as SERVING_MANIFESTS
    from plimsoll.service.launch.kubernetes_training import MANIFESTS as TRAINING_MANIFESTS
    from plimsoll.service.stacks.stack import stacks

    manifests = {name: f"{name}.yaml" for name in (*TRAINING_MANIFESTS, *SERVING_MANIFESTS)}
    targets = (target for stack in stacks().values() for target in stack.targets)
    return {**manifests, **{target.name: target.saved_as for target in targets if target.saved_as is not None}}


def file_text(content: Any) -> str:
    """Return what is written: text as it is, everything else as JSON; its last line is ended."""
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    return text if text.endswith("\n") else text + "\n"
