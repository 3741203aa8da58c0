"""From a Hugging Face `config.json` to a `ModelSpec`, one small reader for each family."""

from planners.huggingface.registry import describe_config, known_model_types

__all__ = ["describe_config", "known_model_types"]
