"""What each tensor of a checkpoint is to the model that its config describes, told by its name.

Quantized checkpoints store a matrix packed, with scales beside it; old ones store
masks; some store a tied head twice, and some leave the outermost name away. All
of these are the same model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.architecture.multi_token import BESIDE_MODEL
from plimsoll.service.checkpoints.headers import Checkpoint

# How quantized checkpoints name a packed matrix, and what it is called whole: GPTQ and AWQ (`qweight`),
# compressed-tensors (`weight_packed`), Quanto (`weight._data`), and gpt-oss (`…_blocks`, of no module).
PACKED_ENDINGS: Mapping[str, str] = {
    ".qweight": ".weight",
    ".weight_packed": ".weight",
    ".weight._data": ".weight",
    "_blocks": "",
}
# What they store beside it: scales, zero points and group indices of the same
# schemes, of FP8 (`weight_scale_inv`), ModelOpt (`weight_scale_2`) and bitsandbytes.
BESIDE_A_WEIGHT = re.compile(
    r"\.(?:qzeros|scales|g_idx|SCB|weight_format"
    r"|(?:weight|input|output|activation)(?:_global)?_(?:scale(?:_inv|_2)?|zero_point|shape|g_idx)"
    r"|weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\..+|_scale|_shift))$"
)
BESIDE_A_PARAMETER = re.compile(r"_(?:scales|scale|scale_inv|scale_2|input_scale)$")
OF_THE_CACHE = re.compile(r"(?:^|[._])[qkv](?:_proj)?[._](?:output_)?(?:scale|zero_point)$")

# Masks and tables that older code saved and that every loader computes anew
# (`_keys_to_ignore_on_load_unexpected` of transformers' models).
COMPUTED = re.compile(
    r"(?:^|\.)(?:rotary_emb\.inv_freq|position_ids|attn\.(?:bias|masked_bias)|attention\.(?:bias|masked_bias))$"
)
# A tied head, or an encoder-decoder's tied embedding, stored a second time.
TIED_AGAIN = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer|embed_tokens|wte|decoder)\.weight$")
MULTI_TOKEN = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")
LAYER_INDEX = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")

# A prefix is guessed from so many names, and is so many names of modules long.
MOST_SAMPLES = 64
MOST_PREFIX_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What stands before every name of the one side and not of the other; at most one of them is not empty."""

    stored: str = ""
    described: str = ""

    def described_name(self, stored_name: str) -> str:
        """Return the name by which the description would call a stored tensor."""
        return self.described + stored_name.removeprefix(self.stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedNames:
    """Stored names by what they are: `whole` and `packed` by the described name they hold, the others as stored."""

    prefix: Prefix
    whole: dict[str, str] = field(default_factory=dict)
    packed: dict[str, str] = field(default_factory=dict)
    quantization: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    tied_again: list[str] = field(default_factory=list)
    multi_token: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)


def sorted_names(checkpoint: Checkpoint, spec: ModelSpec, described: Collection[str]) -> SortedNames:
    """Return every stored name in its place; `described` are the names of the description's weights."""
    found = SortedNames(prefix=_prefix(checkpoint.file_of, described))
    for stored in checkpoint.file_of:
        name = found.prefix.described_name(stored)
        packed = _packed(name, described)
        if name in described:
            found.whole[name] = stored
        elif packed is not None:
            found.packed[packed] = stored
        elif _is_of_quantization(name, described):
            found.quantization.append(stored)
        elif COMPUTED.search(name):
            found.computed.append(stored)
        elif _is_tied_again(stored, checkpoint, spec):
            found.tied_again.append(stored)
        elif _is_multi_token(name, spec):
            found.multi_token.append(stored)
        else:
            found.extra.append(stored)
    return found


def _packed(name: str, described: Collection[str]) -> str | None:
    """Return the described weight that a packed tensor holds."""
    for ending, whole in PACKED_ENDINGS.items():
        if name.endswith(ending) and name.removesuffix(ending) + whole in described:
            return name.removesuffix(ending) + whole
    return None


def _is_of_quantization(name: str, described: Collection[str]) -> bool:
    match = BESIDE_A_WEIGHT.search(name)
    if match and f"{name[: match.start()]}.weight" in described:
        return True
    match = BESIDE_A_PARAMETER.search(name)
    return bool(match and name[: match.start()] in described) or bool(OF_THE_CACHE.search(name))


def _is_tied_again(stored: str, checkpoint: Checkpoint, spec: ModelSpec) -> bool:
    tensor = checkpoint.tensors.get(stored)
    is_embedding = tensor is None or tensor.shape == (spec.vocabulary_size, spec.hidden_size)
    return spec.tied_head and is_embedding and bool(TIED_AGAIN.search(stored))


def _is_multi_token(name: str, spec: ModelSpec) -> bool:
    """Return whether a tensor is named for multi-token prediction, or is of an announced layer beyond the last."""
    match = LAYER_INDEX.search(name)
    is_beyond = match is not None and int(match[1]) >= spec.num_layers
    is_announced = any(note.startswith(BESIDE_MODEL) for note in spec.assumptions)
    return bool(MULTI_TOKEN.search(name)) or (is_beyond and is_announced)


def _prefix(stored: Collection[str], described: Collection[str]) -> Prefix:
    """Return the prefix by which most of the unknown names become known.

    Checkpoints of a bare model lack the name of the module that holds it:
    "h.0.ln_1.weight" for "transformer.h.0.ln_1.weight".
    """
    unknown = {name for name in stored if name not in described}
    missing = {name for name in described if name not in stored}
    if len(missing) * 2 <= len(described):
        return Prefix()
    on_stored, in_stored = _commonest_start(unknown, among=missing)
    on_described, in_described = _commonest_start(missing, among=unknown)
    if in_stored >= in_described:
        return Prefix(stored=on_stored)
    return Prefix(described=on_described)


def _commonest_start(names: Collection[str], *, among: Collection[str]) -> tuple[str, int]:
    """Return the start that most often has to go for a name to be `among` the others, and how often."""
    starts: Counter[str] = Counter()
    for name in sorted(names)[:MOST_SAMPLES]:
        steps = name.split(".")
        for count in range(1, min(MOST_PREFIX_STEPS, len(steps) - 1) + 1):
            if ".".join(steps[count:]) in among:
                starts[".".join(steps[:count]) + "."] += 1
    return starts.most_common(1)[0] if starts else ("", 0)
