"""A step of DeepSpeed's engine: what it gathers, makes and reduces, tensor by tensor."""
