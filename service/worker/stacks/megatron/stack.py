"""Megatron-LM: Megatron-Core itself where its arguments describe the model, and what stands in for it elsewhere.

That is transformers' model with fused kernels, experts of its own, and fp32 gradients beside 16-bit parameters.

Source: Megatron-Core, distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py.
"""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Subject
from plimsoll.service.worker.jobs.stack import Notes, Replication, Stack
from plimsoll.service.worker.stacks.megatron.core.jobs import runs_megatron_core
from plimsoll.service.worker.stacks.megatron.rules import (
    DESCRIBED_MODELS_ARE_TRACED,
    DIVIDED_STATES_ARE_ADAM_S,
    EXCHANGED_HEADS_ARE_TRANSFORMER_ENGINE_S,
    MULTI_TOKEN_PREDICTION_IS_MEGATRON_CORES,
    MULTI_TOKEN_PREDICTION_IS_TRACED,
    MULTI_TOKEN_PREDICTION_STANDS_BY_THE_HEAD,
    MUON_IS_MEGATRON_CORES,
    MUON_IS_TRACED,
    NORMS_ARE_NOT_RECOMPUTED_SPLIT,
    OFFLOADED_LAYERS_ARE_TRANSFORMER_ENGINE_S,
    OFFLOADED_PARTS_ARE_MEGATRON_CORES,
    PAIRED_PASSES_ARE_MEGATRON_CORES,
    PAIRED_PASSES_ARE_TRACED,
    PRODUCTS_IN_FP8_ARE_TRANSFORMER_ENGINE_S,
    RULES_OF_EXPERTS,
    SHARED_BUFFERS_ARE_TRANSFORMER_ENGINE_S,
    STATES_ON_THE_HOST_ARE_COPIES,
)

STACK = Stack(
    name="megatron",
    program="Megatron",
    replication=Replication.MASTER_WEIGHTS,
    main_gradients_in_fp32=True,
    has_fused_kernels=True,
    groups_experts=True,
    frees_sent_outputs=True,
    own_model="megatron-core",
    runs_own_model=runs_megatron_core,
    notes=Notes(
        model=(
            "Megatron-Core's own code ran: its GPT model, its gradient buffers, its optimizer, its recomputation and "
            "its schedule. Beneath them shapes stand in for a GPU's kernels: Transformer Engine's norms, rotation, "
            "flash attention and grouped products, APEX's sums of gradients, and what torch would compile."
        ),
        offload=(
            "fp32 copies of parameters and gradients, and the moments, lie on the host, as Megatron-Core's "
            "HybridDeviceOptimizer has them. As it is made, whole parameters are copied to the host too, 4 bytes of "
            "each, until Python's garbage collector comes by: host_bytes are those after."
        ),
        kernels="Fused norms, SwiGLU and loss allocate and keep what Megatron-Core's do.",
        kernels_on_device=(
            "Norms, SwiGLU and loss ran as torch's operations in place, not as Transformer Engine's kernels."
        ),
        experts=(
            "Experts, and what permutes and sends their tokens, are after Megatron-Core's code, without its "
            "auxiliary loss and permutation kernel: as many tokens for each expert, as the plan has it."
        ),
    ),
    rules={
        Subject.STACK: (
            PRODUCTS_IN_FP8_ARE_TRANSFORMER_ENGINE_S,
            MULTI_TOKEN_PREDICTION_IS_MEGATRON_CORES,
            MULTI_TOKEN_PREDICTION_STANDS_BY_THE_HEAD,
            MUON_IS_MEGATRON_CORES,
            SHARED_BUFFERS_ARE_TRANSFORMER_ENGINE_S,
            EXCHANGED_HEADS_ARE_TRANSFORMER_ENGINE_S,
            PAIRED_PASSES_ARE_MEGATRON_CORES,
            OFFLOADED_PARTS_ARE_MEGATRON_CORES,
            OFFLOADED_LAYERS_ARE_TRANSFORMER_ENGINE_S,
        ),
        Subject.SHARDING: (
            NORMS_ARE_NOT_RECOMPUTED_SPLIT,
            DIVIDED_STATES_ARE_ADAM_S,
            STATES_ON_THE_HOST_ARE_COPIES,
        ),
        Subject.EXPERTS: RULES_OF_EXPERTS,
        Subject.DEVICE: (
            DESCRIBED_MODELS_ARE_TRACED,
            MULTI_TOKEN_PREDICTION_IS_TRACED,
            PAIRED_PASSES_ARE_TRACED,
            MUON_IS_TRACED,
        ),
    },
    own_code=f"{__package__}.own_code",
)
