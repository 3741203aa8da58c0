"""How far quantized weights, and what layers make of them, are from the original, and the report on it."""
