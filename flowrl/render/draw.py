"""Draws a graph: DOT, SVG and PNG, Mermaid, HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import UsageError
from flowrl.graph.placement import Placement
from flowrl.render.dot import dot_text
from flowrl.render.html import page_html
from flowrl.render.mermaid import mermaid_text
from flowrl.render.picture import Picture, make_picture
from flowrl.render.png import png_bytes
from flowrl.render.report import check_text
from flowrl.render.svg import svg_document

Format = Callable[[Picture, CheckedGraph], str | bytes]


FORMATS: Mapping[str, Format] = {
    ".dot": lambda drawn, checked: dot_text(drawn),
    ".svg": lambda drawn, checked: svg_document(drawn),
    ".png": lambda drawn, checked: png_bytes(drawn),
    ".md": lambda drawn, checked: mermaid_text(drawn, check_text(checked)),
    ".html": page_html,
}


def draw(
    checked: CheckedGraph,
    placement: Placement | None = None,
    path: str | Path | None = None,
) -> str:
    """Write the picture in the format of the file's ending, and return its path. Without a file, return DOT text."""
    drawn = make_picture(checked, placement)
    if path is None:
        return dot_text(drawn)
    path = Path(path)
    if path.suffix not in FORMATS:
        endings = ", ".join(FORMATS)
        raise UsageError(f"draw: {path}: unknown ending '{path.suffix}'; known: {endings}")
    content = FORMATS[path.suffix](drawn, checked)
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"draw: {path}: cannot be written: {error.strerror}") from None
    return str(path)
