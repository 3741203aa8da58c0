"""What kernels of the loss hold of logits."""

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import hardware, question, small_llama

TOKENS, VOCABULARY = 2048, 1000


@pytest.mark.parametrize(
    ("framework", "logits_bytes"),
    # torch: logits, log-softmax and gradient in fp32. llm-foundry: the 16-bit logits and their 16-bit gradient
    # (llmfoundry/models/mpt/modeling_mpt.py, fused_crossentropy of flash_attn).
    [("atorch", 12), ("composer", 4)],
)
def test_a_loss_holds_as_many_bytes_of_logits_as_its_kernel(framework, logits_bytes):
    asked = question(model=small_llama(vocab_size=VOCABULARY), sequence_length=TOKENS, gpus=1, global_batch_size=1)
    job = training_job(asked, load_profile(framework))
    (stage,) = memory_of(candidates_from_rows([{}]), 0, job, hardware(1)).stages
    assert max(moment.items.logits for moment in stage.moments) == logits_bytes * TOKENS * VOCABULARY
