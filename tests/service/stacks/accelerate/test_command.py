from __future__ import annotations

from typing import Any

import pytest

from plimsoll.service.stacks.commands import training_launch
from plimsoll.service.workloads.commands.launches import NotRead
from tests.service.admission.reviews import a_plain_container

TRAINER = "train.py --model_name_or_path m --max_seq_length 4096 --per_device_train_batch_size 2"
MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 "
    "--micro-batch-size 1 --vocab-size 32000"
)


def request(command: str, gpus: int = 8):
    return training_launch(tuple(command.split()), gpus, a_plain_container()).request


@pytest.mark.parametrize("launcher", ["torchrun --nproc-per-node 8", "accelerate launch", "python3", "deepspeed"])
def test_the_trainers_arguments_say_the_job(launcher: str):
    read = request(f"{launcher} {TRAINER} --gradient_accumulation_steps 4 --bf16 True --gradient_checkpointing")
    # 2 sequences x 4 accumulated x 8 GPUs.
    assert read["training"] == {
        "method": "full", "precision": "bf16-mixed", "optimizer": "adamw", "sequence_length": 4096,
        "micro_batch_size": 2, "global_batch_size": 64, "recompute": "full",
    }  # fmt: skip
    assert (read["model"], read["framework"], read["layout"]["zero_stage"]) == ("m", "accelerate", 0)


@pytest.mark.parametrize(
    ("flags", "zero_stage", "framework"),
    [
        ("--use_fsdp", 3, "accelerate"),
        ("--fsdp_sharding_strategy SHARD_GRAD_OP", 2, "accelerate"),
        ("--fsdp_sharding_strategy 1", 3, "accelerate"),
        ("--use_deepspeed", 2, "deepspeed"),
        ("--use_deepspeed --zero_stage 3", 3, "deepspeed"),
    ],
)
def test_the_launchers_sharding_is_a_zero_stage(flags: str, zero_stage: int, framework: str):
    read = request(f"accelerate launch {flags} {TRAINER}")
    assert (read["layout"]["zero_stage"], read["framework"]) == (zero_stage, framework)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("huggingface/transformers-pytorch-gpu:4.48.0", "4.48"),
        ("docker.io/huggingface/transformers-pytorch-gpu:5.1", "5.1"),
        ("huggingface/transformers-pytorch-gpu:latest", None),
        ("huggingface/transformers-pytorch-gpu:4.12.3", None),  # none that is planned
        ("mirror/other-transformers:4.48.0", None),
    ],
)
def test_a_tag_of_transformers_image_says_its_version(image: str, version: str | None):
    words = tuple(f"python3 {TRAINER}".split())
    read = training_launch(words, 8, a_plain_container(image=image)).request
    assert read.get("framework_version") == version
    deepspeed = training_launch((*words, "--deepspeed", "zero3.json"), 8, a_plain_container(image=image))
    assert "framework_version" not in getattr(deepspeed, "request", {})


def test_adapters_and_four_bits_are_a_method():
    read = request(f"torchrun {TRAINER} --use_peft --lora_r 8 --load_in_4bit --optim paged_adamw_8bit")
    assert (read["training"]["method"], read["training"]["lora"]) == ("qlora", {"rank": 8, "dropout": 0.05})
    assert read["training"]["optimizer"] == "paged-adamw-8bit"


@pytest.mark.parametrize(
    ("flags", "lora"),
    [
        # TRL's own default; other programs' is not counted.
        ("--use_peft", {"dropout": 0.05}),
        ("--use_peft --lora_dropout 0", {"dropout": 0.0}),
        ("--lora_enable True --lora_dropout 0.1 --lora_r 4", {"rank": 4, "dropout": 0.1}),
    ],
)
def test_the_dropout_before_adapters_is_read(flags: str, lora: dict[str, Any]):
    assert request(f"torchrun {TRAINER} {flags}")["training"]["lora"] == lora


@pytest.mark.parametrize(
    ("flags", "method"),
    [
        ("", "full"),
        ("--finetuning_type full --stage sft", "full"),
        ("--finetuning_type lora --lora_target all", "lora"),
        ("--stage sft --lora_alpha 16", "lora"),
        ("--stage sft --quantization_bit 4", "qlora"),
        ("--lora_enable True --lora_alpha 256", "lora"),
        ("--q_lora True --lora_r 8", "qlora"),
        ("--use_peft --lora_target_modules q_proj", "lora"),
    ],
)
def test_each_trainers_flags_say_what_is_trained(flags: str, method: str):
    assert request(f"torchrun {TRAINER} {flags}")["training"]["method"] == method


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("", "fp32"),
        ("--bf16", "bf16-mixed"),
        ("--bf16 --torch_dtype bfloat16", "bf16"),
        ("--dtype bfloat16", "bf16"),
        ("--bf16 --torch_dtype float32", "bf16-mixed"),
        ("--fp16 --torch_dtype float16", "fp16-mixed"),
        # DeepSpeed keeps a copy in 32 bits of whatever is loaded.
        ("--bf16 --torch_dtype bfloat16 --use_deepspeed", "bf16-mixed"),
    ],
)
def test_weights_loaded_in_16_bits_have_no_other_copy(flags: str, precision: str):
    assert request(f"accelerate launch {TRAINER} {flags}")["training"]["precision"] == precision


@pytest.mark.parametrize(
    ("command", "leaner"),
    [
        (f"torchrun {TRAINER} --bf16", {"precision": "bf16", "recompute": "full", "sequence_length": 1}),
        (f"torchrun {TRAINER}", {"precision": "bf16"}),
        (f"torchrun {TRAINER} --bf16 --dtype float32", {"precision": "bf16-mixed"}),
        (f"torchrun {TRAINER} --fp16", {"precision": "fp16-mixed"}),
        (f"accelerate launch {TRAINER} --bf16 --use_deepspeed", {"precision": "bf16-mixed"}),
        (f"torchrun {TRAINER} --gradient_checkpointing False", {"recompute": "none"}),
        (f"torchrun {TRAINER} --packing", {"sequence_length": 4096}),
        (f"torchrun {TRAINER} --auto_find_batch_size True", {"micro_batch_size": 1, "global_batch_size": 8}),
        ("torchrun run_clm.py --model_name_or_path m --block_size 1024", {"sequence_length": 1024}),
    ],
)
def test_the_leaner_job_is_what_the_command_leaves_open(command: str, leaner: dict[str, object]):
    (request,) = training_launch(tuple(command.split()), 8, a_plain_container()).leaner
    assert {name: request["training"][name] for name in leaner} == leaner


@pytest.mark.parametrize(
    ("launcher", "zero_stage"),
    [("torchrun", 0), ("accelerate launch", 3), ("accelerate launch --use_fsdp --fsdp_reshard_after_forward false", 2)],
)
def test_an_accelerate_config_of_the_images_own_may_shard(launcher: str, zero_stage: int):
    (request,) = training_launch(tuple(f"{launcher} {TRAINER}".split()), 8, a_plain_container()).leaner
    assert request["layout"]["zero_stage"] == zero_stage


@pytest.mark.parametrize("flags", [("--fsdp", "full_shard offload"), ("--use_fsdp", "--fsdp_offload_params=true")])
def test_fsdp_may_offload(flags: tuple[str, ...]):
    launch = training_launch(("accelerate", "launch", *flags, *TRAINER.split()), 8, a_plain_container())
    assert launch.request["layout"]["offload"] == "optimizer+parameters"


@pytest.mark.parametrize("flag", ["--use-precision-aware-optimizer", "--distribute-saved-activations"])
def test_megatrons_flags_that_leave_more_are_named(flag: str):
    launch = training_launch((*MEGATRON.split(), flag), 8, a_plain_container())
    assert launch.memory_saving == (flag,)


def test_megatrons_arguments_describe_model_and_layout():
    read = request(
        f"{MEGATRON} --swiglu --num-query-groups 8 --ffn-hidden-size 14336 --untie-embeddings-and-output-weights "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 "
        "--sequence-parallel --use-distributed-optimizer --recompute-granularity full --recompute-method block "
        "--recompute-num-layers 3 --bf16 --global-batch-size 128 --overlap-grad-reduce --tp-comm-overlap",
        16,
    )
    config = read["model"]["config"]
    assert (config["model_type"], config["num_key_value_heads"], config["tie_word_embeddings"]) == ("llama", 8, False)
    # 16 GPUs over 2 x 2 leave 4 replicas; 32 layers over 2 stages of chunks of 4 are 4 chunks a stage.
    assert read["layout"] == {
        "tensor_parallel": 2, "pipeline_parallel": 2, "context_parallel": 1, "expert_parallel": 1, "data_parallel": 4,
        "virtual_pipeline": 4, "pipeline_layout": "even", "sequence_parallel": True, "zero_stage": 1,
        "overlap": {"gradients": True, "parameters": False, "expert_parallel": False, "tensor_parallel": True},
    }  # fmt: skip
    # Three layers of each of the four.
    assert read["training"]["recompute"] == {"full_layers": 12}


def test_megatron_without_a_gate_is_a_gpt_and_its_batch_one_micro_batch_a_replica():
    read = request(f"{MEGATRON} --fp16", 8)
    assert read["model"]["config"]["model_type"] == "gpt2"
    assert (read["training"]["global_batch_size"], read["training"]["precision"]) == (8, "fp16-mixed")


def test_megatrons_experts_are_a_mixture():
    read = request(
        f"{MEGATRON} --swiglu --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --fp8-format e4m3"
    )
    config = read["model"]["config"]
    assert (config["model_type"], config["num_local_experts"], config["intermediate_size"]) == ("mixtral", 8, 1024)
    assert read["training"]["precision"] == "fp8-mixed"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"deepspeed {TRAINER} --deepspeed ds.json", "ds.json is not in the object"),
        (f"accelerate launch --config_file fsdp.yaml {TRAINER}", "fsdp.yaml is not in the object"),
        ("torchrun train.py --per_device_train_batch_size 1", "does not say which model"),
        (f"torchrun {TRAINER} --optim odd", "--optim odd"),
        (f"torchrun {TRAINER} --fsdp odd_shard", "strategy odd_shard"),
        (f"torchrun {TRAINER} --gradient_accumulation_steps $N", "does not resolve"),
        ("torchrun train.py --config llama.yaml", "name no model"),
        ("torchrun x.py --num-layers 32", "--hidden-size"),
        (f"torchrun {TRAINER} --freeze_backbone True", "--freeze-backbone changes what is trained"),
        (f"torchrun {TRAINER} --finetuning_type oft", "--finetuning_type oft"),
        (f"torchrun {TRAINER} --lora_r 8", "--lora_r stands without"),
        (f"torchrun {TRAINER} --load_in_8bit", "--load-in-8bit changes"),
        (f"torchrun {TRAINER} $EXTRA", "takes words from $EXTRA"),
        (f"{MEGATRON} ${{ARGS[@]}}", "takes words from ${ARGS[@]}"),
        (f"{MEGATRON} --deepspeed --zero-stage 3", "--deepspeed decides"),
        (f"{MEGATRON} --use-megatron-fsdp", "--use-megatron-fsdp decides"),
        (MEGATRON.replace("gpt", "t5"), "pretrain_t5.py decides"),
        (f"{MEGATRON} --optimizer odd", "--optimizer odd"),
        (f"{MEGATRON} --pipeline-model-parallel-size 16", "do not divide the 8 GPUs"),
        (f"{MEGATRON} --tensor-model-parallel-size 0", "do not divide the 8 GPUs"),
        (f"{MEGATRON} --seq-length x", "--seq-length is 'x'"),
    ],
)
def test_what_cannot_be_read_says_what(command: str, reason: str):
    read = training_launch(tuple(command.split()), 8, a_plain_container())
    assert isinstance(read, NotRead)
    assert reason in read.reason


@pytest.mark.parametrize("launcher", ["torchrun $ARGS", "torchrun --nproc_per_node 8"])
def test_what_stands_before_the_script_is_its_launchers(launcher: str):
    assert request(f"{launcher} {TRAINER}")["model"] == "m"


@pytest.mark.parametrize("command", ["python prepare.py", "sleep 1", "nvidia-smi", "python -m http.server"])
def test_other_commands_train_nothing(command: str):
    assert training_launch(tuple(command.split()), 8, a_plain_container()) is None
