"""The sizes that text models' config classes fill in where a wrapper's `text_config` leaves them out.

Wrappers are published with only what differs from the class: LLaVA-1.5's says
no more of its text model than the vocabulary. Source: the families'
configuration files in `transformers` 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping

_QWEN2_VL: Mapping[str, int] = {
    "vocab_size": 152_064,
    "hidden_size": 8192,
    "intermediate_size": 29_568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "max_window_layers": 80,
}
_LLAMA: Mapping[str, int] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}

TEXT_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma3_text": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    },
    "gemma3n_text": {
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "max_position_embeddings": 32_768,
    },
    "gemma4_text": {
        "vocab_size": 262_144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
    },
    "granite": _LLAMA,
    "llama": _LLAMA,
    "mllama_text_model": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "max_position_embeddings": 131_072,
    },
    "ministral3": {
        "vocab_size": 131_072,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "max_position_embeddings": 262_144,
    },
    "mistral": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 131_072,
    },
    "qwen2": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 32_768,
    },
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
}
