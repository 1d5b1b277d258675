"""Colours can be told apart, on both backgrounds and with the common colour-vision deficiencies."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from resstream.figures.theme import (
    ALARM,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    SERIES_COLOURS,
    SURFACES,
    Surface,
    faded,
    new_figure,
    series_colour,
    series_symbol,
    template,
)

PALETTE = {**SERIES_COLOURS, "alarm": ALARM, "neutral": NEUTRAL}

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(weights @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("surface", SURFACES.values(), ids=list(SURFACES))
def test_contrast(surface: Surface) -> None:
    marks = {**PALETTE, "positive": POSITIVE, "negative": NEGATIVE}
    assert {k: c for k, c in marks.items() if contrast(c, surface.panel) < 3} == {}
    texts = (surface.text, surface.muted)
    assert min(contrast(t, b) for t in texts for b in (surface.panel, surface.page)) >= 4.5


@pytest.mark.parametrize("matrix", DEFICIENCIES.values(), ids=list(DEFICIENCIES))
def test_colours_stay_apart(matrix: np.ndarray) -> None:
    """At least 10 units of CIE Lab between any two, where 2.3 are just noticeable."""
    seen = {name: lab(matrix @ linear(colour)) for name, colour in PALETTE.items()}
    distances = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert {pair: d for pair, d in distances.items() if d < 10} == {}


def test_known_writes_keep_colour_and_symbol() -> None:
    assert series_colour("mlp", 0) == SERIES_COLOURS["mlp"] == series_colour("other", 1)
    assert series_symbol("mlp", 7) == series_symbol("mlp", 0) != series_symbol("attn", 0)


def test_faded() -> None:
    assert faded("#ff8000", 0.25) == "rgba(255,128,0,0.25)"


def test_no_button_sends_data_away() -> None:
    for mode in SURFACES:
        assert "sendChartToCloud" in template(mode).to_plotly_json()["layout"]["modebar"]["remove"]


def test_title_is_escaped_and_gets_room() -> None:
    plain: Any = new_figure()
    titled: Any = new_figure("a <b> title")
    assert titled.layout.title.text == "a &lt;b&gt; title"
    assert titled.layout.height > plain.layout.height
