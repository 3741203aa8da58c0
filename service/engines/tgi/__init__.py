"""Text Generation Inference, which serves plans for transformers."""
