"""A step of direct preference optimization: TRL's own `DPOTrainer` makes the loss of a policy beside its reference.

The trainer is made without its datasets and its tokenizer, of which its loss asks nothing; what it reads of itself is
set as its own `__init__` does, from the defaults of its own configuration.

Source: TRL 1.16, trainer/dpo_trainer.py, `DPOTrainer.__init__` and `_compute_loss`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.states import FULL_SHARDING_STAGES
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import local_tensor
from plimsoll.service.worker.training.building import causal_model
from plimsoll.service.worker.training.companions.package import load_trl, runnable_trl
from plimsoll.service.worker.training.engine import Standing
from plimsoll.service.worker.training.foreign_code import left_in_place

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# What the trainer's metrics want of the policy beside the log-probabilities.
POLICY_OUTPUTS = ("log_probs", "entropy", "mean_logits", "is_top1")


def fuse_policy_head(model: Any) -> None:
    """Let the policy return log-probabilities; call it before anything wraps the model."""
    load_trl()
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, outputs=POLICY_OUTPUTS)


class PreferenceObjective:
    """The loss of preference pairs, beside a frozen reference model that is prepared as TRL does."""

    def __init__(self, job: TraceJob, policy: Any, accelerator: Any) -> None:
        self._job = job
        self._accelerator = accelerator
        self._reference = self._prepared(_reference_model(job, policy))
        self._trainer = _trainer(policy, self._reference, accelerator)

    def _prepared(self, reference: Any) -> Any:
        from trl.models.utils import prepare_fsdp

        with left_in_place(reference):
            if self._job.zero_stage in FULL_SHARDING_STAGES:
                return prepare_fsdp(reference, self._accelerator)
            return self._accelerator.prepare_model(reference, evaluation_mode=True)

    @property
    def logit_shapes(self) -> frozenset[tuple[int, int]]:
        """Return the rows and columns of the tile that logits are made in."""
        from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

        scored = self._job.micro_batch_size * (self._job.local_sequence_length - 1)
        return frozenset({(min(scored, TOKEN_CHUNK_SIZE), _CHUNKED_LOGPROB_CHUNK_SIZE)})

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Let TRL's loss run within the block."""
        with runnable_trl():
            yield

    def standing(self) -> Iterator[Standing]:
        """Yield the reference's weights."""
        for name, parameter in self._reference.named_parameters():
            local = local_tensor(parameter)
            yield Standing(
                name=f"reference.{name}", storage=local.untyped_storage(), kind=Kind.PARAMETER, device=local.device
            )

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a micro-batch as TRL's collator makes it: half of its sequences chosen, half rejected."""
        shape = (self._job.micro_batch_size, self._job.local_sequence_length)
        names = ("input_ids", "attention_mask", "completion_mask")
        return {name: torch.ones(shape, dtype=torch.int64) for name in names}

    def loss(self, model: Any, batch: dict[str, torch.Tensor]) -> Any:
        """Return the loss of one micro-batch."""
        return self._trainer._compute_loss(model, batch, return_outputs=False)


def _reference_model(job: TraceJob, policy: Any) -> Any:
    """Return a model like the policy's own in the reference's format."""
    from trl.trainer.utils import add_fused_lm_head

    attention = policy.config._attn_implementation
    reference: Any = causal_model(job.config, dtype=DTYPES[job.reference or ""], attention=attention)
    reference.config.max_position_embeddings = policy.config.max_position_embeddings
    reference.eval()
    add_fused_lm_head(reference)
    return reference


def _trainer(policy: Any, reference: Any, accelerator: Any) -> Any:
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    settings = SimpleNamespace(**_defaults(DPOConfig))
    trainer: Any = object.__new__(DPOTrainer)
    vars(trainer).update(
        model=policy,
        ref_model=reference,
        accelerator=accelerator,
        args=settings,
        beta=settings.beta,
        precompute_ref_logps=settings.precompute_ref_log_probs,
        loss_types=settings.loss_type,
        loss_weights=settings.loss_weights or [1.0] * len(settings.loss_type),
        ld_alpha=settings.ld_alpha,
        f_divergence_type=settings.f_divergence_type,
        f_alpha_divergence_coef=settings.f_alpha_divergence_coef,
        label_smoothing=settings.label_smoothing,
        use_weighting=settings.use_weighting,
        aux_loss_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    return trainer


def _defaults(configuration: type) -> dict[str, Any]:
    """Return what a configuration's fields are where nothing is asked for."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(configuration)
    }
