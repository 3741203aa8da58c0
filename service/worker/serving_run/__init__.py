"""Serving plans proved: weights loaded, a profiling pass, the cache allocated, prefill and decode.

On fake tensors (level `trace`) or on the worker's device (level `device`), with
transformers' code in place of the engine's.
"""
