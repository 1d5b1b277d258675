"""How does a page look, whatever it is about?

A page is one HTML file that needs nothing else: Plotly stands in it once, styles and scripts are
inside, and its content security policy forbids every request and every script that is not its own.
All text that is shown is escaped by Jinja2; what the figures show is escaped by
`resstream.figures.labels`.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from resstream.figures.theme import ALARM, SURFACES, template
from resstream.stream.files import write_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from resstream.checks.report import Finding
    from resstream.stream.provenance import Provenance

Tone = Literal["good", "bad", "open", "plain"]


@dataclass(frozen=True, slots=True)
class Banner:
    """What the page says first."""

    tone: Tone
    headline: str
    """The verdict in a word or two."""
    sentence: str
    """What it rests on."""


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers and text as they are; the page formats and escapes them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question, its figure and the numbers beneath."""

    title: str
    what_to_see: str
    """One sentence: what the figure shows here, and how to read it."""
    figure: "go.Figure | None" = None
    table: Table | None = None
    definition: str
    """How the quantity is defined, with its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that one page says."""

    kind: str
    """The verb that made it."""
    title: str
    banner: Banner
    facts: tuple[tuple[str, object], ...] = ()
    findings: "tuple[Finding, ...]" = ()
    sections: tuple[Section, ...]
    provenance: "Provenance"


@dataclass(frozen=True, slots=True)
class Part:
    """One page among several."""

    source: str
    """The directory that it was read from."""
    page: Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Several pages in one: a summary that leads to each, then all of them."""

    title: str
    banner: Banner
    parts: tuple[Part, ...]


def save_page(path: str | Path, page: Page | Report) -> Path:
    """Write `page` as one HTML file, whole or not at all.

    Raises:
        OutputError: The file can't be written.
    """
    text = render_page(page)
    with write_file(path) as part:
        part.write_text(text, encoding="utf-8")
    return Path(path)


def render_page(page: Page | Report) -> str:
    """The HTML of one page, or of a report of several."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("resstream.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "is_number": is_number, "sentence": sentence}
    scripts = (get_plotlyjs(), _asset("page.js"))
    report = page if isinstance(page, Report) else None
    pages = (page,) if isinstance(page, Page) else tuple(part.page for part in page.parts)
    return environment.get_template("page.html.j2").render(
        title=page.title,
        kind="report" if isinstance(page, Report) else page.kind,
        report=report,
        pages=pages,
        surfaces=SURFACES,
        alarm=ALARM,
        style=Markup(_asset("page.css")),
        scripts=[Markup(script) for script in scripts],
        figures=Markup(_figures([section for each in pages for section in each.sections])),
        policy=_policy(scripts),
    )


def shown(value: object) -> str:
    """A table cell as text: numbers to four digits, nothing as a dash."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " to ".join(shown(item) for item in value)
    return str(value)


def sentence(phrase: str) -> str:
    """A phrase in lower case without a period, as messages are, written as a sentence."""
    return f"{phrase[:1].upper()}{phrase[1:].rstrip('.')}."


def is_number(value: object) -> bool:
    """Whether a cell is set to the right."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _asset(name: str) -> str:
    return (files("resstream.reports") / "templates" / name).read_text(encoding="utf-8")


def _figures(sections: Sequence[Section]) -> str:
    """Figures without their template, and both templates once, as JSON that can't end a script."""
    drawn = [_plain(section.figure) for section in sections if section.figure is not None]
    modes: dict[str, Any] = {mode: template(mode).to_plotly_json() for mode in SURFACES}
    text = json.dumps({"figures": drawn, "templates": modes}, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(figure: "go.Figure") -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(str(figure.to_json()))
    plain["layout"].pop("template", None)
    return plain


def _policy(scripts: Sequence[str]) -> str:
    """Only these scripts may run, and nothing may be fetched."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
