"""Compare every catalogue model's parameter count with transformers' module and the published figure.

    python benchmarks/parameter_counts.py [--only TEXT] [--without-transformers]

Every tensor is compared by name and shape, as level `count` of a validation does.
The difference columns must read 0; a dash stands where there is no such count,
as for a family that transformers has no code of its own for, or none without
another package (Gemma 3n). A published count that is higher by exactly the
embedding belongs to a checkpoint that stores its tied head a second time; it is
marked so. Nothing is downloaded: modules are built on the meta device.
At the end stands how long the 671B model takes to describe, and its weights to list.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import CatalogueModel, catalogue
from plimsoll.planners.families import describe_config

if TYPE_CHECKING:
    from plimsoll.service.worker.proofs.count.comparison import Comparison

MICROSECONDS = 1e6
# Types whose module transformers builds with a package that is not needed for anything else (timm).
WITHOUT_A_MODULE = frozenset({"gemma3n"})

TIMED_MODEL = "deepseek-ai/DeepSeek-V3"
TIMED_RUNS = 9
MOST_DESCRIBING_SECONDS = 5e-3
MOST_LISTING_SECONDS = 50e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model's counts from three sources, and how long the planner's took."""

    model: CatalogueModel
    spec: ModelSpec
    described_in_seconds: float
    built: Comparison | None

    @property
    def stored_head(self) -> int:
        """Return the elements of a tied head that the checkpoint stores although it is the embedding."""
        published = self.model.published_parameters
        embedding = self.spec.vocabulary_size * self.spec.hidden_size
        return embedding if self.spec.tied_head and published == self.spec.parameters + embedding else 0

    @property
    def difference_to_module(self) -> int | None:
        """Return planner minus transformers, or the number of unlike tensors where the sums are equal."""
        if self.built is None:
            return None
        return self.spec.parameters - self.built.built_elements or len(self.built.differences)

    @property
    def difference_to_published(self) -> int | None:
        """Return planner minus published, a stored head set aside."""
        published = self.model.published_parameters
        return None if published is None else self.spec.parameters + self.stored_head - published


# Models that are alike are neighbours in the catalogue; thousands of names of each module are not kept for long.
@lru_cache(maxsize=8)
def _module(config_json: str) -> Any:
    """Return the module that transformers builds from a config, None where it has none."""
    from transformers import CONFIG_MAPPING, logging

    from plimsoll.service.worker.proofs.count.module import whole_module

    # It warns of token ids beyond small vocabularies, which have no weight.
    logging.set_verbosity_error()
    config = json.loads(config_json)
    if config["model_type"] not in CONFIG_MAPPING or config["model_type"] in WITHOUT_A_MODULE:
        return None
    return whole_module(config)


def _built(model: CatalogueModel, spec: ModelSpec) -> Comparison | None:
    """Return how a description agrees with the module, as level `count` of a validation compares them."""
    from plimsoll.service.worker.proofs.count.comparison import compare

    module = _module(_sizes(model))
    return None if module is None else compare(spec, module)


def rows(only: str, *, with_transformers: bool) -> Iterator[Row]:
    """Yield a row for each model whose id holds `only`."""
    for model in catalogue().models:
        if only.lower() not in model.id.lower():
            continue
        started = time.perf_counter()
        spec = describe_config(model.config, name=model.id)
        described_in_seconds = time.perf_counter() - started
        built = _built(model, spec) if with_transformers else None
        yield Row(model=model, spec=spec, described_in_seconds=described_in_seconds, built=built)


def main() -> int:
    """Print the table; return 1 if any count disagrees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose id holds this text")
    parser.add_argument("--without-transformers", action="store_true", help="compare with the published counts alone")
    arguments = parser.parse_args()
    print(f"{'model':52} {'planner':>16} {'transformers':>16} {'diff':>5} {'published':>16} {'diff':>5} {'us':>6}")
    wrong = models = built = published_counts = 0
    for row in rows(arguments.only, with_transformers=not arguments.without_transformers):
        models += 1
        built += row.built is not None
        published = row.model.published_parameters
        published_counts += published is not None
        wrong += bool(row.difference_to_module) or bool(row.difference_to_published)
        print(
            f"{row.model.id:52} {row.spec.parameters:16,} "
            f"{_shown(row.built and row.built.built_elements):>16} {_shown(row.difference_to_module):>5} "
            f"{_shown(published):>16} {_shown(row.difference_to_published):>5} "
            f"{row.described_in_seconds * MICROSECONDS:6.0f}{'  stores its tied head' if row.stored_head else ''}"
        )
    print(f"{models} models: {built} built by transformers, {published_counts} with a published count")
    print(f"{wrong} with a difference")
    return _print_times() + bool(wrong)


def _print_times() -> int:
    """Print how long the largest usual model takes to describe and to list; return 1 if that is too long."""
    config = catalogue().model(TIMED_MODEL).config
    spec = describe_config(config, name=TIMED_MODEL)
    described = _least_seconds(lambda: describe_config(config, name=TIMED_MODEL))
    listed = _least_seconds(lambda: sum(1 for _ in spec.named_weights()))
    weights = sum(1 for _ in spec.named_weights())
    print(f"{TIMED_MODEL}: {spec.parameters:,} parameters in {weights:,} weights")
    print(f"  described in {described * 1e3:.2f} ms (at most {MOST_DESCRIBING_SECONDS * 1e3:.0f})")
    print(f"  all weights listed in {listed * 1e3:.2f} ms (at most {MOST_LISTING_SECONDS * 1e3:.0f})")
    return int(described > MOST_DESCRIBING_SECONDS or listed > MOST_LISTING_SECONDS)


def _least_seconds(work: Callable[[], object]) -> float:
    """Return the shortest of several runs: what the work itself takes, without what else the machine does."""

    def seconds() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return min(seconds() for _ in range(TIMED_RUNS))


def _sizes(model: CatalogueModel) -> str:
    """Return what of the config decides the parameters, so that models alike are built once."""
    without_weights = {"rope_theta", "rope_scaling", "sliding_window"}
    return json.dumps({key: model.config[key] for key in sorted(model.config) if key not in without_weights})


def _shown(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


if __name__ == "__main__":
    sys.exit(main())
