"""A picture as SVG, with the layout of `render.layout`: part of a page, or a document of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib import resources

from flowrl.render.columns import HEADER_HEIGHT, PORT_HEIGHT, SHADE
from flowrl.render.layout import Layout, Point, Rect, Route, SiteFrame, lay_out
from flowrl.render.picture import Box, Picture
from flowrl.render.sheet import (
    ABOUT_LINE,
    ABOUT_Y,
    LEFT,
    LEGEND_LINE,
    TITLE_Y,
    LegendEntry,
    make_sheet,
)

MINIMUM_SCALE = 0.92  # a page scrolls rather than make letters smaller than 11 pixels
NAME_Y, TYPE_Y = 19.0, 35.0  # base lines in the head of a card
# How far the text of a port is from the side of the card, and from its row's top.
PORT_TEXT_X, PORT_TEXT_Y = 8.0, 14.0


def svg_element(drawn: Picture) -> str:
    """An `svg` element for a page with `svg_style`. The mouse or the keyboard can choose a node."""
    laid = lay_out(drawn)
    width, height = _number(laid.width), _number(laid.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="min-width:{_number(laid.width * MINIMUM_SCALE)}px" role="img" aria-label="the graph">',
        *_drawing(laid, interactive=True),
        "</svg>",
    ]
    return "\n".join(lines)


def svg_document(drawn: Picture) -> str:
    """An SVG file that needs nothing else: title, picture, legend and style, on a light background."""
    sheet = make_sheet(drawn)
    width, height = _number(sheet.width), _number(sheet.height)
    size = f'width="{width}" height="{height}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size}>',
        f"<title>{_escaped(sheet.title)}</title>",
        f"<style>{_resolved_style()}</style>",
        f'<rect class="background" {size}/>',
        f'<text class="title" x="{_number(LEFT)}" y="{_number(TITLE_Y)}">{_escaped(sheet.title)}</text>',
    ]
    for number, line in enumerate(sheet.about):
        y = _number(ABOUT_Y + ABOUT_LINE * number)
        lines.append(f'<text class="about" x="{_number(LEFT)}" y="{y}">{_escaped(line)}</text>')
    lines.append(f'<g transform="translate(0,{_number(sheet.top)})">')
    lines += _drawing(sheet.picture, interactive=False)
    lines.append("</g>")
    for entry in sheet.legend:
        lines += _legend_entry(entry)
    return "\n".join([*lines, "</svg>"]) + "\n"


def svg_style() -> str:
    """The style sheet of both kinds of SVG. Its first rule defines the colours, for a light background."""
    return resources.files("flowrl.render").joinpath("picture.css").read_text(encoding="utf-8")


def palette() -> dict[str, str]:
    """The colours of a picture on a light background, by what they are for."""
    return dict(re.findall(r"--(\w+): ([^;]+);", svg_style().partition("}\n")[0]))


def _resolved_style() -> str:
    """The style sheet without variables, which few programs but browsers know."""
    colours = palette()
    rules = svg_style().partition("}\n")[2]
    return re.sub(r"var\(--(\w+)\)", lambda use: colours[use[1]], rules)


def _legend_entry(entry: LegendEntry) -> Iterator[str]:
    line = f"M{_point(entry.line_start)} h{_number(LEGEND_LINE)}"
    yield f'<g class="edge {entry.kind}"><path d="{line}"/>'
    if entry.kind == "link":
        yield f'<path class="inner" d="{line}"/>'
    yield f"{_text(*entry.words_at, entry.words, 'start')}</g>"


def _drawing(laid: Layout, interactive: bool) -> Iterator[str]:
    """A group for each site, edge and node, in this order: nodes are on top."""
    yield "<defs>"
    for kind in ("stream", "state"):
        yield (
            f'<marker id="arrow-{kind}" class="head {kind}" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0,0.5 L8,4 L0,7.5 z"/></marker>'
        )
    yield "</defs>"
    for frame in laid.frames:
        yield from _site(frame)
    for route in laid.routes:
        yield from _edge(route)
    for box, card in laid.cards:
        yield from _node(box, card, interactive)


def _site(frame: SiteFrame) -> Iterator[str]:
    yield f'<g class="site"><title>site {_escaped(frame.site)}</title>'
    yield f'<rect {_rect(frame.rect)} rx="10"/>'
    yield f"{_text(*frame.name_at, frame.site, 'start')}</g>"


def _edge(route: Route) -> Iterator[str]:
    arrow = route.arrow
    path = _path(route)
    ends = f'data-from="{_escaped(arrow.source.node)}" data-to="{_escaped(arrow.to.node)}"'
    yield f'<g class="edge {arrow.kind}" {ends}>'
    link = "<->" if arrow.kind == "link" else "->"
    yield f"<title>{_escaped(f'{arrow.source} {link} {arrow.to}: {arrow.label}')}</title>"
    if arrow.kind == "link":
        yield f'<path d="{path}"/><path class="inner" d="{path}"/>'
    else:
        yield f'<path d="{path}" marker-end="url(#arrow-{arrow.kind})"/>'
    for label in route.labels:
        yield f'<rect class="behind" {_rect(label.background)}/>'
        yield _text(*label.at, label.text, "middle")
    yield "</g>"


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}">{_escaped(words)}</text>'
    )


def _rect(rect: Rect) -> str:
    place = f'x="{_number(rect.left)}" y="{_number(rect.top)}"'
    return f'{place} width="{_number(rect.width)}" height="{_number(rect.height)}"'


def _path(route: Route) -> str:
    d = [f"M{_point(route.start)}"]
    for segment in route.segments:
        d.append(("L" if len(segment) == 1 else "C") + " ".join(map(_point, segment)))
    return " ".join(d)


# nodes


def _node(box: Box, card: Rect, interactive: bool) -> Iterator[str]:
    name = _escaped(box.name)
    control = 'tabindex="0" role="button" ' if interactive else ""
    yield (
        f'<g class="node is-{box.look}" data-node="{name}" {control}'
        f'transform="translate({_number(card.left)},{_number(card.top)})">'
    )
    yield f"<title>{name}: {_escaped(box.type)}</title>"
    size = f'rx="6" width="{_number(card.width)}" height="{_number(card.height)}"'
    if box.times:
        yield f'<rect class="card shade" x="{_number(SHADE)}" y="{_number(SHADE)}" {size}/>'
    yield f'<rect class="card" {size}/>'
    yield f'<path class="band" d="{_header_path(card.width)}"/>'
    middle = _number(card.width / 2)
    times = f' <tspan class="times">{box.times}</tspan>' if box.times else ""
    yield f'<text class="name" x="{middle}" y="{_number(NAME_Y)}">{name}{times}</text>'
    yield f'<text class="type" x="{middle}" y="{_number(TYPE_Y)}">{_escaped(box.type)}</text>'
    for side, ports, x in (
        ("in", box.inputs, PORT_TEXT_X),
        ("out", box.outputs, card.width - PORT_TEXT_X),
    ):
        for i, port in enumerate(ports):
            y = _number(HEADER_HEIGHT + PORT_HEIGHT * i + PORT_TEXT_Y)
            yield f'<text class="{side}" x="{_number(x)}" y="{y}">{_escaped(port)}</text>'
    yield "</g>"


def _header_path(width: float) -> str:
    """The coloured head of a box, with round upper corners."""
    right, foot = _number(width), _number(HEADER_HEIGHT - 2)
    return f"M0,{foot} V6 Q0,0 6,0 H{_number(width - 6)} Q{right},0 {right},6 V{foot} Z"


# text


def _escaped(text: str) -> str:
    """Text for XML, which cannot contain control characters."""
    return escape("".join(c if c.isprintable() else " " for c in text))


def _point(point: Point) -> str:
    return f"{_number(point[0])},{_number(point[1])}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
