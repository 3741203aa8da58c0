"""Serving plans beside vLLM's own code: `python -m benchmarks.vllm_own_code [WORD ...]`, cases that hold a word alone.

vLLM's model of one rank is built on fake tensors, in a fake group of the plan's
ranks; both lay out a cache of the same bytes. `--write` keeps what vLLM's code
said for the tests of those who have it not.
`make proofs-of STACK=vllm` runs it in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

from benchmarks.vllm_own_code.cases import CASES
from benchmarks.vllm_own_code.comparison import Compared, compared
from benchmarks.vllm_own_code.rank import prepare

FACTS = Path(__file__).parents[1] / "data" / "vllm_own_code.json"


def line(row: Compared) -> str:
    """Return a case in a line: planned less vLLM's own of weights, blocks and tokens, and layers over its own."""
    weights = row.plan.weights_bytes - row.held.total
    blocks, tokens = row.plan.cache.blocks - row.cache.blocks, row.plan.cache.tokens - row.cache.tokens
    layers = "" if row.layers_bytes is None else f" {row.plan.layers_bytes / row.layers_bytes - 1:>+7.1%}"
    return (
        f"{row.case.name:62} {row.plan.weights_bytes:>15,} {weights:>+13,} "
        f"{row.cache.blocks:>9,} {blocks:>+8,} {row.cache.tokens:>11,} {tokens:>+11,}{layers}"
    )


def main(arguments: list[str]) -> int:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vllm_own_code", description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--write", type=Path, help=f"keep what vLLM's code says in a file, as {FACTS.name}")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    version = prepare()
    print(f"vLLM {version}")
    print(f"{'plan':62} {'weights':>15} {'off':>13} {'blocks':>9} {'off':>8} {'tokens':>11} {'off':>11}  layers")
    facts = []
    for case in CASES:
        if asked.words and not any(word in case.name for word in asked.words):
            continue
        row = compared(case)
        facts.append(row.facts())
        print(line(row), flush=True)
    if asked.write:
        said = {"source": f"vllm {version}'s own code, run by benchmarks/vllm_own_code", "cases": facts}
        asked.write.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
