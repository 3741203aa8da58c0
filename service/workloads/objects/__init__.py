"""Kubernetes objects, as groups of pods that work together on GPUs."""
