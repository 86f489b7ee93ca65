"""A picture as SVG, with the layout of `render.layout`: part of a page, or a document of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from importlib import resources

from flowrl.render.layout import (
    HEADER_HEIGHT,
    PORT_HEIGHT,
    SMALL_CHAR_WIDTH,
    TURN_WIDTH,
    Cell,
    Layout,
    Point,
    Route,
    lay_out,
)
from flowrl.render.picture import Picture

MINIMUM_SCALE = 0.7  # a page scrolls rather than make the letters smaller
FRAME = 8.0  # pixels around the nodes of a site
STEEP = 12.0  # pixels: the label of an arrow that rises or falls more stands at one of its ends
TITLE_HEIGHT, LINE_HEIGHT, LEGEND_HEIGHT = 34.0, 16.0, 24.0

LEGEND = {
    "stream": "stream: every token, in order",
    "state": "state: the newest version",
    "link": "link: calls",
}


def svg_element(drawn: Picture) -> str:
    """An `svg` element for a page with `svg_style`. The mouse or the keyboard can choose a node."""
    laid = lay_out(drawn)
    width, height = _number(laid.width), _number(laid.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="min-width:{_number(laid.width * MINIMUM_SCALE)}px" role="img" aria-label="the graph">',
        *_drawing(laid, drawn.sites, interactive=True),
        "</svg>",
    ]
    return "\n".join(lines)


def svg_document(drawn: Picture) -> str:
    """An SVG file that needs nothing else: title, picture, legend and style, on a light background."""
    laid = lay_out(drawn)
    title_lines = [drawn.about] if drawn.about else []
    title_lines = [
        line
        for text in (*title_lines, *(f"warm-up, {line}" for line in drawn.warmup))
        for line in text.splitlines()
    ]
    top = TITLE_HEIGHT + LINE_HEIGHT * len(title_lines)
    longest = max(map(len, (drawn.name, *title_lines)))
    width = max(laid.width, 40 + SMALL_CHAR_WIDTH * longest, 520.0)
    height = top + laid.height + LEGEND_HEIGHT
    size = f'width="{_number(width)}" height="{_number(height)}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(width)} {_number(height)}" {size}>',
        f"<title>{_escaped(drawn.name)}</title>",
        f"<style>{_resolved_style()}</style>",
        f'<rect class="background" {size}/>',
        f'<text class="title" x="20" y="28">{_escaped(drawn.name)}</text>',
    ]
    for number, line in enumerate(title_lines, 1):
        y = _number(28 + LINE_HEIGHT * number)
        lines.append(f'<text class="about" x="20" y="{y}">{_escaped(line)}</text>')
    lines.append(f'<g transform="translate(0,{_number(top)})">')
    lines += _drawing(laid, drawn.sites, interactive=False)
    lines.append("</g>")
    lines += _legend(height - LEGEND_HEIGHT / 2)
    return "\n".join([*lines, "</svg>"]) + "\n"


def svg_style() -> str:
    """The style sheet of both kinds of SVG. Its first rule defines the colours, for a light background."""
    return resources.files("flowrl.render").joinpath("picture.css").read_text(encoding="utf-8")


def _resolved_style() -> str:
    """The style sheet without variables, which few programs but browsers know."""
    palette, _, rules = svg_style().partition("}\n")
    colours = dict(re.findall(r"(--\w+): ([^;]+);", palette))
    return re.sub(r"var\((--\w+)\)", lambda use: colours[use[1]], rules)


def _legend(y: float) -> Iterator[str]:
    x = 20.0
    for kind, words in LEGEND.items():
        line = f"M{_number(x)},{_number(y)} h26"
        yield f'<g class="edge {kind}"><path d="{line}"/>'
        if kind == "link":
            yield f'<path class="inner" d="{line}"/>'
        yield f"{_text(x + 34, y + 4, words, 'start')}</g>"
        x += 34 + SMALL_CHAR_WIDTH * len(words) + 24


def _drawing(
    laid: Layout, sites: Mapping[str, tuple[str, ...]], interactive: bool
) -> Iterator[str]:
    """A group for each site, edge and node, in this order: nodes are on top."""
    yield "<defs>"
    for kind in ("stream", "state"):
        yield (
            f'<marker id="arrow-{kind}" class="head {kind}" viewBox="0 0 8 8" refX="7" refY="4" '
            'markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0,0.5 L8,4 L0,7.5 z"/></marker>'
        )
    yield "</defs>"
    for site, nodes in sites.items():
        for frame in _frames(laid.cells, nodes):
            yield from _site(site, *frame)
    for route in laid.routes:
        yield from _edge(route)
    for cell in laid.cells.values():
        yield from _node(cell, interactive)


# sites

Frame = tuple[float, float, float, float]  # left, top, right, bottom


def _frames(cells: Mapping[str, Cell], nodes: tuple[str, ...]) -> list[Frame]:
    """One frame around all nodes of a site, or one around each node if nodes of other sites lie between them."""
    each = [_around(cells[name]) for name in nodes]
    whole = tuple(
        f(edge) for f, edge in zip((min, min, max, max), zip(*each, strict=True), strict=True)
    )
    others = [_around(cell) for name, cell in cells.items() if name not in nodes]
    if any(_overlap(whole, other) for other in others):
        return each
    return [whole]


def _around(cell: Cell) -> Frame:
    left, top = cell.x - FRAME, cell.y - FRAME - 8
    return left, top, cell.x + cell.width + FRAME, cell.y + cell.height + FRAME


def _overlap(a: Frame, b: Frame) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _site(name: str, left: float, top: float, right: float, bottom: float) -> Iterator[str]:
    yield f'<g class="site"><title>site {_escaped(name)}</title>'
    size = f'width="{_number(right - left)}" height="{_number(bottom - top)}"'
    yield f'<rect x="{_number(left)}" y="{_number(top)}" rx="10" {size}/>'
    yield f'<text x="{_number(left + 8)}" y="{_number(top + 11)}">{_escaped(name)}</text></g>'


# edges


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
    yield from _labels(route)
    yield "</g>"


def _labels(route: Route) -> Iterator[str]:
    """The type of the tokens over the arrow, and the facts below it.

    A steep arrow is labelled where it starts, or where it ends if it is a state edge. An arrow that leads back has one
    line, over its middle.
    """
    arrow = route.arrow
    if route.pieces and arrow.back:
        x, y = _middle(route.pieces)
        yield _text(x, y - 4, arrow.label, "middle")
        return
    after = route.pieces[0][0] if route.pieces else route.end
    descent = after[1] - route.start[1]
    if abs(descent) <= STEEP:
        x, y, anchor = (route.start[0] + after[0]) / 2, route.start[1] + descent / 2, "middle"
        upper, lower = y - 5, y + 13
    else:
        at_end = arrow.kind == "state"
        x, y = (route.end[0] - 12, route.end[1]) if at_end else (route.start[0] + 6, route.start[1])
        anchor = "end" if at_end else "start"
        above = (descent > 0) != at_end  # where the arrow is not
        upper, lower = (y - 18, y - 5) if above else (y + 13, y + 26)
    if arrow.facts_label:
        yield _text(x, lower, arrow.facts_label, anchor)
    elif upper < lower < y:  # the only line goes next to the arrow
        upper = lower
    yield _text(x, upper, arrow.type, anchor)


def _middle(pieces: tuple[tuple[Point, Point], ...]) -> Point:
    """The point halfway along the tracks of an arrow that leads back, that is, to the left."""
    x = (pieces[0][0][0] + pieces[-1][1][0]) / 2
    for begin, end in pieces:
        if end[0] <= x <= begin[0]:
            return x, begin[1]
    between = [
        piece[0][1]
        for piece in (
            *[p for p in pieces if p[1][0] > x][-1:],
            *[p for p in pieces if p[0][0] < x][:1],
        )
    ]
    return x, sum(between) / len(between)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}">{_escaped(words)}</text>'
    )


def _path(route: Route) -> str:
    """Straight in the columns, curved between them, and around a box where the arrow turns back."""
    leads_left = route.start[0] >= route.end[0] or route.arrow.back
    d, last = [f"M{_point(route.start)}"], route.start
    for begin, end in route.pieces:
        d.append(_curve(last, begin, turn=leads_left and last is route.start))
        d.append(f"L{_point(end)}")
        last = end
    d.append(_curve(last, route.end, turn=leads_left and bool(route.pieces)))
    return " ".join(d)


def _curve(a: Point, b: Point, turn: bool) -> str:
    if turn:  # both tangents on one side: out of a box and back below it
        side = max(a[0], b[0]) + TURN_WIDTH if a[1] < b[1] else min(a[0], b[0]) - TURN_WIDTH
        return f"C{_point((side, a[1]))} {_point((side, b[1]))} {_point(b)}"
    middle = (a[0] + b[0]) / 2
    return f"C{_point((middle, a[1]))} {_point((middle, b[1]))} {_point(b)}"


# nodes


def _node(cell: Cell, interactive: bool) -> Iterator[str]:
    box = cell.box
    assert box is not None
    name = _escaped(box.name)
    control = 'tabindex="0" role="button" ' if interactive else ""
    yield (
        f'<g class="node is-{box.look}" data-node="{name}" {control}'
        f'transform="translate({_number(cell.x)},{_number(cell.y)})">'
    )
    yield f"<title>{name}: {_escaped(box.type)}</title>"
    size = f'rx="6" width="{_number(cell.width)}" height="{_number(cell.height)}"'
    if box.times:
        yield f'<rect class="card shade" x="5" y="5" {size}/>'
    yield f'<rect class="card" {size}/>'
    yield f'<path class="band" d="{_header_path(cell.width)}"/>'
    middle = _number(cell.width / 2)
    times = f' <tspan class="times">{box.times}</tspan>' if box.times else ""
    yield f'<text class="name" x="{middle}" y="18">{name}{times}</text>'
    yield f'<text class="type" x="{middle}" y="33">{_escaped(box.type)}</text>'
    for side, ports, x in (("in", box.inputs, 8.0), ("out", box.outputs, cell.width - 8)):
        for i, port in enumerate(ports):
            y = _number(HEADER_HEIGHT + PORT_HEIGHT * i + 13)
            yield f'<text class="{side}" x="{_number(x)}" y="{y}">{_escaped(port)}</text>'
    yield "</g>"


def _header_path(width: float) -> str:
    """The coloured head of a box, with round upper corners."""
    return f"M0,40 V6 Q0,0 6,0 H{_number(width - 6)} Q{_number(width)},0 {_number(width)},6 V40 Z"


# text


def _escaped(text: str) -> str:
    """Text for XML, which cannot contain control characters."""
    return escape("".join(c if c.isprintable() else " " for c in text))


def _point(point: Point) -> str:
    return f"{_number(point[0])},{_number(point[1])}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
