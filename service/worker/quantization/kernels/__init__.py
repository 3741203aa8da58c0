"""Loops over weights: pieces of a tensor dealt to threads, and kernels compiled from C."""
