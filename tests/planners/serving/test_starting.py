"""Checks that engines make of their own options before they start: whatever is planned passes them."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.architecture import KvKind
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.search.search import search_layouts
from plimsoll.planners.serving.settings.settings import resolve_settings
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from tests.planners.serving.factories import hardware, question

RESOLVER = ModelResolver(catalogue(), Settings())
MODELS = tuple(model.id for model in catalogue().models)
HYBRID = "Qwen/Qwen3.6-27B"


def spec_of(name):
    return RESOLVER.resolve(name).spec


def is_batch_beyond_states(candidate) -> bool:
    """vllm/config/compilation.py since 0.19: max_num_seqs exceeds available Mamba cache blocks."""
    replica = candidate.replica
    has_states = any(bucket.state.kind is KvKind.RECURRENT for bucket in replica.cache.buckets)
    return has_states and candidate.settings.max_num_seqs > replica.kv.blocks


def is_batch_smaller_than_its_sequences(candidate) -> bool:
    """vllm/config/scheduler.py, verify_max_model_len."""
    return candidate.settings.max_num_batched_tokens < candidate.settings.max_num_seqs


def is_whole_prompt_beyond_a_batch(candidate) -> bool:
    """vllm/config/scheduler.py: encoder-decoder models prefill in one piece."""
    is_whole = any(block.cross is not None for block in candidate.question.model.layers)
    return is_whole and candidate.settings.max_num_batched_tokens < candidate.settings.max_model_len


def is_sparse_latent_in_other_blocks(candidate) -> bool:
    """vllm/platforms/cuda.py: FlashMLASparse has blocks of 64 alone."""
    states = [block.kv for block in candidate.question.model.layers if block.kv is not None]
    is_sparse = any(state.latent_width and state.index_width and not state.compressed for state in states)
    return is_sparse and candidate.settings.block_size != 64


def is_undivided_by_tensor_ranks(candidate) -> bool:
    """vllm/config/model.py, verify_with_parallel_config."""
    return candidate.question.model.attention_heads % candidate.replica.degrees.tensor_parallel != 0


CHECKS = (
    is_batch_beyond_states,
    is_batch_smaller_than_its_sequences,
    is_whole_prompt_beyond_a_batch,
    is_sparse_latent_in_other_blocks,
    is_undivided_by_tensor_ranks,
)


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 8])
def test_every_model_of_the_catalogue_is_planned_with_options_that_vllm_starts_with(gpus):
    refused = []
    for name in MODELS:
        asked = ServingQuestion(engine="vllm", model=spec_of(name), hardware=hardware(gpus), max_model_len=4096)
        try:
            found = search_layouts(asked, resolve_settings(asked))
        except PlimsollError:
            continue
        for candidate in found.candidates:
            if candidate.replica.fits:
                refused += [(name, check.__name__) for check in CHECKS if check(candidate)]
    assert refused == []


def started(version):
    asked = question(spec_of(HYBRID), engine_version=version)
    return search_layouts(asked, resolve_settings(asked)).candidates[0]


def test_a_batch_is_held_to_the_states_that_the_cache_has_blocks_for():
    bounded = started("0.19")
    assert bounded.settings.max_num_seqs < bounded.replica.kv.blocks < 1024
    assert any("does not start with more sequences than cache blocks" in note for note in bounded.settings.assumptions)


def test_earlier_releases_hold_the_batch_down_by_themselves():
    free = started("0.17")
    assert free.settings.max_num_seqs == 1024 > free.replica.kv.blocks


@pytest.mark.parametrize(
    ("gpu", "weights", "utilization", "length", "version", "printed"),
    # Start-up logs of Qwen3.6-27B that refused 1,024 sequences, and the number of blocks they name.
    [
        ("h100-sxm-80gb", "fp8", 0.95, 262_144, "0.22", 856),
        ("rtx-pro-6000-server-96gb", "bf16", 0.90, 8_192, "0.29", 635),
    ],
)
def test_the_batch_is_one_that_starts_where_a_log_names_the_blocks(gpu, weights, utilization, length, version, printed):
    asked = ServingQuestion(
        engine="vllm",
        model=spec_of("Qwen/Qwen3.6-27B"),
        hardware=hardware(1, gpu=catalogue().gpu(gpu)),
        weights=weights,
        gpu_memory_utilization=utilization,
        max_model_len=length,
        engine_version=version,
        max_num_seqs=1024,
    )
    planned = search_layouts(asked, resolve_settings(asked)).candidates[0]
    assert 0.9 * printed < planned.settings.max_num_seqs <= printed


def test_a_batch_smaller_than_an_encoders_decoder_prompt_is_refused():
    # Whisper is the encoder-decoder that vLLM serves; with longer positions than it has, for a prompt beyond a batch.
    spec = dataclasses.replace(spec_of("google-t5/t5-11b"), model_type="whisper")
    asked = ServingQuestion(engine="vllm", model=spec, hardware=hardware(1), max_model_len=20_000)
    # An H100's own batch is 8,192 tokens.
    assert resolve_settings(asked).max_num_batched_tokens == 20_000
    with pytest.raises(InvalidQuestion, match="encoder-decoder models whole") as caught:
        resolve_settings(dataclasses.replace(asked, max_num_batched_tokens=19_999))
    assert caught.value.pointer == "/serving/max_num_batched_tokens"


def test_sparse_latents_have_blocks_of_64_and_whole_ones_of_16():
    sizes = [
        resolve_settings(ServingQuestion(engine="vllm", model=spec_of(name), hardware=hardware(8))).block_size
        for name in ("deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3")
    ]
    assert sizes == [64, 16]
