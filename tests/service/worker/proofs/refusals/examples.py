"""For every rule a job that breaks it before any other, and one beside it that breaks none."""

from dataclasses import dataclass, field, replace

from plimsoll.planners.plans import HiddenTraffic
from plimsoll.planners.questions import Evaluation, Lora
from plimsoll.service.worker.jobs.rule import Rule
from plimsoll.service.worker.proofs.refusals import (
    adapters,
    companions,
    devices,
    evaluations,
    families,
    kernels,
    ranks,
    requests,
    sharding,
    stacks,
)
from plimsoll.service.worker.stacks.accelerate import rules as of_accelerate
from plimsoll.service.worker.stacks.deepspeed import rules as of_deepspeed
from plimsoll.service.worker.stacks.fsdp2 import rules as of_fsdp2
from plimsoll.service.worker.stacks.megatron import rules as of_megatron
from plimsoll.service.worker.stacks.torchtune import rules as of_torchtune
from tests.service.worker.cases import LATENT, config

MIXTRAL = config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
MEGATRON = {"framework": "megatron", "zero_stage": 1}
NORMS = {"recompute": "selective", "recompute_modules": ("layernorm",)}
SPLIT = {"tensor_parallel": 2, "sequence_parallel": True}
PARTS_ON_HOST = {"activation_offload": True, "offload_modules": ("core_attn",)}
PAIRED = HiddenTraffic(gradients=True, parameters=True, tensor_parallel=True, expert_parallel=True)
ALONE = replace(PAIRED, expert_parallel=False)
TWO_STAGES = {"pipeline_parallel": 2, "multi_token_prediction": 1, "accumulation_steps": 2}
THREE_STAGES = TWO_STAGES | {"pipeline_parallel": 3, "virtual_pipeline": 2, "config": config(num_hidden_layers=4)}
DEALT = {"framework": "fsdp2", "config": MIXTRAL, "expert_parallel": 2}


@dataclass(frozen=True, kw_only=True)
class Example:
    """Changes to the small job that break a rule, at which field, and changes that do not."""

    rule: Rule
    pointer: str
    broken: dict[str, object]
    obeyed: dict[str, object] = field(default_factory=dict)


def _of_request(pointer: str, broken: dict[str, object], obeyed: dict[str, object] | None = None) -> Example:
    """Return an example of the rule of requests that always points at this field."""
    (rule,) = [rule for rule in requests.RULES if rule.pointer == pointer]
    return Example(rule=rule, pointer=pointer, broken=broken, obeyed=obeyed or {})


OF_REQUESTS = (
    _of_request("/training/lora/modules_to_save", {"training": {"lora": {"modules_to_save": ["lm_head"]}}}),
    _of_request("/training/lora/base_dtype", {"training": {"lora": {"base_dtype": "bf16"}}}),
    Example(
        rule=requests.EVERY_PART_IS_READ,
        pointer="/training/packing",
        broken={"training": {"packing": True}},
        obeyed={"training": {"packing": None}},
    ),
    Example(
        rule=requests.OFFLOAD_MOVES_EVERY_STATE,
        pointer="/layout/offload",
        broken={"offload": "optimizer"},
        obeyed={"offload": "optimizer+parameters"},
    ),
    Example(
        rule=requests.GRADIENTS_HAVE_THE_STACKS_FORMAT,
        pointer="/training/gradient_dtype",
        broken={"gradient_dtype": "fp32"},
        obeyed={"framework": "deepspeed", "zero_stage": 2, "gradient_dtype": "fp32"},
    ),
    Example(
        rule=requests.EXPERTS_GET_EQUAL_SHARES,
        pointer="/training/expert_imbalance",
        broken={"training": {"expert_imbalance": 1.5}},
        obeyed={"training": {"expert_imbalance": 1.0}},
    ),
    Example(
        rule=requests.GRADIENTS_ARE_NOT_COMPRESSED,
        pointer="/training/gradient_compression",
        broken={"training": {"gradient_compression": "bf16"}},
        obeyed={"training": {"gradient_compression": "none"}},
    ),
    _of_request(
        "/training/optimizer_state_dtype",
        {"training": {"optimizer_state_dtype": "bf16"}},
        {"training": {"optimizer_state_dtype": None}},
    ),
    Example(
        rule=requests.FAMILY_IS_TRACED,
        pointer="/model/config/model_type",
        broken={"config": config(model_type="t5")},
        obeyed={"config": config(model_type="qwen2")},
    ),
    _of_request("/training/method", {"method": "prefix-tuning"}, {"method": "lora"}),
    _of_request("/training/precision", {"precision": "int8-mixed"}, {"precision": "tf32"}),
    _of_request("/training/optimizer", {"optimizer": "sophia"}, {"optimizer": "lion"}),
    _of_request("/training/attention", {"attention": "linear"}, {"attention": "eager"}),
    _of_request("/training/kernels", {"kernels": "compiled"}, {"framework": "fsdp2", "kernels": "eager"}),
    _of_request("/layout/recompute", {"recompute": "sometimes"}, {"recompute": "full"}),
    _of_request("/layout/pipeline_schedule", {"pipeline_schedule": "pipedream"}, {"pipeline_schedule": "gpipe"}),
    _of_request("/layout/zero_stage", {"zero_stage": 4}, {"zero_stage": 2}),
    Example(
        rule=requests.GPIPE_HAS_ONE_CHUNK,
        pointer="/layout/virtual_pipeline",
        broken={"pipeline_schedule": "gpipe", "virtual_pipeline": 2},
        obeyed={"virtual_pipeline": 2},
    ),
    Example(
        rule=requests.MODULES_ARE_RECOMPUTED,
        pointer="/training/recompute/modules",
        broken={"recompute_modules": ("mlp", "moe")},
        obeyed={**MEGATRON, "config": MIXTRAL, "recompute_modules": ("moe", "moe_act", "layernorm")},
    ),
    Example(
        rule=requests.PIPELINE_HAS_ITS_OWN_HEAD,
        pointer="/layout/pipeline_parallel",
        broken={"pipeline_parallel": 2, "config": config(tie_word_embeddings=True)},
        obeyed={**MEGATRON, "pipeline_parallel": 2, "config": config(tie_word_embeddings=True)},
    ),
    Example(  # two key-value heads
        rule=requests.LENGTHS_DIVIDE,
        pointer="/layout/tensor_parallel",
        broken={"tensor_parallel": 4},
        obeyed={**MEGATRON, "tensor_parallel": 4},
    ),
    Example(
        rule=requests.SEQUENCE_DIVIDES,
        pointer="/layout/sequence_parallel",
        broken={**SPLIT, "sequence_length": 33},
        obeyed={"tensor_parallel": 2, "sequence_length": 33},
    ),
)
OF_STACKS = (
    Example(
        rule=stacks.STACK_IS_TRACED,
        pointer="/layout/framework",
        broken={"framework": "nanotron"},
        obeyed={"framework": "fsdp2"},
    ),
    Example(
        rule=stacks.VERSION_IS_THE_WORKER_S,
        pointer="/framework_version",
        broken={"framework": "fsdp2", "layout": {"framework_version": "2025-01"}},
        obeyed={"framework": "fsdp2", "layout": {"framework_version": "0.2.0"}},
    ),
    Example(
        rule=stacks.STACK_HAS_THE_KERNELS,
        pointer="/training/kernels",
        broken={**MEGATRON, "kernels": "eager"},
        obeyed={**MEGATRON, "kernels": "fused"},
    ),
)
OF_SHARDING = (
    Example(
        rule=sharding.FULL_SHARDING_KEEPS_NO_MAIN_GRADIENTS,
        pointer="/layout/zero_stage",
        broken={"framework": "megatron", "zero_stage": 2},
        obeyed=MEGATRON,
    ),
    Example(
        rule=sharding.STAGE_ONE_KEEPS_MASTER_WEIGHTS,
        pointer="/layout/zero_stage",
        broken={"zero_stage": 1},
        obeyed={"zero_stage": 1, "data_parallel": 1},
    ),
    Example(
        rule=sharding.SHAPES_STAY_WHOLE,
        pointer="/training/optimizer",
        broken={"optimizer": "muon"},
        obeyed={"optimizer": "muon", "zero_stage": 0},
    ),
    Example(
        rule=sharding.CHUNKS_STAY_GATHERED,
        pointer="/layout/virtual_pipeline",
        broken={"framework": "fsdp2", "pipeline_parallel": 2, "virtual_pipeline": 4},
        obeyed={"framework": "fsdp2", "pipeline_parallel": 2, "virtual_pipeline": 3},
    ),
    Example(
        rule=sharding.STATES_ON_THE_HOST_ARE_SHARDS,
        pointer="/layout/offload",
        broken={"offload": "optimizer+parameters", "method": "qlora"},
        obeyed={"offload": "optimizer+parameters"},
    ),
)
OF_FAMILIES = (
    Example(
        rule=families.LATENTS_ARE_NOT_FUSED,
        pointer="/layout/framework",
        broken={**MEGATRON, "config": LATENT, "attention": "eager"},
        obeyed={**MEGATRON, "config": LATENT},
    ),
    Example(
        rule=families.LATENTS_ARE_SPLIT_BY_HEAD,
        pointer="/layout/tensor_parallel",
        broken={**SPLIT, "config": LATENT},
        obeyed={**SPLIT, "framework": "fsdp2", "config": LATENT},
    ),
    Example(
        rule=families.LATENTS_ARE_NOT_SPLIT_BESIDE_EXPERTS,
        pointer="/layout/expert_parallel",
        broken={**SPLIT, "framework": "fsdp2", "config": LATENT, "expert_parallel": 2},
        obeyed={"framework": "fsdp2", "config": LATENT, "expert_parallel": 2},
    ),
    Example(
        rule=families.MATRICES_ARE_KNOWN,
        pointer="/layout/tensor_parallel",
        broken={"tensor_parallel": 2, "config": config(model_type="phi3")},
        obeyed={"config": config(model_type="phi3")},
    ),
    Example(
        rule=families.OTHER_PARTS_ARE_WHOLE,
        pointer="/layout/pipeline_parallel",
        broken={"pipeline_parallel": 2, "config": config(model_type="gpt_neox")},
        obeyed={"config": config(model_type="gpt_neox")},
    ),
    Example(
        rule=families.TRANSPOSED_MATRICES_HAVE_16_BITS,
        pointer="/training/method",
        broken={"method": "qlora", "config": config(model_type="gpt2")},
        obeyed={"method": "lora", "config": config(model_type="gpt2")},
    ),
    Example(
        rule=families.EXPERTS_ARE_NOT_CAST,
        pointer="/layout/zero_stage",
        broken={"framework": "ddp", "zero_stage": 0, "config": MIXTRAL},
        obeyed={"framework": "ddp", "zero_stage": 0, "config": MIXTRAL, "precision": "bf16"},
    ),
    Example(  # 180 numbers of 2 bytes are 22.5 times 16, of 4 bytes 45 times
        rule=families.EXPERTS_START_ON_16_BYTES,
        pointer="/model/config",
        broken={"config": MIXTRAL | {"intermediate_size": 180}},
        obeyed={"config": MIXTRAL | {"intermediate_size": 180}, "precision": "fp32"},
    ),
)
OF_ADAPTERS = (
    Example(
        rule=adapters.STACK_TRAINS_ADAPTERS,
        pointer="/training/method",
        broken={"framework": "fsdp2", "method": "lora"},
        obeyed={"method": "lora"},
    ),
    Example(
        rule=adapters.PACKED_MATRICES_ARE_NOT_SPLIT,
        pointer="/layout/tensor_parallel",
        broken={"method": "qlora", "tensor_parallel": 2},
        obeyed={"method": "lora", "tensor_parallel": 2},
    ),
    Example(
        rule=adapters.ADAPTERS_ARE_IN_LAYERS,
        pointer="/training/lora/target_modules",
        broken={"method": "lora", "lora": Lora(target_modules=("model.embed_tokens",))},
        obeyed={"method": "lora", "lora": Lora(target_modules=("q_proj",))},
    ),
    Example(
        rule=adapters.EXPERTS_HAVE_NO_ADAPTERS,
        pointer="/training/lora/target_modules",
        broken={"method": "lora", "config": MIXTRAL, "lora": Lora(target_modules=("q_proj", "w1"))},
        obeyed={"method": "lora", "config": MIXTRAL, "lora": Lora(target_modules=("q_proj",))},
    ),
)
OF_RANKS = (
    Example(
        rule=ranks.EXPERTS_ARE_DEALT_OVER_SHARDS,
        pointer="/layout/expert_parallel",
        broken={**DEALT, "shard_group": 2},
        obeyed=DEALT,
    ),
    Example(
        rule=ranks.SEQUENCES_GO_ROUND_A_RING,
        pointer="/layout/context_parallel",
        broken={"framework": "fsdp2", "context_parallel": 2, "attention": "eager"},
        obeyed={"framework": "fsdp2", "context_parallel": 2},
    ),
)
OF_KERNELS = (
    Example(
        rule=kernels.FUSED_LOSS_SEES_THE_VOCABULARY,
        pointer="/layout/fused_cross_entropy",
        broken={"fused_cross_entropy": True, "tensor_parallel": 2},
        obeyed={"fused_cross_entropy": True},
    ),
    Example(
        rule=kernels.FUSED_LOSS_KNOWS_THE_FAMILY,
        pointer="/layout/fused_cross_entropy",
        broken={"fused_cross_entropy": True, "config": config(model_type="granite")},
        obeyed={"config": config(model_type="granite")},
    ),
    Example(
        rule=kernels.LIGER_KNOWS_THE_FAMILY,
        pointer="/training/kernels",
        broken={"kernels": "fused", "config": config(model_type="starcoder2")},
        obeyed={"config": config(model_type="starcoder2")},
    ),
    Example(
        rule=kernels.LIGER_RUNS_OVER_DATA_PARALLEL_RANKS,
        pointer="/training/kernels",
        broken={"framework": "fsdp2", "kernels": "fused", "tensor_parallel": 2},
        obeyed={"framework": "fsdp2", "kernels": "fused"},
    ),
    Example(
        rule=kernels.LIGER_ROTATES_ONCE,
        pointer="/layout/recompute",
        broken={"framework": "fsdp2", "kernels": "fused", "recompute": "selective"},
        obeyed={"kernels": "fused", "recompute": "selective"},
    ),
    Example(
        rule=kernels.STACK_CASTS_PRODUCTS,
        pointer="/training/precision",
        broken={"framework": "ddp", "zero_stage": 0, "precision": "fp8-mixed"},
        obeyed={"framework": "fsdp2", "precision": "fp8-mixed"},
    ),
)
FP8 = {"framework": "fsdp2", "precision": "fp8-mixed"}
TORCHTUNE = {"framework": "torchtune", "precision": "bf16"}
OF_STACKS_THEMSELVES = (
    Example(
        rule=of_fsdp2.SPLIT_PRODUCTS_HAVE_WHOLE_MULTIPLES,
        pointer="/layout/tensor_parallel",
        broken={**FP8, "tensor_parallel": 2},  # 88 features of 176 on each rank
        obeyed={**FP8, "tensor_parallel": 2, "config": config(intermediate_size=128)},
    ),
    Example(
        rule=of_fsdp2.PRODUCTS_ARE_NOT_EXPERTS,
        pointer="/training/precision",
        broken={**FP8, "config": MIXTRAL},
        obeyed={"framework": "fsdp2", "config": MIXTRAL},
    ),
    Example(
        rule=of_megatron.PRODUCTS_IN_FP8_ARE_TRANSFORMER_ENGINE_S,
        pointer="/training/precision",
        broken={**MEGATRON, "precision": "fp8-mixed"},
        obeyed=MEGATRON,
    ),
    Example(
        rule=of_megatron.MULTI_TOKEN_PREDICTION_IS_MEGATRON_CORES,
        pointer="/training/multi_token_prediction",
        broken={**MEGATRON, "config": config(attention_bias=True), "multi_token_prediction": 1},
        obeyed={**MEGATRON, "multi_token_prediction": 1},
    ),
    Example(
        rule=of_megatron.MULTI_TOKEN_PREDICTION_STANDS_BY_THE_HEAD,
        pointer="/layout/pipeline_layout",
        broken={**MEGATRON, **THREE_STAGES, "pipeline_layout": "Et|t|t|t|m|L"},
        obeyed={**MEGATRON, **THREE_STAGES, "pipeline_layout": "E|t|t|t|t|mL"},
    ),
    Example(
        rule=of_megatron.MUON_IS_MEGATRON_CORES,
        pointer="/training/optimizer",
        broken={**MEGATRON, "config": config(attention_bias=True), "optimizer": "muon"},
        obeyed={**MEGATRON, "optimizer": "muon"},
    ),
    Example(
        rule=of_megatron.SHARED_BUFFERS_ARE_TRANSFORMER_ENGINE_S,
        pointer="/layout/overlap/tensor_parallel",
        broken={**MEGATRON, **SPLIT, "overlap": PAIRED, "asks_tensor_overlap": True},
        obeyed={**MEGATRON, **SPLIT, "overlap": PAIRED},
    ),
    Example(
        rule=of_megatron.EXCHANGED_HEADS_ARE_TRANSFORMER_ENGINE_S,
        pointer="/layout/context_all_to_all",
        broken={**MEGATRON, "context_parallel": 4, "context_all_to_all": 2},
        obeyed={**MEGATRON, "context_parallel": 4},
    ),
    Example(
        rule=of_megatron.PAIRED_PASSES_ARE_MEGATRON_CORES,
        pointer="/layout/overlap/expert_parallel",
        broken={**MEGATRON, "overlap": PAIRED, "config": MIXTRAL | {"attention_bias": True}, "expert_parallel": 2},
        obeyed={**MEGATRON, "overlap": PAIRED, "config": MIXTRAL, "expert_parallel": 2},
    ),
    Example(
        rule=of_megatron.OFFLOADED_PARTS_ARE_MEGATRON_CORES,
        pointer="/layout/activation_offload",
        broken={**MEGATRON, **PARTS_ON_HOST, "config": config(attention_bias=True)},
        obeyed={**MEGATRON, **PARTS_ON_HOST},
    ),
    Example(
        rule=of_megatron.OFFLOADED_LAYERS_ARE_TRANSFORMER_ENGINE_S,
        pointer="/layout/activation_offload",
        broken={**MEGATRON, "activation_offload": True, "offload_layers": 2},
        obeyed={**MEGATRON, **PARTS_ON_HOST},
    ),
    Example(
        rule=of_megatron.PAIRED_EXPERTS_ARE_SEVERAL,
        pointer="/layout/overlap/expert_parallel",
        broken={**MEGATRON, "overlap": PAIRED, "config": MIXTRAL, "expert_parallel": 4},
        obeyed={**MEGATRON, "overlap": ALONE, "config": MIXTRAL, "expert_parallel": 4},
    ),
    Example(
        rule=of_megatron.NORMS_ARE_NOT_RECOMPUTED_SPLIT,
        pointer="/layout/sequence_parallel",
        broken={**MEGATRON, **SPLIT, **NORMS, "config": config(attention_bias=True)},
        obeyed={**MEGATRON, **SPLIT, **NORMS},
    ),
    Example(
        rule=of_megatron.DIVIDED_STATES_ARE_ADAM_S,
        pointer="/training/optimizer",
        broken={**MEGATRON, "optimizer": "sgd-momentum"},
        obeyed={**MEGATRON, "zero_stage": 0, "optimizer": "sgd-momentum"},
    ),
    Example(
        rule=of_megatron.STATES_ON_THE_HOST_ARE_COPIES,
        pointer="/training/precision",
        broken={**MEGATRON, "data_parallel": 1, "offload": "optimizer", "precision": "fp32"},
        obeyed={**MEGATRON, "data_parallel": 1, "offload": "optimizer"},
    ),
    Example(
        rule=of_megatron.EXPERTS_KEEP_MASTER_WEIGHTS,
        pointer="/training/precision",
        broken={"framework": "megatron", "zero_stage": 0, "config": MIXTRAL, "precision": "fp32"},
        obeyed={"framework": "megatron", "zero_stage": 0, "config": MIXTRAL},
    ),
    Example(
        rule=of_megatron.EXPERTS_NEED_A_SPLIT_SEQUENCE,
        pointer="/layout/sequence_parallel",
        broken={**MEGATRON, "config": MIXTRAL, "tensor_parallel": 2},
        obeyed={**MEGATRON, **SPLIT, "config": MIXTRAL},
    ),
    Example(
        rule=of_megatron.EXPERTS_LIE_IN_WHOLE_GROUPS,
        pointer="/layout/expert_parallel",
        broken={**MEGATRON, "config": MIXTRAL, "expert_parallel": 3},
        obeyed={**MEGATRON, "config": MIXTRAL, "expert_parallel": 2},
    ),
    Example(
        rule=of_deepspeed.PARAMETERS_HAVE_16_BITS,
        pointer="/training/precision",
        broken={"framework": "deepspeed", "precision": "fp32"},
        obeyed={"framework": "deepspeed"},
    ),
    Example(
        rule=of_deepspeed.ACTIVATIONS_STAY,
        pointer="/layout/activation_offload",
        broken={"framework": "deepspeed", "activation_offload": True},
        obeyed={"framework": "deepspeed", "offload": "optimizer+parameters"},
    ),
    Example(
        rule=of_deepspeed.GRADIENTS_HAVE_A_FORMAT_OF_ITS_OWN,
        pointer="/training/gradient_dtype",
        broken={"framework": "deepspeed", "zero_stage": 0, "gradient_dtype": "fp32"},
        obeyed={"framework": "deepspeed", "zero_stage": 0, "gradient_dtype": "bf16"},
    ),
    Example(
        rule=of_deepspeed.CONFIG_NAMES_THE_OPTIMIZER,
        pointer="/training/optimizer",
        broken={"framework": "deepspeed", "optimizer": "adafactor"},
        obeyed={"framework": "deepspeed", "optimizer": "muon"},
    ),
    Example(
        rule=of_accelerate.VERSIONS_ARE_THE_WORKER_S,
        pointer="/training/kernels",
        broken={"framework": "accelerate", "kernels": "eager"},
        obeyed={"framework": "accelerate"},
    ),
    Example(
        rule=of_torchtune.A_BUILDER_MAKES_THE_MODEL,
        pointer="/model/config/model_type",
        broken={**TORCHTUNE, "config": config(model_type="qwen3")},
        obeyed=TORCHTUNE,
    ),
    Example(
        rule=of_torchtune.WEIGHTS_HAVE_ONE_FORMAT,
        pointer="/training/precision",
        broken={**TORCHTUNE, "precision": "bf16-mixed"},
        obeyed={**TORCHTUNE, "precision": "fp32"},
    ),
    Example(
        rule=of_torchtune.ATTENTION_IS_ONE_KERNEL,
        pointer="/training/attention",
        broken={**TORCHTUNE, "attention": "eager"},
        obeyed=TORCHTUNE,
    ),
    Example(
        rule=of_torchtune.ADAPTERS_HAVE_AN_OPTION,
        pointer="/training/lora/target_modules",
        broken={**TORCHTUNE, "method": "lora", "lora": Lora(target_modules=("q_proj", "up_proj"))},
        obeyed={**TORCHTUNE, "method": "lora", "lora": Lora(target_modules=("q_proj",))},
    ),
    Example(
        rule=of_torchtune.RANKS_SHARE_THE_WEIGHTS,
        pointer="/layout",
        broken={**TORCHTUNE, "zero_stage": 0},
        obeyed={**TORCHTUNE, "zero_stage": 0, "data_parallel": 1},
    ),
)
BESIDE = {"reference": "bf16"}
OF_COMPANIONS = (
    Example(
        rule=companions.ONLY_REFERENCES,
        pointer="/training/companions",
        broken={"training": {"companions": [{"role": "reference"}, {"role": "reward"}]}},
        obeyed={"training": {"companions": [{"role": "reference"}]}},
    ),
    Example(
        rule=companions.ONE_REFERENCE,
        pointer="/training/companions",
        broken={"training": {"companions": [{"role": "reference"}, {"role": "reference"}]}},
    ),
    Example(
        rule=companions.REFERENCE_IS_LIKE_THE_POLICY,
        pointer="/training/companions",
        broken={"training": {"companions": [{"role": "reference", "model": "llama-3.1-8b"}]}},
        obeyed={"training": {"companions": [{"role": "reference", "model": None}]}},
    ),
    Example(
        rule=companions.TRL_RUNS_ON_THE_STACK,
        pointer="/training/companions",
        broken={**BESIDE, "framework": "deepspeed"},
        obeyed=BESIDE,
    ),
    Example(
        rule=companions.SEQUENCES_ARE_PAIRS,
        pointer="/layout/micro_batch_size",
        broken={**BESIDE, "micro_batch_size": 3},
        obeyed={**BESIDE, "micro_batch_size": 6},
    ),
    Example(
        rule=companions.HEAD_IS_TRLS,
        pointer="/layout/fused_cross_entropy",
        broken={**BESIDE, "fused_cross_entropy": True},
        obeyed={"fused_cross_entropy": True},
    ),
    Example(
        rule=companions.REFERENCE_IS_ON_THE_DEVICE,
        pointer="/layout/offload",
        broken={**BESIDE, "offload": "optimizer+parameters"},
        obeyed=BESIDE,
    ),
    Example(
        rule=companions.LOSS_HAS_NO_ROUTING,
        pointer="/training/companions",
        broken={**BESIDE, "config": MIXTRAL},
        obeyed=BESIDE,
    ),
)
# Over four ranks two batches of four sequences.
EVALUATED = {"evaluation": Evaluation(batch_size=2, samples=16)}
OF_EVALUATIONS = (
    Example(
        rule=evaluations.TRAINER_EVALUATES,
        pointer="/training/evaluation",
        broken={**EVALUATED, "framework": "fsdp2"},
        obeyed=EVALUATED,
    ),
    Example(
        rule=evaluations.POLICY_IS_ALONE,
        pointer="/training/evaluation",
        broken={**EVALUATED, **BESIDE},
        obeyed=EVALUATED,
    ),
    Example(
        rule=evaluations.LOSS_IS_THE_MODEL_S,
        pointer="/layout/fused_cross_entropy",
        broken={**EVALUATED, "fused_cross_entropy": True},
        obeyed={"fused_cross_entropy": True},
    ),
    Example(
        rule=evaluations.BATCHES_ARE_FEW,
        pointer="/training/evaluation",
        broken={"evaluation": Evaluation(batch_size=2, samples=4 * 2 * 65, keeps_logits=True)},
        obeyed={"evaluation": Evaluation(batch_size=2, samples=4 * 2 * 65, keeps_logits=True, accumulation_steps=64)},
    ),
)
OF_DEVICES = (
    Example(
        rule=devices.ENGINE_RUNS,
        pointer="/layout/framework",
        broken={"framework": "deepspeed"},
        obeyed={"framework": "megatron", "zero_stage": 0},
    ),
    Example(
        rule=of_torchtune.RUNS_IN_A_TRACE,
        pointer="/layout/framework",
        broken=TORCHTUNE,
        obeyed={"framework": "fsdp2"},
    ),
    Example(
        rule=devices.WEIGHTS_HAVE_VALUES,
        pointer="/training/method",
        broken={"method": "qlora"},
        obeyed={"method": "lora"},
    ),
    Example(rule=devices.STATES_HAVE_VALUES, pointer="/training/optimizer", broken={"optimizer": "lion"}),
    Example(rule=devices.PRODUCTS_HAVE_VALUES, pointer="/training/precision", broken=FP8),
    Example(
        rule=devices.RECURRENCES_HAVE_KERNELS,
        pointer="/model/config/model_type",
        broken={"config": config(model_type="qwen3_5_text")},
        obeyed={"config": config(model_type="qwen3")},
    ),
    Example(
        rule=devices.NOTHING_WAITS_ON_THE_HOST,
        pointer="/layout/activation_offload",
        broken={"activation_offload": True},
    ),
    Example(rule=devices.REFERENCE_IS_TRACED, pointer="/training/companions", broken=BESIDE),
    Example(rule=devices.EVALUATIONS_ARE_TRACED, pointer="/training/evaluation", broken=EVALUATED),
    Example(
        rule=of_megatron.MULTI_TOKEN_PREDICTION_IS_TRACED,
        pointer="/training/multi_token_prediction",
        broken={**MEGATRON, "multi_token_prediction": 1},
        obeyed=MEGATRON,
    ),
    Example(
        rule=of_megatron.MUON_IS_TRACED,
        pointer="/training/optimizer",
        broken={**MEGATRON, "optimizer": "muon"},
        obeyed=MEGATRON,
    ),
    Example(
        rule=of_megatron.DESCRIBED_MODELS_ARE_TRACED,
        pointer="/model/config/model_type",
        broken={**MEGATRON, "config": LATENT},
        obeyed={**MEGATRON, "config": MIXTRAL},
    ),
    Example(
        rule=of_megatron.PAIRED_PASSES_ARE_TRACED,
        pointer="/layout/overlap/expert_parallel",
        broken={**MEGATRON, "overlap": PAIRED, "config": MIXTRAL, "expert_parallel": 2},
        obeyed={**MEGATRON, "overlap": ALONE, "config": MIXTRAL, "expert_parallel": 2},
    ),
)
OF_TRACES = (
    *OF_REQUESTS,
    *OF_STACKS,
    *OF_SHARDING,
    *OF_FAMILIES,
    *OF_ADAPTERS,
    *OF_RANKS,
    *OF_KERNELS,
    *OF_STACKS_THEMSELVES,
    *OF_COMPANIONS,
    *OF_EVALUATIONS,
)
