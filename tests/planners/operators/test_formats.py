from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.formats import FORMATS, operations_per_second


def test_scales_are_counted_in_a_weights_bytes():
    assert FORMATS["nvfp4"].weight_bytes == 0.5625
    assert FORMATS["w4a16_mxfp4"].weight_bytes == 0.53125


def test_cards_without_an_arithmetic_take_that_of_16_bits():
    a100, t4 = catalogue().gpu("a100-sxm-80gb"), catalogue().gpu("t4-16gb")

    assert operations_per_second(a100, ("fp8",)) == 312e12
    assert operations_per_second(t4, ("bf16",)) == 65e12
