"""Hugging Face accelerate."""
