"""An evaluation between two steps: transformers' own `Trainer.evaluation_loop` over the model that accelerate wrapped.

The trainer is made without its datasets, its tokenizer and its arguments, of which the loop reads a few. What it would
move to the host as arrays is let go of, for a fake tensor has no values; metrics are computed of it there.

Source: transformers 5.23, trainer.py, `evaluation_loop` and `prediction_step`; trainer_pt_utils.py,
`EvalLoopContainer`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from plimsoll.planners.questions import Evaluation
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.recording.patches import replaced

# Without its logits kept, a batch finds the memory as the second did.
BATCHES_ALIKE = 2


class TrainerEvaluation:
    """The batches between two visits of the host: all that a trainer keeps of them is on the device at the last."""

    def __init__(self, job: TraceJob, wanted: Evaluation, accelerator: Any, *, own: Any, wrapped: Any) -> None:
        self._job, self._wanted = job, wanted
        self._trainer = _trainer(job, wanted, accelerator, own=own, wrapped=wrapped)

    def run(self) -> None:
        """Evaluate, and go back to training."""
        count = traced_batches(self._wanted, self._job.data_parallel)
        with _without_values():
            self._trainer.evaluation_loop(
                (self._batch() for _ in range(count)),
                description="Evaluation",
                prediction_loss_only=not self._wanted.keeps_logits,
            )
        self._trainer.model.train()
        self._trainer.model_wrapped.train()

    def _batch(self) -> dict[str, torch.Tensor]:
        shape = (self._wanted.batch_size, self._job.local_sequence_length)
        return {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "labels")}


def traced_batches(wanted: Evaluation, data_parallel: int) -> int:
    """Return after how many batches an evaluation holds the most."""
    return wanted.kept_batches(data_parallel) or BATCHES_ALIKE


def _trainer(job: TraceJob, wanted: Evaluation, accelerator: Any, *, own: Any, wrapped: Any) -> Any:
    from transformers import Trainer
    from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState

    trainer: Any = object.__new__(Trainer)
    vars(trainer).update(
        model=own,
        model_wrapped=wrapped,
        accelerator=accelerator,
        optimizer=None,
        args=SimpleNamespace(
            eval_batch_size=wanted.batch_size,
            eval_do_concat_batches=True,
            eval_accumulation_steps=wanted.accumulation_steps,
            batch_eval_metrics=False,
            include_for_metrics=[],
            prediction_loss_only=not wanted.keeps_logits,
            use_liger_kernel=job.fused_cross_entropy,
            average_tokens_across_devices=True,
            world_size=job.data_parallel,
            n_gpu=1,
            device=torch.device("cpu"),
            past_index=-1,
            logging_nan_inf_filter=True,
            torch_compile=False,
        ),
        is_in_train=True,
        is_deepspeed_enabled=False,
        is_fsdp_enabled=False,
        compute_metrics=None,
        preprocess_logits_for_metrics=None,
        label_names=["labels"],
        can_return_loss=True,
        label_smoother=None,
        compute_loss_func=None,
        model_accepts_loss_kwargs=True,
        _loss_shifts_labels=True,
        callback_handler=CallbackHandler([DefaultFlowCallback], own, None, None, None),  # type: ignore[no-untyped-call]
        control=TrainerControl(),
        state=TrainerState(),
        gather_function=accelerator.gather_for_metrics,
    )
    return trainer


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """Let go of what would become an array on the host, and pad no batch to another rank's length: all have one."""
    from accelerate import Accelerator
    from transformers.trainer_pt_utils import EvalLoopContainer

    with (
        replaced(EvalLoopContainer, "to_cpu_and_numpy", _let_go),
        replaced(Accelerator, "pad_across_processes", _as_it_is),
    ):
        yield


def _as_it_is(_accelerator: Any, tensor: Any, **_asked: Any) -> Any:
    return tensor


def _let_go(container: Any) -> None:
    container.tensors = None
