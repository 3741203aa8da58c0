"""Predicted against measured peak memory."""
