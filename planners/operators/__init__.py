"""What single operators take on real cards: matrix products, attention, experts, collectives and recurrences.

Times are read from surfaces, measured seconds over an operator's sizes, and are never less than its roofline: what it
must move and multiply at the card's published rates. The surfaces are distilled from public measurements of inference
engines' own kernels (`surfaces/NOTICE`) by `benchmarks/operators`, whose page `docs/operators.md` has what they miss
by. They were measured in CUDA graphs: launches, the host and what is between operators are not in them.
"""
