"""Fuzz each reader of foreign input for so long: `python -m tests.fuzz --minutes 10 [config safetensors …]`.

Rounds of examples, each from another seed, until the time is up. What fails is printed with the
smallest example that shows it, and ends the target.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import hypothesis
from hypothesis import HealthCheck, given, settings

from tests.fuzz.targets import TARGETS, Target

EXAMPLES_A_ROUND = 500


def fuzz(name: str, target: Target, seconds: float, first_seed: int) -> bool:
    """Search for so long, print how much was tried, and return whether nothing was found."""
    tried = 0
    seed = first_seed
    deadline = time.monotonic() + seconds

    def search(example: object) -> None:
        nonlocal tried
        tried += 1
        target.check(example)

    while time.monotonic() < deadline:
        seed += 1
        a_round = settings(
            max_examples=EXAMPLES_A_ROUND, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        )
        try:
            hypothesis.seed(seed)(a_round(given(target.examples)(search)))()
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            print(f"{name}: FAILED after {tried:,} examples, seed {seed}\n{traceback.format_exc()}", flush=True)
            return False
    print(f"{name}: {tried:,} examples in {seconds / 60:g} minutes, nothing found", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*sorted(TARGETS), []], help="all of them unless named")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="to try the same again")
    asked = parser.parse_args()
    names = asked.targets or sorted(TARGETS)
    ends = [fuzz(name, TARGETS[name], 60 * asked.minutes, asked.seed) for name in names]
    return 0 if all(ends) else 1


if __name__ == "__main__":
    sys.exit(main())
