"""What an SVG file of a graph shows, measured in the file itself: boxes, lines and texts as a reader sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import matplotlib
from PIL import ImageFont

from flowrl.render.layout import Rect

SVG = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]
STEP = 1 / 40  # of a curve, between the points at which it is examined


@dataclass(frozen=True)
class Text:
    """A text with its size in pixels and the room it takes in DejaVu Sans."""

    words: str
    size: float
    rect: Rect


@dataclass(frozen=True)
class Edge:
    """The points of an edge's line, and its labels."""

    ends: tuple[str, str]
    points: list[Point]
    labels: list[Text]


@dataclass(frozen=True)
class DrawnSvg:
    """All that an SVG file shows."""

    width: float
    height: float
    boxes: dict[str, Rect]
    edges: list[Edge]
    texts: list[Text]


def measure_svg(document: str) -> DrawnSvg:
    root = fromstring(document.encode())
    style = next(root.iter(f"{SVG}style")).text or ""
    boxes: dict[str, Rect] = {}
    edges: list[Edge] = []
    texts: list[Text] = []

    def visit(element: Element, classes: tuple[str, ...], dx: float, dy: float) -> None:
        if moved := re.match(r"translate\(([-\d.]+),([-\d.]+)\)", element.get("transform", "")):
            dx, dy = dx + float(moved[1]), dy + float(moved[2])
        own = (element.get("class") or "").split()
        if element.tag == f"{SVG}text":
            texts.append(_text(element, style, (*classes, *own), dx, dy))
        if "node" in own:
            card = [r for r in element.iter(f"{SVG}rect") if r.get("class") == "card"][-1]
            boxes[element.get("data-node") or ""] = _rect(card, dx, dy)
        if "edge" in own and element.get("data-from"):
            path = next(element.iter(f"{SVG}path")).get("d") or ""
            labels = [
                _text(text, style, (*own, *(text.get("class") or "").split()), dx, dy)
                for text in element.iter(f"{SVG}text")
            ]
            ends = (element.get("data-from") or "", element.get("data-to") or "")
            edges.append(Edge(ends, [(x + dx, y + dy) for x, y in _points(path)], labels))
        for child in element:
            visit(child, (*classes, *own), dx, dy)

    visit(root, (), 0.0, 0.0)
    width, height = float(root.get("width") or 0), float(root.get("height") or 0)
    return DrawnSvg(width, height, boxes, edges, texts)


def _rect(element: Element, dx: float, dy: float) -> Rect:
    x, y, width, height = (float(element.get(k) or 0) for k in ("x", "y", "width", "height"))
    return Rect(x + dx, y + dy, width, height)


def _text(element: Element, style: str, classes: tuple[str, ...], dx: float, dy: float) -> Text:
    words = "".join(element.itertext())
    size, bold, anchor = 12.0, False, element.get("text-anchor") or "start"
    for rule in re.finditer(r"([^{}]+)\{([^}]*)\}", style):
        names = [re.findall(r"\.([\w-]+)", one) for one in rule[1].split(",")]
        if any(found and set(found) <= set(classes) for found in names):
            if found := re.search(r"font-size: ([\d.]+)px", rule[2]):
                size = float(found[1])
            if found := re.search(r"text-anchor: (\w+)", rule[2]):
                anchor = found[1]
            bold = bold or "font-weight: 700" in rule[2]
    width = font(bold).getlength(words) / 100 * size
    left = float(element.get("x") or 0) + dx
    left -= {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    base = float(element.get("y") or 0) + dy
    return Text(words, size, Rect(left, base - 0.78 * size, width, size))


@cache
def font(bold: bool) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, 100 pixels high."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), 100)


def _points(d: str) -> Iterator[Point]:
    """Points along a path of the commands M, L and C."""
    last: Point = (0.0, 0.0)
    for command, numbers in re.findall(r"([MLC])([-\d., ]+)", d):
        values = [float(n) for n in re.findall(r"-?[\d.]+", numbers)]
        stops = list(zip(values[::2], values[1::2], strict=True))
        if command == "M":
            yield stops[0]
        elif command == "L":
            yield from _along(last, last, stops[0], stops[0])
        else:
            yield from _along(last, *stops)
        last = stops[-1]


def _along(a: Point, b: Point, c: Point, d: Point) -> Iterator[Point]:
    for i in range(1, round(1 / STEP) + 1):
        t = i * STEP
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        x, y = (sum(w * p[k] for w, p in zip(weights, (a, b, c, d), strict=True)) for k in (0, 1))
        yield x, y
