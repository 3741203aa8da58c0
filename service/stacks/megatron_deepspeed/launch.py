"""Megatron-DeepSpeed's arguments, beside DeepSpeed's own JSON file.

Names: deepspeedai/Megatron-DeepSpeed, `megatron/arguments.py`, where they are
older than Megatron-LM's; how they go together, `examples_deepspeed/`.
"""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.planners.jobs.pipeline_layouts import BY_LAYERS, EVEN
from plimsoll.planners.plans import Layout
from plimsoll.service.launch.model_facts import norm_epsilon, rope_kind, rope_theta
from plimsoll.service.launch.options import Value, option_lines
from plimsoll.service.launch.script import OWN_SCRIPT, Script
from plimsoll.service.launch.training import LEARNING_RATE, Placeholder, Target, TrainingLaunch, given_reasons
from plimsoll.service.stacks.deepspeed import launch as deepspeed
from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.stacks.megatron.launch import batch_options
from plimsoll.service.stacks.megatron.model import GPT2, gpt2_sizes, llama_sizes, why_not_plain
from plimsoll.service.workloads.commands.flags import named

MODELS = frozenset({"gpt2", "llama", "mistral"})
PRECISIONS = {"bf16-mixed": {"bf16": True}, "fp16-mixed": {"fp16": True}, "fp32": {}}


def why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return what of a plan these arguments cannot say."""
    question, layout, config = launch.question, launch.layout, launch.model_config
    family = config.get("model_type")
    reasons = given_reasons(
        (family not in MODELS, f"This service does not write Megatron-DeepSpeed's arguments for {family} yet."),
        (rope_kind(config) != "default", "Megatron-DeepSpeed does not scale rotary positions."),
        (question.precision not in PRECISIONS, f"Megatron-DeepSpeed has no option for precision {question.precision}."),
        (
            layout.pipeline_layout not in (None, BY_LAYERS, EVEN),
            "Megatron-DeepSpeed divides by type:transformer alone: --pp-partition-method is BigScience's fork's.",
        ),
        (
            layout.recompute_layers is not None,
            f"Recompute of {layout.recompute_layers} layers alone is not written for Megatron-DeepSpeed.",
        ),
    )
    plain = why_not_plain(config) if family in MODELS else ()
    return tuple(dict.fromkeys((*reasons, *plain, *deepspeed.why_not(launch))))


def megatron_deepspeed_options(launch: TrainingLaunch) -> dict[str, Value]:
    """Return all arguments but those of the data; DeepSpeed's file says the same of batch and stage."""
    question, layout = launch.question, launch.layout
    return {
        **_model(launch),
        **named(FLAGS, tensor_parallel=layout.tensor_parallel, pipeline_parallel=layout.pipeline_parallel),
        "no-pipeline-parallel": layout.pipeline_parallel == 1,
        **named(FLAGS, sequence_parallel=layout.sequence_parallel),
        **batch_options(launch),
        "train-iters": launch.steps,
        "lr": LEARNING_RATE,
        "optimizer": "adam" if question.optimizer == "adamw" else "sgd",
        **PRECISIONS[question.precision],
        **_recompute(layout),
        "use-flash-attn-v2": question.attention == "flash",
        "tokenizer-type": "HFTokenizer",
        "tokenizer-model": launch.model_path,
        "deepspeed": True,
        "deepspeed_config": deepspeed.FILE,
        "zero-stage": layout.zero_stage,
    }


def _recompute(layout: Layout) -> dict[str, Value]:
    if layout.recompute == "selective":
        return named(FLAGS, recompute="selective")
    if layout.recompute == "full":
        # Its models go by DeepSpeed's checkpointing, a layer at a time.
        return {
            "deepspeed-activation-checkpointing": True,
            **named(FLAGS, recompute="full", recompute_method="uniform", recompute_layers=1),
        }
    return {}


def _model(launch: TrainingLaunch) -> dict[str, Value]:
    config = launch.model_config
    if config["model_type"] == GPT2:
        return gpt2_sizes(config)
    theta = rope_theta(launch)
    return {
        **llama_sizes(launch),
        "num-key-value-heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "use-rotary-position-embeddings": True,
        "rotary-position-embeddings-theta": theta if isinstance(theta, Placeholder) else round(theta),
        "normalization": "rmsnorm",
        "layernorm-epsilon": norm_epsilon(launch),
        "swiglu": True,
        "disable-bias-linear": True,
        "untie-embeddings-and-output-weights": not config.get("tie_word_embeddings", False),
        "attention-dropout": config.get("attention_dropout", 0.0),
        "hidden-dropout": 0.0,
    }


def _text(launch: TrainingLaunch) -> str:
    return "\n".join(option_lines(megatron_deepspeed_options(launch)))


def _script(launch: TrainingLaunch) -> Sequence[str]:
    return OWN_SCRIPT if why_not(launch) else ("pretrain_gpt.py", *option_lines(megatron_deepspeed_options(launch)))


MEGATRON_DEEPSPEED = Target(name="megatron-deepspeed", why_not=why_not, write=_text, saved_as="megatron-deepspeed.txt")
# It makes its optimizer itself.
DEEPSPEED = Target(
    name="deepspeed",
    why_not=deepspeed.why_not,
    write=lambda launch: deepspeed.deepspeed_config(launch, makes_optimizer=False),
)
SCRIPT = Script(words=_script)
