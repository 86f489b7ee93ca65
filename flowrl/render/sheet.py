"""A picture with what is around it in a file of its own: the title above it, the legend below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flowrl.render.layout import Layout, Point, lay_out
from flowrl.render.picture import Picture
from flowrl.render.text_size import ABOUT_SIZE, SMALL_SIZE, TITLE_SIZE, text_width

# pixels
LEFT = 24.0
TITLE_Y, ABOUT_Y, ABOUT_LINE = 34.0, 58.0, 19.0  # base lines of the title and of the lines below it
LEGEND_HEIGHT, LEGEND_LINE, LEGEND_GAP = 30.0, 28.0, 26.0
LEAST_WIDTH = 560.0

LEGEND = {
    "stream": "stream: every token, in order",
    "state": "state: the newest version",
    "link": "link: calls",
}


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A line in the look of a kind of edge, and the words right of it."""

    kind: str
    words: str
    line_start: Point
    words_at: Point


@dataclass(frozen=True, slots=True)
class Sheet:
    """The layout of a file: the picture is moved down by `top`."""

    title: str
    about: tuple[str, ...]
    top: float
    width: float
    height: float
    picture: Layout
    legend: tuple[LegendEntry, ...]


def make_sheet(drawn: Picture) -> Sheet:
    picture = lay_out(drawn)
    texts = [drawn.about] if drawn.about else []
    texts += [f"warm-up, {line}" for line in drawn.warmup]
    about = tuple(line for text in texts for line in text.splitlines())
    top = ABOUT_Y + ABOUT_LINE * (len(about) - 1) if about else TITLE_Y
    widths = [text_width(drawn.name, TITLE_SIZE, bold=True)]
    widths += [text_width(line, ABOUT_SIZE) for line in about]
    height = top + picture.height + LEGEND_HEIGHT
    return Sheet(
        drawn.name,
        about,
        top,
        max(picture.width, LEAST_WIDTH, 2 * LEFT + max(widths)),
        height,
        picture,
        tuple(_legend(height - LEGEND_HEIGHT / 2)),
    )


def _legend(y: float) -> Iterator[LegendEntry]:
    x = LEFT
    for kind, words in LEGEND.items():
        yield LegendEntry(kind, words, (x, y), (x + LEGEND_LINE + 8, y + 4))
        x += LEGEND_LINE + 8 + text_width(words, SMALL_SIZE) + LEGEND_GAP
