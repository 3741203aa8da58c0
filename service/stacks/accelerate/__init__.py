"""Hugging Face's Accelerate and Trainer."""
