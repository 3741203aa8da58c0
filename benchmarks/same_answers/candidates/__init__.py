"""Questions that may be asked: many more than are stored, of every kind. `draw` asks them, and chooses."""
