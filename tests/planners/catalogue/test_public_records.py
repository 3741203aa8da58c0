"""Every model whose dimensions other public planners and trainers hold in their files can be named here."""

from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import UnknownModel

# The names of the records read in files of aiconfigurator, litgpt, NeMo, llm-analysis, SimuMax and calculon.
RECORDED = """
01-ai/Yi-34B allenai/OLMo-1B-hf allenai/OLMo-2-1124-13B allenai/OLMo-2-1124-13B-DPO
allenai/OLMo-2-1124-13B-Instruct allenai/OLMo-2-1124-13B-SFT allenai/OLMo-2-1124-7B allenai/OLMo-2-1124-7B-DPO
allenai/OLMo-2-1124-7B-Instruct allenai/OLMo-2-1124-7B-SFT allenai/OLMo-7B-hf allenai/OLMo-7B-Instruct-hf
BAAI/Aquila2-34B BAAI/Aquila2-70B BAAI/Aquila2-7B baichuan-inc/Baichuan2-7B-Base bigcode/santacoder
bigcode/starcoder bigcode/starcoder2-15b bigcode/starcoder2-3b bigcode/starcoder2-7b bigscience/bloom
bigscience/bloom-560m bigscience/bloom-7b1 BSC-LT/salamandra-2b BSC-LT/salamandra-2b-instruct BSC-LT/salamandra-7b
BSC-LT/salamandra-7b-instruct codellama/CodeLlama-13b-hf codellama/CodeLlama-13b-Instruct-hf
codellama/CodeLlama-13b-Python-hf codellama/CodeLlama-34b-hf codellama/CodeLlama-34b-Instruct-hf
codellama/CodeLlama-34b-Python-hf codellama/CodeLlama-70b-hf codellama/CodeLlama-70b-Instruct-hf
codellama/CodeLlama-70b-Python-hf codellama/CodeLlama-7b-hf codellama/CodeLlama-7b-Instruct-hf
codellama/CodeLlama-7b-Python-hf deepseek-ai/deepseek-moe-16b-base deepseek-ai/DeepSeek-R1
deepseek-ai/DeepSeek-R1-Distill-Llama-70B deepseek-ai/DeepSeek-R1-Distill-Llama-8B deepseek-ai/DeepSeek-V2
deepseek-ai/DeepSeek-V2-Lite deepseek-ai/DeepSeek-V3 deepseek-ai/DeepSeek-V3.2 deepseek-ai/DeepSeek-V4-Flash
deepseek-ai/DeepSeek-V4-Pro EleutherAI/gpt-j-6b EleutherAI/gpt-neo-1.3B EleutherAI/gpt-neo-2.7B
EleutherAI/pythia-1.4b EleutherAI/pythia-1.4b-deduped EleutherAI/pythia-12b EleutherAI/pythia-12b-deduped
EleutherAI/pythia-14m EleutherAI/pythia-160m EleutherAI/pythia-160m-deduped EleutherAI/pythia-1b
EleutherAI/pythia-1b-deduped EleutherAI/pythia-2.8b EleutherAI/pythia-2.8b-deduped EleutherAI/pythia-31m
EleutherAI/pythia-410m EleutherAI/pythia-410m-deduped EleutherAI/pythia-6.9b EleutherAI/pythia-6.9b-deduped
EleutherAI/pythia-70m EleutherAI/pythia-70m-deduped facebook/opt-1.3b facebook/opt-125m facebook/opt-13b
facebook/opt-175b facebook/opt-350m facebook/opt-6.7b facebook/opt-66b google/codegemma-7b-it google/gemma-2-27b
google/gemma-2-27b-it google/gemma-2-2b google/gemma-2-2b-it google/gemma-2-9b google/gemma-2-9b-it
google/gemma-2b google/gemma-2b-it google/gemma-3-12b-it google/gemma-3-1b-it google/gemma-3-27b-it
google/gemma-3-4b-it google/gemma-4-26B-A4B google/gemma-7b google/gemma-7b-it gpt-3-13b gpt-3-175b
HuggingFaceTB/SmolLM2-1.7B HuggingFaceTB/SmolLM2-1.7B-Instruct HuggingFaceTB/SmolLM2-135M
HuggingFaceTB/SmolLM2-135M-Instruct HuggingFaceTB/SmolLM2-360M HuggingFaceTB/SmolLM2-360M-Instruct
inclusionAI/Ling-1T keeeeenw/MicroLlama kimi-1t llama-1-13b llama-1-30b llama-1-33b llama-1-65b llama-1-7b
megatron-1t megatron-22b megatron-lm-175b meta-llama/Llama-2-13b-chat-hf meta-llama/Llama-2-13b-hf
meta-llama/Llama-2-70b-chat-hf meta-llama/Llama-2-70b-hf meta-llama/Llama-2-7b-chat-hf meta-llama/Llama-2-7b-hf
meta-llama/Llama-3.1-70B-Instruct meta-llama/Llama-3.1-8B-Instruct meta-llama/Llama-3.2-1B
meta-llama/Llama-3.2-1B-Instruct meta-llama/Llama-3.2-3B meta-llama/Llama-3.2-3B-Instruct
meta-llama/Llama-3.3-70B-Instruct meta-llama/Llama-4-Maverick-17B-128E-Instruct
meta-llama/Llama-4-Scout-17B-16E-Instruct meta-llama/Meta-Llama-3-70B meta-llama/Meta-Llama-3-70B-Instruct
meta-llama/Meta-Llama-3-8B meta-llama/Meta-Llama-3-8B-Instruct meta-llama/Meta-Llama-3.1-405B
meta-llama/Meta-Llama-3.1-405B-Instruct meta-llama/Meta-Llama-3.1-70B meta-llama/Meta-Llama-3.1-70B-Instruct
meta-llama/Meta-Llama-3.1-8B meta-llama/Meta-Llama-3.1-8B-Instruct microsoft/phi-1_5 microsoft/phi-2
microsoft/Phi-3-mini-128k-instruct microsoft/Phi-3-mini-4k-instruct microsoft/Phi-3.5-mini-instruct
microsoft/phi-4 microsoft/Phi-4-mini-instruct microsoft/Phi-4-mini-reasoning microsoft/Phi-4-reasoning
microsoft/Phi-4-reasoning-plus MiniMaxAI/MiniMax-M2.5 MiniMaxAI/MiniMax-M2.7 MiniMaxAI/MiniMax-M3
mistralai/Mistral-7B-Instruct-v0.1 mistralai/Mistral-7B-Instruct-v0.2 mistralai/Mistral-7B-Instruct-v0.3
mistralai/Mistral-7B-v0.1 mistralai/Mistral-7B-v0.3 mistralai/Mistral-Large-Instruct-2407
mistralai/Mistral-Large-Instruct-2411 mistralai/Mistral-Nemo-Instruct-2407 mistralai/Mixtral-8x22B-Instruct-v0.1
mistralai/Mixtral-8x22B-v0.1 mistralai/Mixtral-8x7B-Instruct-v0.1 mistralai/Mixtral-8x7B-v0.1
moonshotai/Kimi-K2-Instruct moonshotai/Kimi-K2.5 mt-nlg-530b nvidia/DeepSeek-V3.1-NVFP4 nvidia/DeepSeek-V3.2-NVFP4
nvidia/DeepSeek-V4-Flash-NVFP4 nvidia/DeepSeek-V4-Pro-NVFP4 nvidia/Gemma-4-26B-A4B-NVFP4
nvidia/Gemma-4-31B-IT-NVFP4 nvidia/GLM-5-NVFP4 nvidia/GLM-5.1-NVFP4 nvidia/GLM-5.2-NVFP4 nvidia/GLM-5.3-NVFP4
nvidia/Kimi-K2.5-NVFP4 nvidia/Kimi-K2.6-NVFP4 nvidia/Kimi-K2.7-Code-NVFP4 nvidia/Llama-3.1-70B-Instruct-FP8
nvidia/Llama-3.1-Nemotron-70B-Instruct-HF nvidia/Llama-3_3-Nemotron-Super-49B-v1 nvidia/MiniMax-M2.5-NVFP4
nvidia/MiniMax-M2.7-NVFP4 nvidia/MiniMax-M3-NVFP4 nvidia/nemotron-3-22b nvidia/nemotron-4-15b
nvidia/Nemotron-4-340B-Base nvidia/Nemotron-H-56B-Base-8K nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16
nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8
nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16
nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8 nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4
nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4 nvidia/Qwen3-235B-A22B-NVFP4 nvidia/Qwen3.5-122B-A10B-NVFP4
nvidia/Qwen3.5-397B-A17B-NVFP4 nvidia/Qwen3.6-27B-NVFP4 nvidia/Qwen3.6-35B-A3B-NVFP4 openai-community/gpt2
openai-community/gpt2-large openai-community/gpt2-medium openai-community/gpt2-xl openai/gpt-oss-120b
openai/gpt-oss-20b openlm-research/open_llama_13b openlm-research/open_llama_3b openlm-research/open_llama_7b
palm-540b Qwen/Qwen2-0.5B Qwen/Qwen2-1.5B Qwen/Qwen2-72B Qwen/Qwen2-7B Qwen/Qwen2.5-0.5B
Qwen/Qwen2.5-0.5B-Instruct Qwen/Qwen2.5-1.5B Qwen/Qwen2.5-1.5B-Instruct Qwen/Qwen2.5-14B Qwen/Qwen2.5-14B-Instruct
Qwen/Qwen2.5-14B-Instruct-1M Qwen/Qwen2.5-32B Qwen/Qwen2.5-32B-Instruct Qwen/Qwen2.5-3B Qwen/Qwen2.5-3B-Instruct
Qwen/Qwen2.5-72B Qwen/Qwen2.5-72B-Instruct Qwen/Qwen2.5-7B Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-7B-Instruct-1M
Qwen/Qwen2.5-Coder-0.5B Qwen/Qwen2.5-Coder-0.5B-Instruct Qwen/Qwen2.5-Coder-1.5B Qwen/Qwen2.5-Coder-1.5B-Instruct
Qwen/Qwen2.5-Coder-14B Qwen/Qwen2.5-Coder-14B-Instruct Qwen/Qwen2.5-Coder-32B Qwen/Qwen2.5-Coder-32B-Instruct
Qwen/Qwen2.5-Coder-3B Qwen/Qwen2.5-Coder-3B-Instruct Qwen/Qwen2.5-Coder-7B Qwen/Qwen2.5-Coder-7B-Instruct
Qwen/Qwen2.5-Math-1.5B Qwen/Qwen2.5-Math-1.5B-Instruct Qwen/Qwen2.5-Math-72B Qwen/Qwen2.5-Math-72B-Instruct
Qwen/Qwen2.5-Math-7B Qwen/Qwen2.5-Math-7B-Instruct Qwen/Qwen3-0.6B Qwen/Qwen3-0.6B-Base Qwen/Qwen3-1.7B
Qwen/Qwen3-1.7B-Base Qwen/Qwen3-14B Qwen/Qwen3-14B-Base Qwen/Qwen3-235B-A22B Qwen/Qwen3-235B-A22B-FP8
Qwen/Qwen3-235B-A22B-Instruct-2507 Qwen/Qwen3-235B-A22B-Thinking-2507 Qwen/Qwen3-30B-A3B Qwen/Qwen3-30B-A3B-Base
Qwen/Qwen3-30B-A3B-FP8 Qwen/Qwen3-30B-A3B-Instruct-2507 Qwen/Qwen3-30B-A3B-Thinking-2507 Qwen/Qwen3-32B
Qwen/Qwen3-32B-FP8 Qwen/Qwen3-32B-FP8-Static-PerTensor Qwen/Qwen3-4B Qwen/Qwen3-4B-Base
Qwen/Qwen3-4B-Instruct-2507 Qwen/Qwen3-4B-Thinking-2507 Qwen/Qwen3-8B Qwen/Qwen3-8B-Base
Qwen/Qwen3-Coder-480B-A35B-Instruct Qwen/Qwen3-VL-235B-A22B-Instruct Qwen/Qwen3-VL-2B-Instruct
Qwen/Qwen3-VL-30B-A3B-Instruct Qwen/Qwen3-VL-32B-Instruct Qwen/Qwen3-VL-32B-Thinking Qwen/Qwen3-VL-4B-Instruct
Qwen/Qwen3-VL-8B-Instruct Qwen/Qwen3.5-122B-A10B Qwen/Qwen3.5-27B Qwen/Qwen3.5-35B-A3B Qwen/Qwen3.5-397B-A17B
Qwen/QwQ-32B Qwen/QwQ-32B-Preview RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic
sgl-project/DeepSeek-V4-Flash-FP8 sgl-project/DeepSeek-V4-Pro-FP8 stabilityai/stablelm-3b-4e1t
stabilityai/stablelm-base-alpha-3b stabilityai/stablelm-base-alpha-7b stabilityai/stablelm-tuned-alpha-3b
stabilityai/stablelm-tuned-alpha-7b stabilityai/stablelm-zephyr-3b stepfun-ai/Step-3.7-Flash
stepfun-ai/Step-3.7-Flash-FP8 THUDM/chatglm-6b THUDM/chatglm2-6b THUDM/chatglm3-6b tiiuae/falcon-180B
tiiuae/falcon-180B-chat tiiuae/falcon-40b tiiuae/falcon-40b-instruct tiiuae/falcon-7b tiiuae/falcon-7b-instruct
TinyLlama/TinyLlama-1.1B-Chat-v1.0 TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T
Trelis/Llama-2-7b-chat-hf-function-calling-v2 turing-530b unsloth/Mistral-7B-v0.2 XiaomiMiMo/MiMo-7B-Base
XiaomiMiMo/MiMo-V2-Flash zai-org/GLM-5 zai-org/GLM-5-FP8 zai-org/GLM-5.1 zai-org/GLM-5.1-FP8 zai-org/GLM-5.2
zai-org/GLM-5.2-FP8 zai-org/GLM-5.3 zai-org/GLM-5.3-FP8
"""
NAMES = RECORDED.split()
# Not described: dimensions alone do not say what these papers' layers hold (relative positions, gates of their own),
# Kimi K3 mixes residuals over blocks of layers, Gemma 4's small models hear with a tower that is not described, LFM2
# mixes tokens with short convolutions, and NeMo's class Llama4Config is no model.
NOT_DESCRIBED = (
    "gopher-280b", "chinchilla-70b", "lamda-137b", "anthropic-52b", "moonshotai/Kimi-K3", "google/gemma-4-E2B-it",
    "google/gemma-4-E4B-it", "LiquidAI/LFM2-1.2B", "zai-org/GLM-4.5V", "llama4",
)  # fmt: skip


def test_every_recorded_name_finds_its_model() -> None:
    assert len(NAMES) >= 300
    known = catalogue()
    unknown = []
    for name in NAMES:
        try:
            known.model(name)
        except UnknownModel:
            unknown.append(name)
    assert unknown == []


@pytest.mark.parametrize("name", NOT_DESCRIBED)
def test_what_cannot_be_described_exactly_is_not_listed(name: str) -> None:
    with pytest.raises(UnknownModel):
        catalogue().model(name)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # Brown et al. 2020, arXiv:2005.14165, table D.1: 174,600 million.
        ("gpt-3-175b", 174.6),
        # Korthikanti et al. 2022, arXiv:2205.05198, table 3, counts 22, 175, 530 and 1,000 billion; Narayanan et al.
        # 2021, arXiv:2104.04473, table 1, 1,008.0; Smith et al. 2022, arXiv:2201.11990, 530.
        ("megatron-22b", 22.1),
        ("mt-nlg-530b", 529.6),
        ("megatron-1t", 1008.0),
        # Chowdhery et al. 2022, arXiv:2204.02311, table 1: 540.35.
        ("palm-540b", 540.4),
        # Parmar et al. 2024, arXiv:2402.16819, section 2: 3.2 of embeddings and 12.5 of the rest.
        ("nemotron-4-15b", 15.6),
        # Adler et al. 2024, arXiv:2406.11704, section 2.1: 9.4 of embeddings and 331.6 of the rest.
        ("nemotron-4-340b", 341.0),
    ],
)
def test_a_papers_model_has_the_papers_size(name: str, billions: float) -> None:
    model = catalogue().model(name)
    assert round(describe_config(model.config, name=name).parameters / 1e9, 1) == billions


@pytest.mark.parametrize(
    ("name", "text", "tower"),
    [
        # Summed over the published safetensors' headers, in a survey of 2026-08-02; multi-token layers apart.
        ("qwen3.5-0.8b", 752_393_024, 100_592_896),
        ("qwen3.5-2b", 1_881_825_088, 331_416_576),
        ("qwen3.5-4b", 4_205_751_296, 333_514_240),
        ("qwen3.5-9b", 8_953_803_264, 456_010_480),
    ],
)
def test_a_small_qwen_3_5_is_its_published_text_model_and_tower(name: str, text: int, tower: int) -> None:
    assert describe_config(catalogue().model(name).config, name=name).parameters == text + tower


@pytest.mark.parametrize(
    ("name", "published", "layers"),
    [
        # Totals of a public list of the hub's models. Beside GLM-4.6 stands one multi-token layer of 3,988,069,792: an
        # ordinary one, 3,935,625,632 (attention 136,329,472 with 256 of norms, router 819,360, 161 experts of
        # 3 x 5,120 x 1,536, norms 10,240), a projection of 2 x 5,120 x 5,120 and three norms.
        ("glm-4.6", 356_785_898_816, 3_988_069_792),
        # GLM-4.7's has an embedding and a head of 151,552 x 5,120 as well.
        ("glm-4.7", 358_337_791_296, 3_988_069_792 + 2 * 151_552 * 5_120),
    ],
)
def test_a_glm_is_published_with_its_multi_token_layer(name: str, published: int, layers: int) -> None:
    assert describe_config(catalogue().model(name).config, name=name).parameters == published - layers
