"""How terminal and web page show the plain fields of a serving request: one table for both.

Only the standard library is imported here, so that the terminal's help can show them without loading the requests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A number of the part `serving`: its option's help, its `label` where the page has it among engine settings."""

    name: str
    kind: type
    words: str
    label: str | None = None

    @property
    def field(self) -> str:
        """Return the path to it in a request."""
        return f"serving.{self.name}"

    @property
    def flag(self) -> str:
        """Return its option in the terminal."""
        return f"--{self.name.replace('_', '-')}"


SERVING = (
    Shown(name="max_model_len", kind=int, words="Tokens of the longest request."),
    Shown(name="input_tokens", kind=int, words="Tokens of a prompt."),
    Shown(name="output_tokens", kind=int, words="Tokens of an answer."),
    Shown(name="concurrency", kind=int, words="Requests at once, over the whole deployment."),
    Shown(name="requests_per_second", kind=float, words="Requests that arrive each second."),
    Shown(name="burst_seconds", kind=float, words="Seconds from one burst of `concurrency` requests to the next."),
    Shown(name="prefix_cache_hit_rate", kind=float, words="The part of prompts that is cached, 0 to 1."),
    Shown(name="gpu_memory_utilization", kind=float, words="The engine's own setting.", label="GPU memory utilization"),
    Shown(name="block_size", kind=int, words="Tokens of a cache block.", label="Block size, tokens"),
    Shown(name="max_num_batched_tokens", kind=int, words="The engine's own setting.", label="Batched tokens"),
    Shown(name="max_num_seqs", kind=int, words="The engine's own setting.", label="Sequences at once"),
)
