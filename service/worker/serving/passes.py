"""The passes of an engine's start and of its work: profiling, the cache, prefill, decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.tracker import StorageTracker
from plimsoll.service.worker.serving.cache import BlockCache, Reach
from plimsoll.service.worker.serving.deployment import Deployment
from plimsoll.service.worker.serving.sampling import Sampler
from plimsoll.service.worker.tasks import Report

PROFILE, CACHE, PREFILL, DECODE = "profile", "cache", "prefill", "decode"
WEIGHTS = "weights"
SERVING_STAGES = 5


# torch, aten/src/ATen/cuda/CublasHandlePool.cpp: of Hopper and newer, whose products find it in the caching allocator.
CUBLAS_WORKSPACE_BYTES = 32 << 20


class Passes:
    """Runs a deployment's passes on one device."""

    def __init__(
        self, deployment: Deployment, model: Any, cache: BlockCache, device_type: str, sampler: Sampler
    ) -> None:
        self._deployment, self._model, self._cache = deployment, model, cache
        self._device_type, self._sampler = device_type, sampler
        self._workspace: torch.Tensor | None = None
        self._received: tuple[torch.Tensor, ...] = ()

    def make_workspace(self) -> None:
        """Make what cuBLAS keeps from its first product on; fake tensors have none of their own accord."""
        self._workspace = torch.empty(CUBLAS_WORKSPACE_BYTES, dtype=torch.uint8, device=self._device_type)

    def profile(self) -> None:
        """Send as many tokens as a batch may have through the layers at once, and sample as many rows as may be."""
        self._cache.reach = None
        hidden = self._hidden(1, self._deployment.profile_tokens, 0)
        last = torch.arange(self._deployment.sampled_rows, device=self._device_type)
        self._sample(hidden.flatten(0, 1)[last])

    def allocate_cache(self) -> None:
        """Allocate the blocks that the plan says are left."""
        self._cache.allocate(self._device_type)

    def allocate_context(self) -> None:
        """Allocate what the engine makes beside the cache once it knows its blocks."""
        self._cache.allocate_context(self._device_type)

    def prefill(self, *, first_groups: int | None = None) -> None:
        """Read every request's prompt, as many tokens at once as a batch may have; or the first groups' alone."""
        for number, reach_tokens in enumerate(self._prompt_chunks()):
            if first_groups is not None and number == first_groups:
                return
            self._cache.reach, tokens = reach_tokens
            hidden = self._hidden(self._cache.reach.count, tokens, self._cache.reach.position)
            self._sample(hidden[:, -1])

    def decode(self) -> None:
        """Make every request's last token, the cache being as full as it gets."""
        batch, position = self._deployment.batch, self._deployment.sequence_tokens - 1
        self._cache.reach = Reach(first=0, count=batch, position=position)
        self._sample(self._hidden(batch, 1, position)[:, -1])

    def _prompt_chunks(self) -> Iterator[tuple[Reach, int]]:
        """Yield whole prompts together while they fit a batch, or one prompt's chunks after another."""
        prompt, most = self._deployment.prompt_tokens, self._deployment.profile_tokens
        together = max(most // prompt, 1)
        for first in range(0, self._deployment.batch, together):
            count = min(together, self._deployment.batch - first)
            for position in range(0, prompt, most):
                yield Reach(first=first, count=count, position=position), min(most, prompt - position)

    def _hidden(self, requests: int, tokens: int, position: int) -> torch.Tensor:
        shape, device = (requests, tokens), self._device_type
        positions = torch.arange(position, position + tokens, device=device)[None].expand(shape)
        given: dict[str, torch.Tensor]
        if self._deployment.has_embedding:
            given = {"input_ids": torch.randint(0, self._deployment.vocabulary_size, shape, device=device)}
        else:
            given = {"inputs_embeds": self._hidden_states_received(requests * tokens).view(*shape, -1)}
        hidden: torch.Tensor = self._model.model(position_ids=positions, **given).last_hidden_state
        return hidden

    def _hidden_states_received(self, tokens: int) -> torch.Tensor:
        """Return hidden states from the stage before; with their residual they have buffers for a whole batch.

        Source: vllm/v1/worker/gpu_model_runner.py, sync_and_slice_intermediate_tensors.
        """
        if not self._received:
            shape = (self._deployment.profile_tokens, int(self._deployment.config["hidden_size"]))
            dtype = next(self._model.parameters()).dtype
            self._received = tuple(torch.zeros(shape, dtype=dtype, device=self._device_type) for _ in range(2))
        return self._received[0][:tokens]

    def _sample(self, hidden: torch.Tensor) -> None:
        if self._deployment.has_head:
            self._sampler.sampled(self._model.lm_head(hidden))


def record_passes(
    passes: Passes, tracker: StorageTracker, deployment: Deployment, report: Report, *, whole: bool
) -> None:
    """Run all passes once; unless `whole`, of the prefill the first group alone, which finds the memory as all do."""
    report(1, SERVING_STAGES, "stage", "profiling pass")
    tracker.begin_phase(0, PROFILE)
    passes.profile()
    report(2, SERVING_STAGES, "stage", "allocating the cache")
    tracker.begin_phase(0, CACHE)
    with tracker.making(Kind.KV_CACHE):
        passes.allocate_cache()
    passes.allocate_context()
    if not deployment.batch:
        return
    report(3, SERVING_STAGES, "stage", "prefill")
    tracker.begin_phase(0, PREFILL)
    passes.prefill(first_groups=None if whole else 1)
    report(4, SERVING_STAGES, "stage", "decode")
    tracker.begin_phase(0, DECODE)
    passes.decode()
