"""Which cards an engine's release runs on, and the formats that it takes there."""

from __future__ import annotations

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Gpu, compute_capability
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.releases.served_models import refuses_float16

# No card below compute capability 8.0 computes in it, and AMD's all do.
BF16, FP16 = "bf16", "fp16"
UNQUANTIZED = ("fp32", BF16, FP16)
# Name of the rule, in refusals.
CARD_FORMAT = "card-computes-format"
MODEL_FORMAT = "model-computes-format"


def is_amd(gpu: Gpu) -> bool:
    """Return whether AMD made the GPU; all others of the catalogue are NVIDIA's."""
    return gpu.name.startswith("AMD ")


def card_obstacle(profile: EngineProfile, gpu: Gpu) -> str | None:
    """Return why an engine's release does not run on a card, or None; a card that is not listed passes."""
    needs, capability = profile.capabilities, compute_capability(gpu)
    if needs.is_nvidia_only and is_amd(gpu):
        return f"{profile.engine} runs on NVIDIA's GPUs only, and {gpu.name} is AMD's."
    if capability is not None and capability < needs.card:
        return (
            f"{profile.engine} {profile.version} needs compute capability {needs.card:.1f} or higher, and {gpu.name} "
            f"has {capability:.1f}."
        )
    return None


def activations_format(weights: str, cache: str, gpu: Gpu) -> str:
    """Return the format of activations: that of plain weights, else that of a plain cache, else what the card has."""
    plain = next((each for each in (weights, cache) if each in UNQUANTIZED), None)
    return plain or (BF16 if BF16 in gpu.peak_flops_per_second else FP16)


def check_formats(question: ServingQuestion, profile: EngineProfile) -> None:
    """Raise `InvalidQuestion` where the card does not compute in a format, or the engine does not take it there."""
    gpu, needs = question.hardware.gpu, profile.capabilities
    capability = compute_capability(gpu)
    for field, asked, least in (
        ("weights", question.weights, needs.weights.get(question.weights, 0.0)),
        ("kv_cache", question.kv_cache, needs.caches.get(question.kv_cache, 0.0)),
    ):
        if asked == BF16 and BF16 not in gpu.peak_flops_per_second:
            raise InvalidQuestion(
                f"{gpu.name} does not compute in bf16; it has {', '.join(gpu.peak_flops_per_second)}. "
                f"Ask for {field} fp16.",
                pointer=f"/serving/{field}",
                rule=CARD_FORMAT,
            )
        if capability is not None and capability < least:
            raise InvalidQuestion(
                f"{profile.engine} {profile.version} takes {field} {asked} from compute capability {least:.1f} on, and "
                f"{gpu.name} has {capability:.1f}. Ask for {field} fp16.",
                pointer=f"/serving/{field}",
                rule=CARD_FORMAT,
            )
    activations = activations_format(question.weights, question.kv_cache, gpu)
    if activations == FP16 and refuses_float16(profile, question.model.model_type):
        others = [name for name in (BF16, "fp32") if name != BF16 or BF16 in gpu.peak_flops_per_second]
        field = "weights" if question.weights in UNQUANTIZED else "kv_cache"
        raise InvalidQuestion(
            f"{profile.engine} {profile.version} does not compute {question.model.model_type} models in fp16, where "
            f"they are unstable. Ask for {field} {' or '.join(others)}.",
            pointer=f"/serving/{field}",
            rule=MODEL_FORMAT,
        )
