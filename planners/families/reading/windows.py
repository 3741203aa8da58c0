"""Which layers look back over a window only."""

from __future__ import annotations

from enum import StrEnum

from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.layer_kinds import named_layers, number_of_layers

# The default of transformers' Qwen2Config and Qwen3Config.
DEFAULT_MAX_WINDOW_LAYERS = 28


class Windows(StrEnum):
    """Which layers a `sliding_window` covers when `layer_types` does not say."""

    NONE = "none"
    ALL = "all"
    FROM_MAX_WINDOW_LAYERS = "from_max_window_layers"
    ALL_BUT_EVERY_FOURTH = "all_but_every_fourth"
    ALL_BUT_EVERY_SIXTH = "all_but_every_sixth"
    EVERY_OTHER = "every_other"  # the first has one
    EVERY_OTHER_BELOW_MAX_WINDOW_LAYERS = "every_other_below_max_window_layers"


def layer_windows(
    config: ConfigReader,
    windows: Windows,
    *,
    default: int | None = None,
    used_by_default: bool | None = None,
    max_window_layers_default: int = DEFAULT_MAX_WINDOW_LAYERS,
) -> list[int | None]:
    """Return each layer's window, None where it attends to everything.

    A config that leaves `sliding_window` out has the window `default`; one that
    says null has none. Where `use_sliding_window` is left out, the window is
    used unless `used_by_default` is false (by default so for Qwen's rule alone).
    """
    num_layers = number_of_layers(config)
    window = default if config.is_left_out("sliding_window") else config.optional_size("sliding_window")
    border = config.count("max_window_layers", default=max_window_layers_default)
    pattern = config.optional_size("sliding_window_pattern") or (6 if windows is Windows.ALL_BUT_EVERY_SIXTH else 4)
    if used_by_default is None:
        used_by_default = windows is not Windows.FROM_MAX_WINDOW_LAYERS
    enabled = config.flag("use_sliding_window", default=used_by_default)
    layer_types = named_layers(config, "layer_types", num_layers, "full_attention", "sliding_attention")
    if layer_types is not None:
        return [window if kind == "sliding_attention" else None for kind in layer_types]
    if window is None or not enabled or windows is Windows.NONE:
        return [None] * num_layers
    covered = (_is_windowed(windows, layer, border=border, pattern=pattern) for layer in range(num_layers))
    return [window if is_covered else None for is_covered in covered]


def _is_windowed(windows: Windows, layer: int, *, border: int, pattern: int) -> bool:
    match windows:
        case Windows.ALL_BUT_EVERY_FOURTH | Windows.ALL_BUT_EVERY_SIXTH:
            return (layer + 1) % pattern != 0
        case Windows.EVERY_OTHER:
            return layer % 2 == 0
        case Windows.EVERY_OTHER_BELOW_MAX_WINDOW_LAYERS:
            return layer % 2 == 0 and layer < border
        case Windows.FROM_MAX_WINDOW_LAYERS:
            return layer >= border
        case _:
            return windows is Windows.ALL
