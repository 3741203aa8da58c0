"""vLLM's own models, weights and cache planning on fake tensors, beside serving plans."""
