"""What do all figures look like?

One palette and two templates (light and dark) that the report page uses too.  A colour means the
same thing in every figure: attention blue, MLP green, and the alarm colour for what harms or is at
fault.  Every colour of the palette has a contrast of at least 3:1 on both backgrounds and stays
apart from the others under the common colour-vision deficiencies, so that a figure need not know
which template is on.

References:
    Okabe and Ito (2008), "Color Universal Design", from whose palette these colours are shifted.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from resstream.figures.labels import escape_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

Mode = Literal["light", "dark"]

ALARM = "#d55e00"
"""What is at fault, or harms: never used for anything else."""

POSITIVE, NEGATIVE = "#1f83c8", "#cb4b5a"
"""Bars that show a sign and accuse nobody."""

NEUTRAL = "#7d8590"
"""Everything that only gives context."""

SERIES_COLOURS = MappingProxyType(
    {"attn": "#1f83c8", "mlp": "#00936b", "mixer": "#9a4df0", "block": "#998844"}
)
"""Writes keep their colour in all figures; other names take the free colours in order."""

SYMBOLS = ("circle", "square", "diamond", "cross", "star")
"""Second cue beside the colour, for print and for colour-vision deficiencies."""

DIVERGING = "RdBu"
"""Signed quantities: red below zero, blue above; always centred on 0."""

SEQUENTIAL = "Viridis"
"""Magnitudes and probabilities."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"


_NO_BUTTONS = ("sendChartToCloud", "lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d")
"""Buttons that have no use here, and the one that would send the data to a server."""

_LEGEND_PIXELS = 36
_TITLE_PIXELS = 34


@dataclass(frozen=True, slots=True)
class Surface:
    """Colours of everything that is not data."""

    page: str
    panel: str
    text: str
    muted: str
    grid: str
    axis: str


SURFACES: MappingProxyType[Mode, Surface] = MappingProxyType(
    {
        "light": Surface(
            page="#f6f7f9",
            panel="#ffffff",
            text="#1c2128",
            muted="#59636e",
            grid="#e8ebef",
            axis="#b9c0c8",
        ),
        "dark": Surface(
            page="#0f1216",
            panel="#171b21",
            text="#e4e8ed",
            muted="#9aa5b1",
            grid="#2a3038",
            axis="#4a535e",
        ),
    }
)


def series_colour(name: str, index: int) -> str:
    """Colour of the series `name`, which is the `index`-th of its figure."""
    free = tuple(SERIES_COLOURS.values())
    return SERIES_COLOURS.get(name, free[index % len(free)])


def series_symbol(name: str, index: int) -> str:
    """Marker of the series `name`, chosen as `series_colour` chooses the colour."""
    known = list(SERIES_COLOURS)
    return SYMBOLS[known.index(name) if name in known else index % len(SYMBOLS)]


def faded(colour: str, alpha: float) -> str:
    """The hexadecimal `colour` with opacity `alpha`, as Plotly and CSS read it."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def template(mode: Mode = "light") -> "go.layout.Template":
    """Plotly template of the theme."""
    import plotly.graph_objects as go

    surface = SURFACES[mode]
    axis = {
        "gridcolor": surface.grid,
        "linecolor": surface.axis,
        "zerolinecolor": surface.axis,
        "tickcolor": surface.axis,
        "ticks": "outside",
        "ticklen": 4,
        "showline": True,
        "zeroline": False,
        "automargin": True,
        "exponentformat": "e",
        "title": {"standoff": 8, "font": {"size": 12, "color": surface.muted}},
        "tickfont": {"size": 11, "color": surface.muted},
    }
    colour_bar = {
        "orientation": "h",
        "y": 1,
        "yanchor": "bottom",
        "lenmode": "pixels",
        "len": 290,
        "outlinewidth": 0,
        "thickness": 10,
        "title": {"side": "top", "font": {"size": 12, "color": surface.muted}},
        "tickfont": {"size": 11, "color": surface.muted},
    }
    layout = go.Layout(
        font={"family": FONT, "size": 13, "color": surface.text},
        title={"font": {"size": 15}, "x": 0, "xref": "paper", "xanchor": "left"},
        paper_bgcolor=surface.panel,
        plot_bgcolor=surface.panel,
        colorway=[*SERIES_COLOURS.values(), NEUTRAL],
        colorscale={"diverging": DIVERGING, "sequential": SEQUENTIAL},
        coloraxis={"colorbar": colour_bar},
        xaxis=axis,
        yaxis=axis,
        hoverlabel={"bgcolor": surface.panel, "font": {"color": surface.text}},
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 1, "yanchor": "top"},
        annotationdefaults={"font": {"size": 12, "color": surface.text}},
        margin={"l": 56, "r": 16, "t": _LEGEND_PIXELS, "b": 48},
        hovermode="closest",
        modebar={"remove": list(_NO_BUTTONS), "bgcolor": "rgba(0,0,0,0)"},
    )
    whisker = {"color": surface.muted}
    return go.layout.Template(layout=layout, data={"bar": [{"error_y": whisker}]})


def new_figure(title: str | None = None, *, height: int = 360, headroom: int = 0) -> "go.Figure":
    """An empty figure in the light theme, as wide as its place, with the legend on top.

    Args:
        title: Title above the legend.
        height: Height in pixels, without title and headroom.
        headroom: Pixels to keep free between legend and plot.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(template=template("light"), height=height, margin_t=_LEGEND_PIXELS)
    add_headroom(figure, headroom)
    if title is not None:
        add_headroom(figure, _TITLE_PIXELS)
        figure.update_layout(
            title={"text": escape_label(title), "y": 1, "yanchor": "top", "pad_t": 8},
            legend_y=1 - _TITLE_PIXELS / (height + headroom + _TITLE_PIXELS),
        )
    return figure


def add_headroom(figure: "go.Figure", pixels: int) -> None:
    """Make the figure higher by `pixels`, which come to lie free between legend and plot."""
    layout: Any = figure.layout
    height = layout.height + pixels
    if layout.legend.y is not None:
        layout.legend.y = 1 - (1 - layout.legend.y) * layout.height / height
    layout.margin.t += pixels
    layout.height = height
