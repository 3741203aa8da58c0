import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.data_files import read_toml
from plimsoll.planners.operators.experts import KERNELS
from plimsoll.planners.operators.formats import FORMATS
from plimsoll.planners.operators.generations import GENERATIONS
from plimsoll.planners.serving.releases.expert_kernels import TABLE, expert_backends, expert_kernel
from plimsoll.planners.serving.releases.tables import engine_folders

CARDS = {
    "ampere": "a100-sxm-80gb",
    "ada": "l40s-48gb",
    "hopper": "h200-sxm-141gb",
    "blackwell": "b200-sxm-180gb",
    "blackwell_card": "rtx-pro-6000-server-96gb",
}
# What each engine's own source says; where it says so stands in the tables.
READ = [
    ("vllm", "0.9.2", "hopper", "fp8_block", "triton"),
    ("vllm", "0.12.0", "hopper", "fp8_block", "deepgemm"),
    ("vllm", "0.14.1", "blackwell", "fp8_block", "deepgemm"),
    ("vllm", "0.15.1", "hopper", "fp8_block", "cutlass"),
    ("vllm", "0.17.1", "hopper", "fp8_block", "triton"),
    ("vllm", "0.24.0", "hopper", "fp8", "triton"),
    ("vllm", "0.24.0", "hopper", "fp8_static", "cutlass"),
    ("vllm", "0.24.0", "blackwell", "fp8_block", "generated"),
    ("vllm", "0.12.0", "ampere", "fp8", "marlin"),
    ("vllm", "0.22.0", "hopper", "bfloat16", "cutlass"),
    ("vllm", "0.23.0", "hopper", "bfloat16", "triton"),
    ("vllm", "0.19.1", "blackwell", "bfloat16", "triton"),
    ("vllm", "0.24.0", "ada", "int4_wo", "marlin"),
    ("vllm", "0.11.0", "hopper", "w4a16_mxfp4", "triton"),
    ("vllm", "0.11.0", "blackwell_card", "w4a16_mxfp4", "triton"),
    ("vllm", "0.12.0", "blackwell_card", "w4a16_mxfp4", "marlin"),
    ("vllm", "0.14.1", "blackwell", "nvfp4", "cutlass"),
    ("vllm", "0.15.1", "blackwell", "nvfp4", "generated"),
    ("vllm", "0.24.0", "hopper", "nvfp4", "marlin"),
    ("sglang", "0.5.14", "hopper", "fp8_block", "triton"),
    ("sglang", "0.5.4", "blackwell", "fp8_block", "triton"),
    ("sglang", "0.5.5", "blackwell", "fp8_block", "generated"),
    ("sglang", "0.5.14", "blackwell_card", "w4a16_mxfp4", "marlin"),
    ("tensorrt-llm", "1.0.0", "hopper", "fp8_block", "cutlass"),
    ("tensorrt-llm", "1.2.0", "hopper", "w4a16_mxfp4", "triton"),
    ("tensorrt-llm", "1.3.0rc20", "blackwell", "fp8_block", "generated"),
    # As InferenceX's scripts have it, the default being CUTLASS.
    ("tensorrt-llm", "1.3.0rc20", "blackwell", "nvfp4", "generated"),
    ("tensorrt-llm", "1.3.0rc20", "blackwell_card", "nvfp4", "cutlass"),
]


def kernel(engine, version, card, number_format, **size):
    size = {"tokens": 16, "inner": 768, **size}
    return expert_kernel(engine, version, catalogue().gpu(CARDS[card]), number_format, **size)


@pytest.mark.parametrize(("engine", "version", "card", "number_format", "name"), READ)
def test_an_engine_runs_the_kernel_that_its_source_chooses(engine, version, card, number_format, name):
    assert kernel(engine, version, card, number_format).kernels[0] == name


@pytest.mark.parametrize("version", ["0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.1"])
def test_vllm_walks_a_tile_of_every_expert_on_hopper_for_five_releases(version):
    assert kernel("vllm", version, "hopper", "fp8_block", tokens=1).tile_rows == 128


@pytest.mark.parametrize("version", ["0.10.2", "0.15.1", "0.24.0"])
def test_vllm_takes_the_touched_experts_alone_before_and_after(version):
    assert kernel("vllm", version, "hopper", "fp8_block", tokens=1).tile_rows == 0


def test_vllm_0_11_0_walks_tiles_from_128_tokens_and_of_experts_wider_than_512():
    # _valid_deep_gemm: M >= 128 and N > 512.
    def tiles(tokens, inner):
        return kernel("vllm", "0.11.0", "hopper", "fp8_block", tokens=tokens, inner=inner).tile_rows

    assert [tiles(127, 768), tiles(128, 768), tiles(128, 512)] == [0, 128, 0]


def test_vllm_0_12_leaves_deep_gemm_to_fewer_than_8_tensor_ranks():
    assert kernel("vllm", "0.12.0", "hopper", "fp8_block", tensor_ranks=4).kernels[0] == "deepgemm"
    assert kernel("vllm", "0.12.0", "hopper", "fp8_block", tensor_ranks=8).kernels[0] == "triton"
    assert kernel("vllm", "0.11.2", "hopper", "fp8_block", tensor_ranks=8).kernels[0] == "deepgemm"


def test_without_its_package_deep_gemm_does_not_run():
    assert kernel("vllm", "0.12.0", "hopper", "fp8_block", has_deep_gemm=False).kernels[0] == "triton"


def test_vllm_prefers_cutlass_where_ranks_have_whole_experts():
    assert kernel("vllm", "0.24.0", "hopper", "fp8_block", splits_experts=True).kernels[0] == "cutlass"


def test_tensorrt_llm_runs_cutlass_in_nvfp4_where_ranks_have_requests_of_their_own():
    # InferenceX, dsr1_fp4_b200_trt.sh: MOE_BACKEND is CUTLASS with DP_ATTENTION; dsr1_fp8_b200_trt.sh: TRTLLM always.
    found = [
        kernel("tensorrt-llm", "1.2", "blackwell", name, copies_attention=copied)
        for name in ("nvfp4", "fp8_block")
        for copied in (False, True)
    ]
    assert [each.backend for each in found] == ["TRTLLM", "CUTLASS", "TRTLLM", "TRTLLM"]
    assert [each.kernels[0] for each in found] == ["generated", "cutlass", "generated", "generated"]


def test_a_backend_that_was_asked_for_runs():
    assert kernel("tensorrt-llm", "1.2", "blackwell", "nvfp4", backend="CUTLASS").kernels == ("cutlass",)


def test_which_backends_can_be_asked_for_depends_on_card_and_format():
    blackwell, hopper = (catalogue().gpu(CARDS[name]) for name in ("blackwell", "hopper"))
    assert expert_backends("tensorrt-llm", blackwell, "nvfp4") == ("CUTLASS", "TRTLLM")
    assert expert_backends("tensorrt-llm", blackwell, "fp8_block") == ("CUTLASS", "TRTLLM", "DEEPGEMM")
    assert expert_backends("tensorrt-llm", hopper, "w4a16_mxfp4") == ("CUTLASS", "TRITON")
    assert expert_backends("vllm", hopper, "bfloat16") == ()


def test_an_engine_without_a_table_says_nothing():
    assert kernel("transformers", "5.0", "hopper", "bfloat16") is None
    assert kernel("vllm", "0.24.0", "hopper", "int3") is None


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_every_row_names_kernels_formats_cards_and_a_source(engine):
    for row in read_toml(engine_folders()[engine] / TABLE)["kernel"]:
        assert set(row["kernels"]) <= set(KERNELS)
        assert set(row["formats"]) <= set(FORMATS)
        assert set(row.get("cards", ())) <= set(GENERATIONS.values())
        assert row["source"]
