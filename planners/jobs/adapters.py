"""LoRA adapters: two thin matrices beside each matrix they adapt, and modules that are copied and trained whole.

Source: Hu et al. 2021, arXiv:2106.09685; shapes, names and what a name means as in peft 0.21 (tuners/tuners_utils.py,
`check_target_module_exists`, `_maybe_include_all_linear_layers`; utils/other.py, `ModulesToSaveWrapper`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from plimsoll.planners.architecture import Block, ModelSpec, Operation, OperationKind, Part, Split, Weight
from plimsoll.planners.ground.errors import InvalidQuestion, nearest_names
from plimsoll.planners.questions import Lora

# What transformers calls the head of a model that shares its matrix with the embedding.
SHARED_HEAD = "lm_head"
TARGETS_POINTER = "/training/lora/target_modules"
SAVED_POINTER = "/training/lora/modules_to_save"
# The name of A, which multiplies what the matrix does.
FIRST_FACTOR = ".lora_A.weight"
# What the architecture calls the product that chooses experts.
ROUTER = "router"
QUERY_KEY_VALUE, GATED = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
# What other programs call the matrices of a layer: torchtune (modules/attention.py, feed_forward.py), Llama's own code,
# Megatron (core/transformer/attention.py, mlp.py), and families that store several matrices in one.
NAMED_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("output_proj", "wo", "linear_proj", "out_proj"), ("o_proj",)),
    **dict.fromkeys(("linear_qkv", "query_key_value", "qkv_proj", "wqkv", "c_attn"), QUERY_KEY_VALUE),
    **{f"w{letter}": (f"{letter}_proj",) for letter in "qkv"},
    **dict.fromkeys(("linear_fc1", "gate_up_proj"), GATED),
    "w1": ("gate_proj",),
    "w3": ("up_proj",),
    **dict.fromkeys(("w2", "linear_fc2"), ("down_proj",)),
    **dict.fromkeys(("output", "head"), ("lm_head",)),
}


def adapter_weights(weights: Iterable[Weight], lora: Lora, *, shares_experts: bool = False) -> tuple[Weight, ...]:
    """Return A (rank x inputs) and B (outputs x rank) of every targeted matrix, and the copies of modules to save.

    Tensor parallelism splits the factor that faces the split features and
    leaves the other whole. With `shares_experts` all experts of a layer have one adapter.
    """
    learning: list[Weight] = []
    for weight in weights:
        if is_saved(weight, lora):
            learning.append(replace(weight, name=f"{weight.name}.modules_to_save"))
        elif is_targeted(weight, lora):
            learning += _factors(replace(weight, experts=1) if shares_experts else weight, lora.rank)
    return tuple(learning)


def _factors(weight: Weight, rank: int) -> tuple[Weight, Weight]:
    outputs, inputs = matrix_features(weight)
    prefix = weight.name.removesuffix(".weight")
    is_column = weight.split is Split.COLUMN
    is_row = weight.split is Split.ROW
    return (
        Weight(
            name=f"{prefix}{FIRST_FACTOR}",
            shape=(rank, inputs),
            part=weight.part,
            split=Split.ROW if is_row else Split.REPLICATED,
            dim=1 if is_row else None,
            units=weight.units if is_row else 0,
            experts=weight.experts,
            is_linear=True,
        ),
        Weight(
            name=f"{prefix}.lora_B.weight",
            shape=(outputs, rank),
            part=weight.part,
            split=Split.COLUMN if is_column else Split.REPLICATED,
            dim=0 if is_column else None,
            units=weight.units if is_column else 0,
            sections=weight.sections if is_column else (),
            experts=weight.experts,
            is_linear=True,
        ),
    )


def learning_operations(block: Block, weights: Iterable[Weight], lora: Lora) -> frozenset[str]:
    """Return the names of the matrix products that an adapter works beside, or whose matrix is trained whole."""
    adapted = {
        (weight.part, weight.split is Split.ROW)
        for weight in weights
        if is_matrix(weight) and (is_saved(weight, lora) or is_targeted(weight, lora))
    }
    return frozenset(
        operation.name
        for operation in block.operations
        if operation.kind is OperationKind.MATMUL and (_part(block, operation), operation.is_row_parallel) in adapted
    )


def adapters_by_input(block: Block, trainable: Iterable[Weight]) -> dict[str, int]:
    """Return how many adapters read each tensor of a block; one matrix of queries, keys and values has one adapter."""
    adapters = Counter(
        (weight.part, weight.split is Split.ROW) for weight in trainable if weight.name.endswith(FIRST_FACTOR)
    )
    readers: Counter[tuple[str, tuple[Part, bool]]] = Counter()
    for operation in block.operations:
        if operation.kind is OperationKind.MATMUL:
            place = _part(block, operation), operation.is_row_parallel
            readers.update((name, place) for name in operation.inputs)
    reading: Counter[str] = Counter()
    for (name, place), products in readers.items():
        reading[name] += min(products, adapters[place])
    return {name: count for name, count in reading.items() if count}


def _part(block: Block, operation: Operation) -> Part:
    """Return which of a model's parts a product belongs to, by the name its half of a layer gave it."""
    if not block.layers:
        return Part.HEAD
    if operation.name.startswith("expert"):
        return Part.EXPERT
    if operation.name == ROUTER:
        return Part.ROUTER
    is_feed_forward = operation.name.startswith(("feed_forward", "shared"))
    return Part.FEED_FORWARD if is_feed_forward else Part.ATTENTION


def shared_head(model: ModelSpec) -> tuple[Weight, ...]:
    """Return the head's matrix where it is the embedding's: one tensor, but two modules with adapters of their own."""
    if not model.tied_head:
        return ()
    shared = next(weight for weight in model.embedding.weights if weight.split is Split.VOCABULARY)
    return (replace(shared, name=f"{SHARED_HEAD}.weight", part=Part.HEAD, is_linear=True),)


def is_targeted(weight: Weight, lora: Lora) -> bool:
    """Return whether adapters stand beside a weight; `all-linear` leaves out the head alone."""
    if lora.targets_all_linear:
        return weight.is_linear and weight.part is not Part.HEAD
    return is_matrix(weight) and is_named(module_path(weight), lora.target_modules)


def is_saved(weight: Weight, lora: Lora) -> bool:
    """Return whether a weight is of a module that is copied, and the copy trained whole.

    Here peft takes any end of a path: `norm` is every layer's `input_layernorm` too (utils/other.py, `_set_trainable`).
    """
    return any(owner.endswith(lora.modules_to_save) for owner in _owners(module_path(weight)))


def _owners(path: str) -> list[str]:
    """Return a module's path and those of all modules around it."""
    steps = path.split(".")
    return [".".join(steps[:length]) for length in range(1, len(steps) + 1)]


def is_named(path: str, names: Iterable[str]) -> bool:
    """Return whether one of the names is the module's, or the end of its path from a dot on."""
    return any(path == name or path.endswith(f".{name}") for name in names)


def is_matrix(weight: Weight) -> bool:
    """Return whether a weight is one that adapters can stand beside: a linear layer's or an embedding's."""
    may_be = weight.is_linear or weight.part is Part.ROUTER or weight.split is Split.VOCABULARY
    return may_be and len(weight.shape) > 1


def check_targets(model: ModelSpec, lora: Lora) -> None:
    """Raise `InvalidQuestion` when an adapter's rank or a name makes no sense for this model."""
    if lora.rank < 1:
        raise InvalidQuestion(f"rank must be at least 1, not {lora.rank}.", pointer="/training/lora/rank")
    blocks = (model.embedding, *model.layers, model.head)
    weights = (*(weight for block in blocks for weight in block.weights), *shared_head(model))
    matrices = [weight for weight in weights if is_matrix(weight)]
    known = sorted({module_name(weight) for weight in matrices})
    if not any(is_targeted(weight, lora) for weight in matrices):
        raise InvalidQuestion(
            f"None of {', '.join(lora.target_modules)} is a matrix of this model; it has {', '.join(known)}. "
            f"Name some of these, or all-linear.{_said_here(lora.target_modules, known)}",
            pointer=TARGETS_POINTER,
        )
    # Of the usual seven names those count that the model has: nobody named them.
    if not (lora.targets_all_linear or lora.target_modules == Lora().target_modules):
        paths = [module_path(weight) for weight in matrices]
        _check_names(lora.target_modules, paths, (*known, Lora.ALL_LINEAR), TARGETS_POINTER)
    owners = {owner for weight in weights for owner in _owners(module_path(weight))}
    _check_names(lora.modules_to_save, owners, known, SAVED_POINTER)


def unadapted_note(model: ModelSpec, lora: Lora) -> str | None:
    """Return which of the usual names a model lacks, and what its other matrices are called; None where it has all."""
    blocks = (model.embedding, *model.layers, model.head)
    matrices = [weight for block in blocks for weight in block.weights if is_matrix(weight) and weight.is_linear]
    adapted = dict.fromkeys(module_name(weight) for weight in matrices if is_targeted(weight, lora))
    lacking = [name for name in lora.target_modules if name not in adapted]
    others = dict.fromkeys(
        module_name(weight)
        for weight in matrices
        if module_name(weight) not in adapted and weight.part not in (Part.HEAD, Part.ROUTER)
    )
    if lora.target_modules != Lora().target_modules or not lacking or not others:
        return None
    return (
        f"Adapters stand beside {', '.join(adapted)}. The model has no {', '.join(lacking)}, and {', '.join(others)} "
        "have none: name them in training.lora.target_modules, or all-linear."
    )


def _check_names(names: Iterable[str], paths: Iterable[str], known: Iterable[str], pointer: str) -> None:
    """Raise `InvalidQuestion` for the first name that no module has."""
    paths = list(paths)
    for place, name in enumerate(names):
        if not any(is_named(path, (name,)) for path in paths):
            nearest = ", ".join(nearest_names(name.rsplit(".", 1)[-1], known)) or ", ".join(sorted(known))
            instead = _said_here((name,), known) or f" Nearest: {nearest}."
            raise InvalidQuestion(f"{name[:100]!r} is no module of this model.{instead}", pointer=f"{pointer}/{place}")


def _said_here(names: Iterable[str], known: Iterable[str]) -> str:
    """Return what names of other programs are called in this model, in a sentence; empty where none is known."""
    said: list[str] = []
    for name in names:
        here = NAMED_ELSEWHERE.get(name.rsplit(".", 1)[-1].lower(), ())
        if here and set(here) <= set(known):
            said.append(f"{name[:100]} is {', '.join(here)}")
    return f" Here {'; '.join(said)}." if said else ""


def module_path(weight: Weight) -> str:
    """Return the path of the module that a weight belongs to: a bias belongs to its matrix's."""
    return weight.name.removesuffix(".weight").removesuffix(".bias")


def module_name(weight: Weight) -> str:
    """Return the module a weight belongs to: `q_proj` of `model.layers.{layer}.self_attn.q_proj.weight`."""
    return module_path(weight).rsplit(".", 1)[-1]


def matrix_features(weight: Weight) -> tuple[int, int]:
    """Return (outputs, inputs) of a matrix, whichever way round the checkpoint holds it.

    A column split divides the outputs and a row split the inputs, so the split
    dimension tells which of the two is which. An embedding reads tokens.
    """
    first, second = weight.shape[-2:]
    is_transposed = (weight.split is Split.COLUMN and weight.dim == 1) or (
        weight.split is Split.ROW and weight.dim == 0
    )
    return (second, first) if is_transposed or weight.part is Part.EMBEDDING else (first, second)
