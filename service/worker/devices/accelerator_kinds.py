"""The short kinds by which queues, plans and drivers name accelerators alike; free of torch."""

from __future__ import annotations

# Words in the names that drivers give which say nothing about the kind.
VENDOR_WORDS = frozenset({"nvidia", "amd", "tesla", "quadro", "geforce", "instinct", "graphics"})
# "RTX 4090" and "GTX 1080": the family's name says nothing without the number.
FAMILY_WORDS = frozenset({"rtx", "gtx", "titan"})


def accelerator_kind(name: str) -> str:
    """Return the short kind in a driver's name for a device: "NVIDIA H100 80GB HBM3" is "h100"."""
    words = [word for word in name.lower().replace("-", " ").split() if word not in VENDOR_WORDS]
    if not words:
        return "unknown"
    if words[0] in FAMILY_WORDS:
        return "-".join(words[:2])
    return words[0]
