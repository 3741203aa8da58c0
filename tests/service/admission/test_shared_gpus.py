from __future__ import annotations

import pytest

from plimsoll.planners.ground.units import GIB
from plimsoll.service.admission.findings import Share
from plimsoll.service.admission.shared_gpus import Sharing, sharing_finding


def a_share(fraction: float = 0.9, weights_gib: int = 10, engine: str = "vllm") -> Share:
    return Share(program="one", engine=engine, fraction=fraction, weight_bytes=weights_gib * GIB, memory_bytes=80 * GIB)


@pytest.mark.parametrize(
    ("shares", "weight"),
    [
        # 0.5 + 0.5 of the card.
        ([a_share(0.5), a_share(0.5)], None),
        ([a_share(0.5), a_share(0.51, 1)], "warn"),
        # Two of 0.9 leave room for caches of 0.8 x 80 = 64 GiB less the weights of both: refused below 64 GiB of them.
        ([a_share(0.9, 31), a_share(0.9, 32)], "refuse"),
        ([a_share(0.9, 32), a_share(0.9, 32)], "warn"),
        # Weights alone, whatever the engine.
        ([a_share(0.3, 40, "sglang"), a_share(0.3, 40, "sglang")], None),
        ([a_share(0.3, 40, "sglang"), a_share(0.3, 41, "sglang")], "refuse"),
        # Only vLLM asks for its whole fraction to be free.
        ([a_share(0.9, 1, "sglang"), a_share(0.9, 1)], None),
        ([a_share(0.9, 99)], None),
    ],
)
def test_engines_on_one_gpu_are_added_up(shares: list[Share], weight: str | None):
    finding = sharing_finding(Sharing(shares=shares, is_certain=True))
    assert (None if finding is None else finding.weight) == weight


def test_engines_that_may_have_a_gpu_each_are_warned_of():
    finding = sharing_finding(Sharing(shares=[a_share(), a_share()], is_certain=False, reason="they meet"))
    assert finding is not None
    assert (finding.weight, finding.text.endswith("where they meet.")) == ("warn", True)
