"""How a model is divided over ranks, and what they send each other."""
