"""What a question takes where it does not say: one table for API, terminal and web page.

Nothing of ours is imported here, so that the terminal's help can show them without loading the requests.
"""

from __future__ import annotations

from typing import Final

SEQUENCE_LENGTH = 4_096
"""Tokens. What Llama 2 was trained on; longer ones are a choice that a person should make."""
GLOBAL_BATCH_SIZE = 64
"""Sequences per step. With `SEQUENCE_LENGTH` some 260,000 tokens, as much as fine-tuning runs take."""
ATTENTION: Final = "flash"
"""The same."""
PRECISION: Final = "bf16-mixed"
"""Of all stacks that have it; of another its own (`usual_precision`)."""
