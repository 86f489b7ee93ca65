"""Pictures of a graph: DOT, SVG and PNG, Mermaid, HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import UsageError
from flowrl.render.dot import dot_of
from flowrl.render.graphviz import rendered
from flowrl.render.html import html_of
from flowrl.render.mermaid import mermaid_of
from flowrl.render.picture import Picture, picture
from flowrl.render.report import check_text

Format = Callable[[Picture, CheckedGraph], str | bytes]

FORMATS: Mapping[str, Format] = {
    ".dot": lambda drawn, checked: dot_of(drawn),
    ".svg": lambda drawn, checked: rendered(dot_of(drawn, turned=True), "svg"),
    ".png": lambda drawn, checked: rendered(dot_of(drawn, turned=True), "png"),
    ".md": lambda drawn, checked: mermaid_of(drawn, check_text(checked)),
    ".html": html_of,
}


def draw(
    checked: CheckedGraph,
    placement: Mapping[str, str] | None = None,
    path: str | Path | None = None,
) -> str:
    """Write the picture that the file's ending asks for, and give its path; no file: give DOT."""
    if path is None:
        return dot_of(picture(checked, placement))
    path = Path(path)
    if path.suffix not in FORMATS:
        endings = ", ".join(FORMATS)
        raise UsageError(f"draw: {path}: unknown ending '{path.suffix}'; known: {endings}")
    made = FORMATS[path.suffix](picture(checked, placement), checked)
    try:
        path.write_bytes(made.encode() if isinstance(made, str) else made)
    except OSError as error:
        raise UsageError(f"draw: {path}: cannot be written: {error.strerror}") from None
    return str(path)
