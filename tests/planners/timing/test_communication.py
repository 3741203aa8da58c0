from dataclasses import replace

from plimsoll.planners.timing.communication import communication_of
from plimsoll.planners.timing.efficiency import load_efficiency
from tests.planners.factories import hardware, llama
from tests.planners.training_cases import job, one_layout


def table(framework: str, **degrees: int | bool):
    asked = job(framework, global_batch_size=16)
    rows = communication_of(one_layout(**degrees), 0, asked, hardware(8), load_efficiency())
    return {(row.group, row.operation): row for row in rows}


LAYER = llama().layers[0].elements


def test_bf16_halves_what_ddp_sends():
    asked = job("ddp", global_batch_size=16)
    rows = {}
    for compression in ("none", "bf16"):
        through = replace(asked, gradient_compression=compression)
        (row,) = communication_of(one_layout(data_parallel=8), 0, through, hardware(8), load_efficiency())
        rows[compression] = row.bytes_per_layer
    assert rows == {"none": 4 * LAYER, "bf16": 2 * LAYER}


def test_a_single_gpu_sends_nothing():
    assert table("reference") == {}


def test_full_sharding_gathers_twice_a_micro_batch_and_reduces_in_fp32():
    rows = table("fsdp2", data_parallel=8, zero_stage=3)
    gather, reduce = rows["data", "all_gather"], rows["data", "reduce_scatter"]
    # Two micro-batches of 32 layers.
    assert (gather.bytes_per_layer, gather.calls_per_step) == (2 * LAYER, 2 * 32 * 2)
    assert (reduce.bytes_per_layer, reduce.calls_per_step) == (4 * LAYER, 32 * 2)


def test_weights_that_stay_gathered_for_the_backward_pass_are_gathered_once_a_micro_batch():
    # Two micro-batches of 32 layers; DeepSpeed's lie whole and are gathered after the update alone.
    assert table("fsdp2", data_parallel=8, zero_stage=2)["data", "all_gather"].calls_per_step == 2 * 32
    assert table("deepspeed", data_parallel=8, zero_stage=2)["data", "all_gather"].calls_per_step == 32


def test_with_a_second_copy_of_the_weights_the_first_gather_alone_is_of_all_ranks():
    rows = table("deepspeed", data_parallel=16, zero_stage=3, secondary_shard_group=8)
    whole = table("deepspeed", data_parallel=16, zero_stage=3)
    # One micro-batch of 32 layers, forwards and backwards.
    assert whole["data", "all_gather"].calls_per_step == 2 * 32
    assert rows["data", "all_gather"].calls_per_step == rows["secondary", "all_gather"].calls_per_step == 32
    # Of a node of eight instead of two.
    assert rows["secondary", "all_gather"].seconds < whole["data", "all_gather"].seconds / 2


def test_a_torchtitan_pipeline_gathers_and_reduces_once_a_step():
    # Two stages of 16 layers, four replicas: four micro-batches, but one gather and one reduction a layer.
    rows = table("fsdp2", data_parallel=4, pipeline_parallel=2, zero_stage=3)
    assert rows["data", "all_gather"].calls_per_step == rows["data", "reduce_scatter"].calls_per_step == 16


def test_hybrid_sharding_reduces_shards_between_groups():
    row = table("fsdp2", data_parallel=16, shard_group=8, zero_stage=3)["replica", "all_reduce"]
    assert row.bytes_per_layer == 4 * LAYER // 8


def test_copies_of_megatron_s_distributed_optimizer_add_up_their_parts_of_gradients():
    rows = table("megatron", data_parallel=16, shard_group=8, zero_stage=1)
    row = rows["replica", "all_reduce"]
    assert (row.bytes_per_layer, row.calls_per_step) == (4 * LAYER // 8, 32)
    whole = table("megatron", data_parallel=16, zero_stage=1)
    assert ("replica", "all_reduce") not in whole
    # Within a node of eight both collectives are faster than over two.
    assert rows["data", "reduce_scatter"].seconds < whole["data", "reduce_scatter"].seconds
    assert rows["data", "all_gather"].seconds < whole["data", "all_gather"].seconds


def test_megatron_s_distributed_optimizer_reduces_once_a_step():
    rows = table("megatron", data_parallel=8, zero_stage=1)
    assert rows["data", "reduce_scatter"].calls_per_step == 32
    assert rows["data", "all_gather"].bytes_per_layer == 2 * LAYER


def test_sequence_parallelism_sends_the_same_bytes_in_other_calls():
    plain = table("megatron", tensor_parallel=8)["tensor", "all_reduce"]
    divided = table("megatron", tensor_parallel=8, sequence_parallel=True)["tensor", "all_gather_and_reduce_scatter"]
    assert plain.bytes_per_layer == divided.bytes_per_layer == 8 * 8192 * 4096


def test_context_ranks_pass_keys_and_values_round():
    # Keys and values of 1,024 features in 2 bytes for 4,096 tokens, 3 rings of one hop.
    row = table("fsdp2", context_parallel=2, zero_stage=3)["context", "send"]
    assert row.bytes_per_layer == 3 * 2 * 1024 * 2 * 4096


def test_context_ranks_that_exchange_heads_have_a_row_of_their_own():
    # 1,024 tokens a rank of 8,192; queries and output of 4,096 features, keys and values of 1,024, 2 bytes, twice.
    rows = table("megatron", context_parallel=8, context_all_to_all=4)
    assert rows["context", "all_to_all"].bytes_per_layer == 2 * 1024 * 2 * 2 * (4096 + 1024)
    assert rows["context", "send"].bytes_per_layer == 3 * 2 * 1024 * 2 * 1024
    assert ("context", "send") not in table("megatron", context_parallel=8, context_all_to_all=8)
