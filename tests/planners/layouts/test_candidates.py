from plimsoll.planners.layouts.candidates import candidates_from_rows, concatenate


def test_gpus_are_the_product_of_four_degrees():
    layouts = candidates_from_rows(
        [{"data_parallel": 2, "tensor_parallel": 3, "pipeline_parallel": 5, "context_parallel": 7}]
    )
    assert layouts.gpus.tolist() == [210]


def test_accumulation_follows_from_batch_replicas_and_micro_batch():
    layouts = candidates_from_rows([{"data_parallel": 4, "micro_batch_size": 2}])
    assert layouts.micro_batches(64).tolist() == [8]


def test_context_ranks_share_a_sequence():
    layouts = candidates_from_rows([{"context_parallel": 4, "micro_batch_size": 2}])
    assert layouts.local_tokens(8192).tolist() == [4096]


def test_a_layout_reads_as_clients_receive_it():
    layouts = candidates_from_rows([{"data_parallel": 8, "recompute": 2, "full_layers": 3, "offload": 1}])
    layout = layouts.layout(
        0, framework="megatron", global_batch_size=64, offload_target="cpu", pipeline_schedule="1f1b"
    )
    assert (layout.recompute, layout.recompute_layers, layout.offload) == ("full", 3, "optimizer")
    assert (layout.gpus, layout.gradient_accumulation_steps, layout.shard_group) == (8, 8, 8)


def test_concatenation_keeps_order():
    parts = [candidates_from_rows([{"data_parallel": count}]) for count in (2, 1, 4)]
    assert concatenate(parts).data_parallel.tolist() == [2, 1, 4]
