"""A page of figures and tables in one file, which opens without a network."""

from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from matplotlib import rc_context
from matplotlib.figure import Figure

from ..files.folder import replace_text


def write_page(path: Path, figures: Mapping[str, tuple[Figure, str]], **content: Any) -> None:
    """Fill the template of the page's name. Each figure, with its caption, is also an SVG file beside the page."""
    embedded = {}
    for name, (figure, caption) in figures.items():
        svg = write_figure(path.parent / f"{name}.svg", figure)
        embedded[name] = dict(svg=b64encode(svg).decode(), caption=caption)
    environment = Environment(loader=PackageLoader("resolvent.pages"), autoescape=True, trim_blocks=True)
    text = environment.get_template(path.name).render(figures=embedded, **content)
    replace_text(path, text)


def write_figure(path: Path, figure: Figure) -> bytes:
    """The figure as SVG; the same figure gives the same bytes."""
    buffer = BytesIO()
    with rc_context({"svg.hashsalt": "resolvent"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    path.write_bytes(buffer.getvalue())
    return buffer.getvalue()
