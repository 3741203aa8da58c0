"""Quantization of weights: schemes in plain torch, their exact size, error and speed."""
