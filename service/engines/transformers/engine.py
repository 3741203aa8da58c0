"""transformers: it serves nothing by itself, so its plan is an argument list, and Text Generation Inference's command.

Source of what that checks: text-generation-inference 3.3.7, "must be divisible by `num_shards`" in
server/text_generation_server/models/custom_modeling/flash_*_modeling.py.
"""

from __future__ import annotations

from plimsoll.service.engines.engine import Engine
from plimsoll.service.engines.tgi.command import PROGRAM, tgi_launch
from plimsoll.service.engines.tgi.flags import FLAGS
from plimsoll.service.engines.tgi.launch import ON_LOADING, SERVER
from plimsoll.service.engines.transformers.launch import from_pretrained_arguments
from plimsoll.service.workloads.commands.images import image_name

ENGINE = Engine(
    name="transformers",
    server=SERVER,
    read=tgi_launch,
    flags=FLAGS,
    # Clouds publish the launcher's image under names of their own, which hold its name.
    entrypoint=lambda image: (PROGRAM,) if "text-generation-inference" in image_name(image) else (),
    arguments=from_pretrained_arguments,
    changes={
        "layout.tensor_parallel": "tensor_parallel",
        "serving.max_model_len": "max_model_len",
        "serving.gpu_memory_utilization": "gpu_memory_utilization",
        "serving.weights": "quantize",
        "serving.max_num_batched_tokens": "max_num_batched_tokens",
    },
    on_loading=lambda _version: ON_LOADING,
    checked_rules=frozenset({"tensor-parallel-divides"}),
)
