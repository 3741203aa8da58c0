"""Compare every catalogue model's parameter count with transformers' module and the published figure.

    python benchmarks/parameter_counts.py [--only TEXT] [--without-transformers]

The difference columns must read 0. A published count that is higher by exactly
the embedding belongs to a checkpoint that stores its tied head a second time;
it is marked so. Nothing is downloaded: modules are built on the meta device.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from planners.architecture import ModelSpec
from planners.catalogue import CatalogueModel, catalogue
from planners.huggingface import describe_config

MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model's counts from three sources, and how long the planner's took."""

    model: CatalogueModel
    spec: ModelSpec
    described_in_seconds: float
    built: int | None

    @property
    def stored_head(self) -> int:
        """Return the elements of a tied head that the checkpoint stores although it is the embedding."""
        published = self.model.published_parameters
        embedding = self.spec.vocabulary_size * self.spec.hidden_size
        return embedding if self.spec.tied_head and published == self.spec.parameters + embedding else 0

    @property
    def difference_to_module(self) -> int | None:
        """Return planner minus transformers; buffers that the checkpoint holds are no parameters of the module."""
        if self.built is None:
            return None
        buffers = sum(weight.elements for _, weight in self.spec.named_weights() if weight.is_buffer)
        return self.spec.parameters - buffers - self.built

    @property
    def difference_to_published(self) -> int | None:
        """Return planner minus published, a stored head set aside."""
        published = self.model.published_parameters
        return None if published is None else self.spec.parameters + self.stored_head - published


def module_parameters(model: CatalogueModel) -> int:
    """Return the number of parameters of the module that transformers builds from the config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(model.config)
    model_type = fields.pop("model_type")
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields))
    return sum(parameter.numel() for parameter in module.parameters())


def rows(only: str, *, with_transformers: bool) -> Iterator[Row]:
    """Yield a row for each model whose id holds `only`."""
    for model in catalogue().models:
        if only.lower() not in model.id.lower():
            continue
        started = time.perf_counter()
        spec = describe_config(model.config, name=model.id)
        described_in_seconds = time.perf_counter() - started
        built = module_parameters(model) if with_transformers else None
        yield Row(model=model, spec=spec, described_in_seconds=described_in_seconds, built=built)


def main() -> int:
    """Print the table; return 1 if any count disagrees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose id holds this text")
    parser.add_argument("--without-transformers", action="store_true", help="compare with the published counts alone")
    arguments = parser.parse_args()
    print(f"{'model':52} {'planner':>16} {'transformers':>16} {'diff':>5} {'published':>16} {'diff':>5} {'us':>6}")
    wrong = models = 0
    for row in rows(arguments.only, with_transformers=not arguments.without_transformers):
        models += 1
        wrong += bool(row.difference_to_module) or bool(row.difference_to_published)
        published = row.model.published_parameters
        print(
            f"{row.model.id:52} {row.spec.parameters:16,} "
            f"{_shown(row.built):>16} {_shown(row.difference_to_module):>5} "
            f"{_shown(published):>16} {_shown(row.difference_to_published):>5} "
            f"{row.described_in_seconds * MICROSECONDS:6.0f}{'  stores its tied head' if row.stored_head else ''}"
        )
    print(f"{models} models, {wrong} with a difference")
    return 1 if wrong else 0


def _shown(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


if __name__ == "__main__":
    sys.exit(main())
