"""Operations as binaries declare them, and what they return by shape."""

import pytest
import torch

from benchmarks.vllm_own_code import custom_ops

SCHEMAS = ("scaled(Tensor! out, Tensor a, float by) -> ()", "has_fp4(int capability) -> bool", "has_fp8() -> bool")


@pytest.fixture
def binary(tmp_path):
    path = tmp_path / "_C.so"
    noise = b"a->b(c)\0x == y -> z\0"
    path.write_bytes(b"\x7fELF\0" + noise + b"\0".join(schema.encode() for schema in SCHEMAS) + b"\0\xff\0")
    return path


def test_schemas_are_found_among_a_binarys_text(binary):
    assert tuple(custom_ops.schemas(binary)) == SCHEMAS


def test_declared_operations_do_nothing_and_say_what_hopper_has(binary, monkeypatch):
    monkeypatch.setattr(custom_ops, "NAMESPACES", {binary.name: ("declared_in_a_test",)})
    libraries = custom_ops.declare_operations(binary.parent)
    ops = torch.ops.declared_in_a_test
    out = torch.ones(2)
    assert ops.scaled(out, torch.zeros(2), 3.0) is None
    assert out.tolist() == [1.0, 1.0]
    assert (ops.has_fp4(90), ops.has_fp8()) == (False, True)
    del libraries


def test_marlins_tiles_hold_eight_numbers_of_4_bits_in_a_word():
    repacked = custom_ops.RETURNED["gptq_marlin_repack"](torch.empty(1, dtype=torch.int32), None, 64, 32, 4, False)
    assert repacked.shape == (64 // 16, 32 * 16 // 8)
    product = custom_ops.RETURNED["marlin_gemm"](torch.empty(3, 64), None, torch.empty(1), 7, 3, 32, 64)
    assert product.shape == (3, 32)


def test_a_kernel_can_be_launched_over_any_grid():
    def kernel():
        raise AssertionError

    assert custom_ops.Kernel(kernel)[(1, 2)](torch.empty(1), WIDTH=4) is None
