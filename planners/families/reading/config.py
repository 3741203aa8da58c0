"""Reading a `config.json`: typed access, and a record of what was not read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from plimsoll.planners.ground.errors import InvalidModelConfig

# Keys that never change a weight's shape or a step's cost.
COSMETIC_KEYS = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "generation_config",
        "id2label",
        "initializer_range",
        "label2id",
        "layer_norm_epsilon",
        "layer_norm_eps",
        "pad_token_id",
        "pretraining_tp",
        # What a checkpoint is stored in changes no shape; stored_formats.py reads it.
        "quantization_config",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "task_specific_params",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
    }
)

# What the base class of transformers 4 wrote into some configs: generation settings and task heads.
BASE_CLASS_KEYS = frozenset(
    {
        "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward",
        "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
        "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
        "forced_eos_token_id", "is_decoder", "is_encoder_decoder", "length_penalty", "max_length", "min_length",
        "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
        "output_hidden_states", "output_scores", "prefix", "problem_type", "pruned_heads",
        "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
        "suppress_tokens", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
        "torchscript", "typical_p", "use_bfloat16",
    }
)  # fmt: skip

# Of them, those that may be long and that nothing here or in a dry run looks at.
BULKY_KEYS = frozenset({"auto_map", "generation_config", "id2label", "label2id", "task_specific_params"})

MOST_LAYERS = 1_000
MOST_ELEMENTS_A_SIDE = 100_000_000


class ConfigReader:
    """A `config.json` that remembers which of its keys were read.

    Every getter raises `InvalidModelConfig` with a pointer when a value is
    missing or of the wrong kind.
    """

    def __init__(self, config: Mapping[str, Any], *, name: str, pointer: str = "/model/config") -> None:
        self.name = name
        """What the model is called in its description."""
        self._config = config
        self._pointer = pointer
        self._read: set[str] = {"model_type"}
        self._looked_for: set[str] = set()
        self._sections: dict[str, ConfigReader] = {}

    @property
    def model_type(self) -> str:
        """Return the family that the config names; empty where it names none, as a wrapper's `text_config` may."""
        return str(self._config.get("model_type", ""))

    def size(self, key: str, *, default: int | None = None, most: int = MOST_ELEMENTS_A_SIDE) -> int:
        """Return a positive integer; a null counts as absent."""
        value = self._get(key)
        if value is None:
            if default is None:
                raise self.error(key, f"'{key}' is missing; it is needed to size the model.")
            return default
        return self._whole(key, value, least=1, most=most)

    def count(self, key: str, *, default: int) -> int:
        """Return a whole number that may be zero; a null counts as absent."""
        value = self._get(key)
        return default if value is None else self._whole(key, value, least=0, most=MOST_ELEMENTS_A_SIDE)

    def positive_number(self, key: str, *, default: float) -> float:
        """Return a number above zero, such as a ratio of two widths; a null counts as absent."""
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_ELEMENTS_A_SIDE:
            raise self.error(key, f"'{key}' must be a number above 0 and up to {MOST_ELEMENTS_A_SIDE}, "
                             f"not {_shown(value)}.")  # fmt: skip
        return float(value)

    def optional_size(self, key: str) -> int | None:
        """Return a positive integer, or None where the key is absent, null or 0, as transformers 5 writes no window."""
        return self.count(key, default=0) or None

    def given_size(self, key: str) -> int | None:
        """Return a positive integer, or None where the key is absent or null."""
        return None if self._get(key) is None else self.size(key)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean; a null counts as absent."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"'{key}' must be true or false, not {_shown(value)}.")
        return value

    def text(self, key: str, *, default: str) -> str:
        """Return a string; a null counts as absent."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"'{key}' must be text, not {_shown(value)}.")
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, or None where absent."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f"'{key}' must be a list of texts.")
        return tuple(value)

    def items(self, key: str) -> list[Any] | None:
        """Return a list of anything, or None where absent."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self.error(key, f"'{key}' must be a list, not {_shown(value)}.")
        return list(value)

    def whole_numbers(self, key: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers that may be zero, or None where absent."""
        values = self.items(key)
        if values is None:
            return None
        return tuple(self._whole(key, value, least=0, most=MOST_ELEMENTS_A_SIDE) for value in values)

    def section(
        self, key: str, *, defaults: Mapping[str, Any] | None = None, forced: Mapping[str, Any] | None = None
    ) -> ConfigReader:
        """Return a nested config, an absent one as empty.

        `defaults` stand for what it leaves out, `forced` values before its own.
        What is never read of it is reported as unread of this config.
        """
        value = self._get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(key, f"'{key}' must be an object, not {_shown(value)}.")
        values = {**(defaults or {}), **(value or {}), **(forced or {})}
        section = ConfigReader(values, name=self.name, pointer=f"{self._pointer}/{key}")
        self._sections[key] = section
        return section

    def named(self, *keys: str) -> str:
        """Return which of several names of one field the config uses, the first where it uses none."""
        self._read.update(keys)
        return next((key for key in keys if not self.is_absent(key)), keys[0])

    def must_be(self, key: str, *known: object) -> None:
        """Raise unless `key` is absent or null or has one of the `known` values; every item of a list must be one.

        Another value names a form of the model that nothing here describes.
        """
        value = self._get(key)
        values = value if isinstance(value, list | tuple) else () if value is None else (value,)
        for item in values:
            if not any(item == one and isinstance(item, bool) is isinstance(one, bool) for one in known):
                allowed = " or ".join(repr(one) for one in known)
                raise self.error(key, f"'{key}' is {_shown(item)}; only {allowed} can be described.")

    def is_absent(self, key: str) -> bool:
        """Return whether a key is missing or null."""
        self._looked_for.add(key)
        return self._config.get(key) is None

    def is_text(self, key: str) -> bool:
        """Return whether a key holds text, where it may also hold a number."""
        self._looked_for.add(key)
        return isinstance(self._config.get(key), str)

    def is_list(self, key: str) -> bool:
        """Return whether a key holds a list, where it may also hold one number."""
        self._looked_for.add(key)
        return isinstance(self._config.get(key), list | tuple)

    def is_left_out(self, key: str) -> bool:
        """Return whether the config does not mention the key at all; a null is a mention."""
        self._looked_for.add(key)
        return key not in self._config

    def ignore(self, *keys: str) -> None:
        """Mark keys as known to be without effect for this family."""
        self._read.update(keys)

    def must_divide(self, divisor_key: str, divisor: int, key: str, value: int) -> None:
        """Raise unless `value` is a multiple of `divisor`."""
        if value % divisor:
            raise self.error(divisor_key, f"'{divisor_key}' ({divisor}) does not divide '{key}' ({value}).")

    def unread_keys(self) -> tuple[str, ...]:
        """Return the keys nobody asked for and that may matter, sorted."""
        known = self._read | COSMETIC_KEYS | BASE_CLASS_KEYS
        own = [str(key) for key in self._config if key not in known]
        nested = [
            f"{key}.{unread}"
            for key, section in self._sections.items()
            if key not in COSMETIC_KEYS
            for unread in section.unread_keys()
        ]
        return tuple(sorted([*own, *nested]))

    def used(self, config: Mapping[str, Any], *, beside: Collection[str] = ()) -> dict[str, Any]:
        """Return what counts of `config`, which this reads: what was asked for, and what is known to be without effect.

        Sections likewise; the keys `beside` count in all of them. Labels of classes and places of code do not.
        """
        counted = (self._read | self._looked_for | COSMETIC_KEYS | BASE_CLASS_KEYS | set(beside)) - BULKY_KEYS
        return {key: self._used_value(key, value, beside) for key, value in config.items() if key in counted}

    def _used_value(self, key: str, value: Any, beside: Collection[str]) -> Any:
        section = self._sections.get(key)
        if section is None or key in COSMETIC_KEYS or not isinstance(value, Mapping):
            return value
        return section.used(value, beside=beside)

    def error(self, key: str, detail: str) -> InvalidModelConfig:
        """Return an error that points at `key`."""
        return InvalidModelConfig(detail, pointer=f"{self._pointer}/{key}")

    def _whole(self, key: str, value: object, *, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f"'{key}' must be a whole number from {least} to {most}, not {_shown(value)}.")
        return value

    def _get(self, key: str) -> Any:
        self._read.add(key)
        return self._config.get(key)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
