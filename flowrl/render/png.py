"""A picture as PNG, drawn by matplotlib with the layout, the colours and the text of the SVG file."""

from __future__ import annotations

import math
import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

from flowrl.render.columns import HEADER_HEIGHT, PORT_HEIGHT, SHADE
from flowrl.render.layout import Point, Rect, Route, SiteFrame
from flowrl.render.picture import Box, Picture
from flowrl.render.sheet import (
    ABOUT_LINE,
    ABOUT_Y,
    LEFT,
    LEGEND_LINE,
    TITLE_Y,
    LegendEntry,
    Sheet,
    make_sheet,
)
from flowrl.render.svg import NAME_Y, PORT_TEXT_X, PORT_TEXT_Y, TYPE_Y, palette
from flowrl.render.text_size import ABOUT_SIZE, NAME_SIZE, SMALL_SIZE, TITLE_SIZE, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALE = 2.0  # pixels of the file for one of the picture
MOST_PIXELS, LONGEST_SIDE = 50_000_000, 60_000  # of the file; larger pictures have a smaller scale
POINTS = 0.72  # of a pixel of the picture, as matplotlib measures text and lines


def png_bytes(drawn: Picture) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sheet = make_sheet(drawn)
    by_area = math.sqrt(MOST_PIXELS / (sheet.width * sheet.height))
    scale = min(SCALE, by_area, LONGEST_SIDE / max(sheet.width, sheet.height))
    look = rc_context({"font.family": ["DejaVu Sans"], "text.parse_math": False})
    with look, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # it shows a box for it
        figure = Figure(figsize=(sheet.width / 100, sheet.height / 100), dpi=100 * scale)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0))
        axes.axis("off")
        _Pen(axes, palette()).sheet(sheet)
        file = BytesIO()
        figure.savefig(file, format="png", pil_kwargs={"compress_level": 3})
    return file.getvalue()


class _Pen:
    """Draws on axes whose unit is a pixel of the picture."""

    def __init__(self, axes: Axes, colours: dict[str, str]) -> None:
        self._axes, self._colours, self._down = axes, colours, 0.0

    def sheet(self, sheet: Sheet) -> None:
        self._text((LEFT, TITLE_Y), sheet.title, "ink", "left", TITLE_SIZE, weight="bold")
        for number, line in enumerate(sheet.about):
            self._text((LEFT, ABOUT_Y + ABOUT_LINE * number), line, "faint", "left", ABOUT_SIZE)
        for entry in sheet.legend:
            self._legend_entry(entry)
        self._down = sheet.top
        for frame in sheet.picture.frames:
            self._frame(frame)
        for route in sheet.picture.routes:
            self._route(route)
        for box, card in sheet.picture.cards:
            self._node(box, card)

    def _legend_entry(self, entry: LegendEntry) -> None:
        x, y = entry.line_start
        self._line(entry.kind, (x, y), [((x + LEGEND_LINE, y),)])
        self._text(entry.words_at, entry.words, entry.kind, "left")

    def _frame(self, frame: SiteFrame) -> None:
        self._rounded(frame.rect, 10, "faint", None, alpha=0.07)
        self._rounded(frame.rect, 10, "none", "faint", alpha=0.5, linestyle=(0, (2, 3)))
        self._text(frame.name_at, frame.site, "faint", "left")

    def _route(self, route: Route) -> None:
        self._line(route.arrow.kind, route.start, list(route.segments))
        if route.arrow.kind != "link":
            self._head(route.segments[-1][-1], route.arrow.kind)
        for label in route.labels:
            self._rounded(label.background, 3, "card", None, alpha=0.85)
            self._text(label.at, label.text, route.arrow.kind, "center")

    def _head(self, tip: Point, kind: str) -> None:
        """The head of an arrow. All arrows end to the right."""
        (x, y), colour = tip, self._colours[kind]
        corners = [(x + 1, y), (x - 10, y - 5), (x - 10, y + 5)]
        xs, ys = zip(*((a, b + self._down) for a, b in corners), strict=True)
        self._axes.fill(xs, ys, color=colour, linewidth=0)

    def _node(self, box: Box, card: Rect) -> None:
        if box.times:
            behind = Rect(card.left + SHADE, card.top + SHADE, card.width, card.height)
            self._rounded(behind, 6, "card", "faint")
        self._rounded(card, 6, "card", None)
        head = Rect(card.left, card.top, card.width, HEADER_HEIGHT - 2)
        self._rounded(head, 6, box.look, None)
        foot = Rect(card.left, card.top + HEADER_HEIGHT / 2, card.width, HEADER_HEIGHT / 2 - 2)
        self._rounded(foot, 0, box.look, None)
        self._rounded(card, 6, "none", "faint")
        middle = card.left + card.width / 2
        times = text_width(f" {box.times}", NAME_SIZE, bold=True) if box.times else 0.0
        name_at = (middle - times / 2, card.top + NAME_Y)
        self._text(name_at, box.name, "ink", "center", NAME_SIZE, weight="bold")
        if box.times:
            times_at = (
                name_at[0] + text_width(box.name, NAME_SIZE, bold=True) / 2 + 4,
                name_at[1],
            )
            self._text(times_at, box.times, "state", "left", NAME_SIZE, weight="bold")
        self._text((middle, card.top + TYPE_Y), box.type, "faint", "center")
        for ports, x, align in (
            (box.inputs, card.left + PORT_TEXT_X, "left"),
            (box.outputs, card.right - PORT_TEXT_X, "right"),
        ):
            for i, port in enumerate(ports):
                y = card.top + HEADER_HEIGHT + PORT_HEIGHT * i + PORT_TEXT_Y
                self._text((x, y), port, "ink", align)

    def _text(
        self,
        at: Point,
        words: str,
        colour: str,
        align: str,
        size: float = SMALL_SIZE,
        weight: str = "normal",
    ) -> None:
        shown = "".join(c if c.isprintable() else " " for c in words)
        self._axes.text(
            at[0],
            at[1] + self._down,
            shown,
            color=self._colours[colour],
            horizontalalignment=align,
            verticalalignment="baseline",
            fontsize=size * POINTS,
            fontweight=weight,
        )

    def _rounded(
        self, rect: Rect, radius: float, fill: str, stroke: str | None, **look: Any
    ) -> None:
        from matplotlib.patches import FancyBboxPatch

        self._axes.add_artist(
            FancyBboxPatch(
                (rect.left + radius, rect.top + radius + self._down),
                rect.width - 2 * radius,
                rect.height - 2 * radius,
                boxstyle=f"round,pad={radius}" if radius else "square,pad=0",
                facecolor=self._colours.get(fill, "none"),
                edgecolor=self._colours[stroke] if stroke else "none",
                linewidth=POINTS,
                **look,
            )
        )

    def _line(self, kind: str, start: Point, segments: list[tuple[Point, ...]]) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        points, codes = [start], [Path.MOVETO]
        for segment in segments:
            points += segment
            codes += [Path.LINETO] if len(segment) == 1 else [Path.CURVE4] * 3
        path = Path([(x, y + self._down) for x, y in points], codes)
        style = (0, (6 / 1.6, 4 / 1.6)) if kind == "state" else "solid"
        strokes = [("link", 4.0), ("card", 1.6)] if kind == "link" else [(kind, 1.6)]
        for colour, width in strokes:
            self._axes.add_artist(
                PathPatch(
                    path,
                    fill=False,
                    edgecolor=self._colours[colour],
                    linewidth=width * POINTS,
                    linestyle=style,
                    capstyle="butt",
                )
            )
