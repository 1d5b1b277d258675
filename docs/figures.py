"""Draws every kind of figure for the documentation, from the embedded model.

python docs/figures.py            # needs Chromium; writes docs/images/figure_*.png
"""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import numpy as np

import resstream as rs
from resstream.figures.theme import Mode, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

IMAGES = Path(__file__).parent / "images"
PROMPT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Tom and John went to the store, John gave a drink to"
WIDTH = 860


def figures() -> Iterator[tuple[str, "go.Figure", Mode]]:
    """Name, figure and theme of every picture."""
    model = rs.load("demo")
    damaged = rs.load("demo:polluted")
    lens = rs.logit_lens(model, PROMPT, targets=[" Mary"])
    yield "lens_table", lens.plot(), "light"
    yield "lens_table_dark", lens.plot(), "dark"
    yield "lens_profile", rs.lens_profile(model, n_sampled=256).plot(), "light"
    pair = {"clean": PROMPT, "corrupted": OTHER, "answer": " Mary", "wrong": " Tom"}
    yield "patch_heatmap", rs.patch(model, [pair]).plot(), "light"
    parts = rs.direct_logit_attribution(model, PROMPT, answer=" Mary", wrong=" John")
    yield "attribution_bars", parts.plot(), "light"
    yield "ablation_bars", rs.ablate(model, _text(model)).plot(), "light"
    alike = rs.similarity(model)
    yield "similarity_matrix", alike.plot(), "light"
    recording = rs.record(model, _text(model))
    yield "write_profile", recording.plot("relative_norm"), "light"
    yield "stream_growth", recording.plot("stream_norm"), "light"
    yield "attention_heatmap", rs.attention(model, _text(model)).plot(), "light"
    yield from _of_a_check(damaged)
    yield "long_and_deep", _long_and_deep(), "light"


def _text(model: rs.StreamModel) -> object:
    from resstream.stream.texts import read_corpus

    return read_corpus(model, max_sequences=8)


def _of_a_check(model: rs.StreamModel) -> Iterator[tuple[str, "go.Figure", Mode]]:
    """What a check rests on: where the culprit stands, and what the experiments said."""
    from resstream.reports.pages import check_page

    report = rs.check(model)
    yield "check", report.plot(), "light"
    names = {"stand out": "evidence_strip", "experiments say": "interval_rows"}
    for section in check_page(report).sections:
        for words, name in names.items():
            if words in section.title and section.figure is not None:
                yield name, section.figure, "light"


def _long_and_deep() -> "go.Figure":
    """A hundred layers and five hundred positions."""
    from resstream.figures.heatmap import layer_position_heatmap

    layer, position = np.mgrid[0:100, 0:500]
    values = np.sin(layer / 15) * np.exp(-(((position - 5 * layer) / 60) ** 2))
    names = [f" t{index}" for index in range(500)]
    return layer_position_heatmap(values, names, value_title="a made-up effect", diverging=True)


def save_png(figure: "go.Figure", path: Path, mode: Mode) -> None:
    """Draw `figure` in Chromium and save what is seen."""
    figure.update_layout(template=template(mode), width=WIDTH)
    height = int(figure.layout.height)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        body = figure.to_html(full_html=True, config={"displayModeBar": False})
        page.write_text(body.replace("<body>", '<body style="margin:0">'), encoding="utf-8")
        program = which("chromium") or which("google-chrome")
        if program is None:
            raise SystemExit("no Chromium here: apt-get install chromium")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        size = f"--window-size={WIDTH},{height}"
        shot = f"--screenshot={path.absolute()}"
        late = "--virtual-time-budget=8000"
        command = [program, *options, size, shot, late, page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    """Draw all of them."""
    IMAGES.mkdir(exist_ok=True)
    for name, figure, mode in figures():
        save_png(figure, IMAGES / f"figure_{name}.png", mode)
        print(name)


if __name__ == "__main__":
    main()
