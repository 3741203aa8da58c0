"""Text Generation Inference."""
