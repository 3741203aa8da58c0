"""torchtitan's own code on fake tensors, for what is ours after it to be held against.

It is installed without what it depends on besides torch: modules that import the rest, which read data, log or call
triton alone, are empty ones here.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor.parallel import loss_parallel

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import replaced, traceable_torch
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD, OPTIMIZER, StorageTracker
from plimsoll.service.worker.training.foreign_code import quiet
from plimsoll.service.worker.training.rank import process_group_of
from plimsoll.service.worker.training.steady import run_until_steady

# Modules by what others import from them.
EMPTY = {
    "torchtitan.components.checkpoint": ("ModelWrapper",),
    "torchtitan.components.dataloader": ("BaseDataLoader", "ParallelAwareDataloader", "DataloaderExhaustedError"),
    "torchtitan.components.metrics": ("MetricsProcessor", "build_metrics_processor"),
    "torchtitan.components.tokenizer": ("BaseTokenizer", "build_hf_tokenizer", "HuggingFaceTokenizer"),
    "torchtitan.components.validate": ("build_validator", "Validator", "BaseValidator"),
    "torchtitan.hf_datasets.text_datasets": ("build_text_dataloader", "build_text_validation_dataloader"),
    "torchtitan.models.moe.kernels": (),
}


@contextlib.contextmanager
def torchtitan() -> Iterator[Callable[[str], Any]]:
    """Give back what imports a module of torchtitan's, and forget all of them."""
    before = {name: module for name, module in sys.modules.items() if name.startswith("torchtitan")}
    for name, held in EMPTY.items():
        module = types.ModuleType(name)
        vars(module).update({each: type(each, (), {}) for each in held})
        sys.modules[name] = module
    sys.modules["torchtitan.models.moe.kernels"].generate_permute_indices = _permuted  # type: ignore[attr-defined]
    try:
        with quiet("root"):
            importlib.import_module("torchtitan.distributed.parallel_dims").device_type = "cpu"  # type: ignore[attr-defined]
            importlib.import_module("torchtitan.models.llama3")
        yield importlib.import_module
    finally:
        for name in [name for name in sys.modules if name.startswith("torchtitan")]:
            del sys.modules[name]
        sys.modules.update(before)


def _permuted(tokens_per_expert: torch.Tensor, experts: int, _ranks: int, length: int, _alignment: int) -> Any:
    """Return what torchtitan's kernel of triton makes: places, tokens of each expert, and where they end."""
    sizes = tokens_per_expert.new_zeros(experts, dtype=torch.int32)
    return torch.full((length,), -1, dtype=torch.int32), sizes, sizes


def _dims(load: Callable[[str], Any], job: TraceJob) -> Any:
    """Return the job's degrees with their meshes; call it outside the fake mode, for a mesh reads its own ranks."""
    dims = load("torchtitan.distributed").ParallelDims(
        dp_replicate=job.data_parallel // job.shard_group,
        dp_shard=job.shard_group,
        cp=1,
        tp=job.tensor_parallel,
        pp=1,
        ep=1,
        etp=1,
        world_size=job.world_size,
    )
    dims.build_mesh()
    return dims


def _parallelized_llama(load: Callable[[str], Any], job: TraceJob, dims: Any) -> Any:
    """Return torchtitan's own Llama, with all that its `parallelize_llama` does to it."""
    config = job.config
    arguments = load("torchtitan.models.llama3.model.args").TransformerModelArgs(
        dim=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"],
        vocab_size=config["vocab_size"],
        multiple_of=config["intermediate_size"],
        ffn_dim_multiplier=0.01,  # less than that multiple, which is then the width
        max_seq_len=job.sequence_length,
    )
    settings = load("torchtitan.config").JobConfig()
    settings.training.seq_len = job.sequence_length
    settings.activation_checkpoint.mode = job.recompute
    settings.activation_checkpoint.selective_ac_option = "op"
    model = load("torchtitan.models.llama3.model.model").Transformer(arguments)
    return load("torchtitan.models.llama3.infra.parallelize").parallelize_llama(model, dims, settings)


def traced_by_torchtitan(load: Callable[[str], Any], job: TraceJob) -> Ledger:
    """Return what steps of torchtitan's own Llama do to memory, with its loss and torch's fused AdamW."""
    ledger = Ledger()
    attention = load("torchtitan.models.attention").ScaledDotProductAttentionWrapper
    loss_of = load("torchtitan.components.loss").cross_entropy_loss
    with (
        traceable_torch() as clock,
        process_group_of(job.world_size),
        replaced(attention, "forward", _flash),
        loss_parallel() if job.tensor_parallel > 1 else contextlib.nullcontext(),
    ):
        dims = _dims(load, job)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = _parallelized_llama(load, job, dims)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
            batch = torch.zeros((job.micro_batch_size, job.sequence_length), dtype=torch.int64)
            tracker = StorageTracker(ledger, clock, logit_shapes=frozenset())
            ledger.mark(0, "states")
            tracker.label_all(model.named_parameters(), Kind.PARAMETER)

            def run(step: int) -> None:
                tracker.begin_phase(step, FORWARD)
                loss = loss_of(model(batch), batch)
                tracker.begin_phase(step, BACKWARD)
                loss.backward()
                tracker.begin_phase(step, OPTIMIZER)
                optimizer.step()
                optimizer.zero_grad()

            with tracker.watching():
                run_until_steady(run, tracker, lambda *_progress: None)
                return ledger.so_far()


def _flash(_module: Any, query: Any, key: Any, value: Any, **_settings: Any) -> torch.Tensor:
    """Attention as CUDA's kernel has it (`plimsoll.service.worker.training.kernels.attention`)."""
    output: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)[0]
    return output


@contextlib.contextmanager
def even_splits(tokens: int) -> Iterator[None]:
    """Answer which rank gets how many tokens, without values: each as many."""

    def each(counts: torch.Tensor) -> list[int]:
        return [tokens // counts.numel()] * counts.numel()

    with replaced(FakeTensor, "tolist", each):
        yield
