"""What single operators take on real cards: matrix products, attention, experts, collectives and recurrences.

Every time is a roofline, the bytes an operator must move and the operations it must do at the card's published rates,
times a measured surface: how many times its roofline the operator took, over its sizes. The surfaces are distilled
from public measurements of inference engines' own kernels (`surfaces/NOTICE`) by `benchmarks/operators`, whose page
`docs/operators.md` has what they miss by. They were measured in CUDA graphs: launches, the host and what is between
operators are not in them.
"""
