"""What the layers of vLLM's own model hold at most in a profiling pass, run one operation after another.

Attention returns without a cache, as in vLLM's own pass; norms work in place, as its
kernels do. A compiled model lets go of what a function's variables still hold here:
a layer's input, and gate and up together while their product is multiplied.
"""

from __future__ import annotations

import torch

from benchmarks.vllm_own_code.rank import OwnRank
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import StreamClock
from plimsoll.service.worker.recording.tracker import StorageTracker

HELD = frozenset({Kind.PARAMETER, Kind.BUFFER})


def layers_bytes(rank: OwnRank) -> int:
    """Return the peak beside the weights, of as many tokens as a batch may have."""
    from vllm.forward_context import set_forward_context
    from vllm.ir.op import enable_torch_wrap

    tokens = rank.config.scheduler_config.max_num_batched_tokens
    ledger = Ledger()
    priority = rank.config.kernel_config.ir_op_priority
    with (
        rank.fakes,
        torch.no_grad(),
        set_forward_context(None, rank.config, num_tokens=tokens),
        enable_torch_wrap(False),
        priority.set_priority(),
    ):
        tracker = StorageTracker(ledger, StreamClock(), logit_shapes=frozenset())
        tracker.label_all(rank.model.named_parameters(), Kind.PARAMETER)
        tracker.label_all(rank.model.named_buffers(), Kind.BUFFER)
        ledger.mark(0, "profile")
        with tracker.watching():
            rank.model(torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens))
        return sum(piece.allocated_bytes for piece in ledger.peak().live if piece.kind not in HELD)
