"""The style sheet: text that everyone can read, in the light and in the dark."""

from __future__ import annotations

import re

import pytest

from plimsoll.api.pages.assets import assets

# WCAG 2.2, success criteria 1.4.3 (text) and 1.4.11 (what is drawn), level AA.
LEAST_TEXT_CONTRAST = 4.5
LEAST_DRAWN_CONTRAST = 3.0

TEXTS = ("ink", "quiet", "link", "good", "warn", "bad")
COLOURS = tuple(f"c{index}" for index in range(8))


def _schemes() -> dict[str, dict[str, str]]:
    style = assets().by_name["page.css"].content.decode()
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in style.split("@media (prefers", 1))
    return {"light": light, "dark": {**light, **dark}}


def _luminance(colour: str) -> float:
    """Return the relative luminance. Source: WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(first: str, second: str) -> float:
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def test_black_on_white_is_the_most_there_is():
    # (1 + 0.05) / (0 + 0.05) = 21.
    assert _contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ground", ["paper", "raised"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_can_be_read(scheme: str, ground: str, text: str):
    colours = _schemes()[scheme]
    assert _contrast(colours[text], colours[ground]) >= LEAST_TEXT_CONTRAST


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("colour", COLOURS)
def test_what_stands_on_a_colour_can_be_read(scheme: str, colour: str):
    # Ranks in the mesh and parts in the map are written in the paper's colour.
    colours = _schemes()[scheme]
    assert _contrast(colours["paper"], colours[colour]) >= LEAST_TEXT_CONTRAST


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fields_are_seen_by_their_edge(scheme: str):
    colours = _schemes()[scheme]
    assert _contrast(colours["edge"], colours["paper"]) >= LEAST_DRAWN_CONTRAST
