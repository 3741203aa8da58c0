"""Text Generation Inference, which serves over HTTP what a plan for transformers holds.

Its cache takes the tokens that the plan has room for; it checks them against its own memory when it starts, and
refuses to start where they do not fit. No plan is made by its own rules.

Source: launcher/src/main.rs of huggingface/text-generation-inference.
"""

from __future__ import annotations

from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.service.engines.tgi.flags import FLAGS
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.serving import SERVING_PORT, Nodes, NoOption, Server, ServingCommand, check_loadable
from plimsoll.service.launch.words import above_one, options

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
# `--dtype` cannot stand beside `--quantize`.
ON_LOADING = {"nf4": "bitsandbytes-nf4", "int8": "bitsandbytes", "fp8": "fp8"}


def tgi_command(checkpoint: Checkpoint, plan: ServingPlan, nodes: Nodes) -> ServingCommand:
    """Return `text-generation-launcher` on one node; raise `NoOption` for a format or a degree that it lacks."""
    layout, settings = plan.layout, plan.settings
    others = (layout.pipeline_parallel, layout.attention_data_parallel, layout.expert_parallel)
    formats = _format_options(checkpoint, settings.weights)
    if settings.rope_scaling is not None:
        raise NoOption(
            "Text Generation Inference's options for rotary positions know no YaRN and no original positions."
        )
    if max(*others, layout.decode_context_parallel, nodes.count) > 1:
        raise NoOption("Text Generation Inference divides tensors over the GPUs of one node and nothing else.")
    trust = ["--trust-remote-code"] if checkpoint.needs_own_code else []
    words = [
        *("text-generation-launcher", *options(FLAGS, model=checkpoint.name), *trust, *formats),
        *above_one(FLAGS, tensor_parallel=layout.tensor_parallel),
        *options(
            FLAGS,
            # A prompt is one forward pass, and no longer one than was planned.
            max_input_tokens=min(settings.max_model_len - 1, settings.max_num_batched_tokens),
            max_model_len=settings.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_batch_total_tokens=plan.kv.tokens,
        ),
        *("--max-concurrent-requests", str(settings.max_num_seqs)),
    ]
    return ServingCommand(words=words)


def _format_options(checkpoint: Checkpoint, weights: str) -> list[str]:
    check_loadable("Text Generation Inference", checkpoint, weights, (*DTYPES, *ON_LOADING))
    if checkpoint.is_stored_as(weights):
        return []
    if weights in DTYPES:
        return options(FLAGS, dtype=DTYPES[weights])
    return options(FLAGS, quantize=ON_LOADING[weights])


SERVER = Server(
    artifact="text-generation-inference",
    command=tgi_command,
    image="ghcr.io/huggingface/text-generation-inference:3.3.6",
    listen=("--hostname", "0.0.0.0", "--port", str(SERVING_PORT)),  # noqa: S104
)
