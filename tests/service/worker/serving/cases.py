"""Small deployments for the tests of serving."""

from plimsoll.service.worker.serving.deployment import read_deployment
from tests.service.worker.cases import LLAMA


def request(level="trace", *, settings=None, layout=None, kv=None, model=None, items=None, **parts):
    """Return what a worker is told to prove a small serving plan."""
    return {
        "level": level,
        "kind": "infer",
        "plan_id": "p",
        "gpu": "h100-sxm-80gb",
        "device": {"on": "any", "any_gpu_kind": False},
        "model": {"name": "small", "config": model or LLAMA},
        "plan": {
            "layout": {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1, **(layout or {})},
            "settings": {
                "engine": "vllm",
                "engine_version": "0.19",
                "weights": "bf16",
                "kv_cache": "bf16",
                "max_model_len": 64,
                "input_tokens": 32,
                "output_tokens": 16,
                "max_num_batched_tokens": 64,
                "max_num_seqs": 8,
                **(settings or {}),
            },
            "kv": {
                "block_size": 16,
                "blocks": 40,
                "requests_held": 13,
                "groups": [{"kind": "full_attention"}],
                **(kv or {}),
            },
            "memory": {"items": {"weights": 1, "kv_cache": 1, "activations": 1, **(items or {})}},
            "performance": {"concurrency": 5, "ttft_seconds": 0.1, "tpot_seconds": 0.01},
            **parts,
        },
    }


def deployment(**parts):
    """Return the deployment of such a request."""
    return read_deployment(request(**parts))
