"""Draws a graph: DOT, SVG and PNG, Mermaid, HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import UsageError
from flowrl.render.dot import dot_text
from flowrl.render.graphviz import is_installed, run_dot
from flowrl.render.html import page_html
from flowrl.render.mermaid import mermaid_text
from flowrl.render.picture import Picture, make_picture
from flowrl.render.report import check_text
from flowrl.render.svg import svg_document

LARGE_NODES = 40  # from here on Graphviz, which crosses fewer arrows, draws SVG if it is installed

Format = Callable[[Picture, CheckedGraph], str | bytes]


def _svg(drawn: Picture, checked: CheckedGraph) -> str | bytes:
    if len(drawn.boxes) >= LARGE_NODES and is_installed():
        return run_dot(dot_text(drawn, for_layout=True), "svg")
    return svg_document(drawn)


FORMATS: Mapping[str, Format] = {
    ".dot": lambda drawn, checked: dot_text(drawn),
    ".svg": _svg,
    ".png": lambda drawn, checked: run_dot(dot_text(drawn, for_layout=True), "png"),
    ".md": lambda drawn, checked: mermaid_text(drawn, check_text(checked)),
    ".html": page_html,
}


def draw(
    checked: CheckedGraph,
    placement: Mapping[str, str] | None = None,
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
