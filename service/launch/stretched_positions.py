"""Positions stretched beyond a checkpoint's own, as the engines are told of them: changes to its config.

Since version 5 `transformers` calls them `rope_parameters`, and forgets the base of the wavelengths where that does
not name it (configuration_utils.py, rope_scaling). SGLang takes the longest context from the config's
`max_position_embeddings` alone where the scaling names its original positions (get_context_length).
"""

from __future__ import annotations

from typing import Any

from plimsoll.planners.serving.answer import EngineSettings
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.serving import NoOption

OLD_NAME, NEW_NAME = "rope_scaling", "rope_parameters"


def config_changes(
    checkpoint: Checkpoint, settings: EngineSettings, *, names_parameters: bool, states_length: bool = False
) -> dict[str, Any]:
    """Return what of the config an engine is told anew, nothing where nothing is.

    `names_parameters` says that the engine reads configs as transformers 5 does;
    `states_length` that the longest context has to be told too where the scaling names
    its original positions: others stretch the length that is told. Raises `NoOption` where the base is unknown.
    """
    scaling = settings.rope_scaling
    if scaling is None:
        return {}
    theta = scaling.rope_theta or checkpoint.rope_theta
    names_original = scaling.original_max_position_embeddings is not None
    length = {"max_position_embeddings": settings.max_model_len} if states_length and names_original else {}
    if not names_parameters:
        return {OLD_NAME: scaling.in_config, **length}
    if theta is None:
        raise NoOption("The base of the rotary positions is unknown; state serving.rope_scaling.rope_theta.")
    return {NEW_NAME: {"rope_theta": theta, **scaling.in_config}, **length}
