"""A served model: weights loaded, a profiling pass, the cache allocated, prefill and decode.

On fake tensors or on the worker's device, with transformers' code in place of the engine's.
"""
