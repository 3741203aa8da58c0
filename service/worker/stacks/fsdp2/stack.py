"""torchtitan: FSDP2 with units for the vocabulary, experts dealt to other ranks, products in fp8 by torchao.

Source: pytorch/torchtitan, models/llama3/infra/parallelize.py, distributed/activation_checkpoint.py.
"""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Subject
from plimsoll.service.worker.jobs.stack import Notes, SelectiveRecompute, Stack
from plimsoll.service.worker.stacks.fsdp2.rules import RULES_OF_PRODUCTS

STACK = Stack(
    name="fsdp2",
    program="torchtitan",
    wraps_vocabulary=True,
    selective=SelectiveRecompute.OPERATIONS,
    recomputes_to_the_end=True,  # config/job_config.py, ActivationCheckpoint.early_stop
    # torchtitan has none: what a plan of it means is the same kernels put into its model by hand.
    takes_liger_kernels=True,
    casts_products=True,
    deals_experts=True,
    splits_latents=True,
    keeps_message_buffers=True,
    notes=Notes(experts="Experts' tokens are sent and brought back as torchtitan does it, as many to each rank."),
    rules={Subject.KERNELS: RULES_OF_PRODUCTS},
    own_code=f"{__package__}.own_code",
)
