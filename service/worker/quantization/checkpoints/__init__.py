"""Checkpoints read, and quantized ones written, in the form of the program that loads them."""
