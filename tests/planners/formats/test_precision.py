import pytest

from plimsoll.planners.formats.precision import dtype_bytes, training_precision
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownName


@pytest.mark.parametrize(
    ("name", "size"), [("fp32", 4), ("tf32", 4), ("bf16", 2), ("bf16-mixed", 2), ("fp16-mixed", 2)]
)
def test_activations_are_as_wide_as_the_compute_format(name: str, size: int):
    assert training_precision(name).compute_bytes == size


def test_fp8_multiplies_in_fp8_and_keeps_sixteen_bits():
    precision = training_precision("fp8-mixed")
    assert (precision.compute_format, precision.compute_bytes) == ("fp8", 2)


def test_unknown_precisions_list_the_near_ones():
    with pytest.raises(UnknownName, match="bf16"):
        training_precision("bf16mixed")


def test_an_unknown_dtype_points_at_its_field():
    with pytest.raises(InvalidQuestion) as caught:
        dtype_bytes("int3", pointer="/training/gradient_dtype")
    assert caught.value.pointer == "/training/gradient_dtype"


def test_a_width_that_no_state_has_is_refused_with_those_that_have_one():
    # TF32 is how fp32 is multiplied, not how anything is stored.
    with pytest.raises(InvalidQuestion) as caught:
        dtype_bytes("fp8", pointer="/training/optimizer_state_dtype")
    assert caught.value.detail == "States in 'fp8' are not planned: fp32, bf16 and fp16 are."
