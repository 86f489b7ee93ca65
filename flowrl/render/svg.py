"""A laid-out picture as SVG, styled by the page around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from flowrl.render.layout import TURN, Layout, Point, Route, lay_out
from flowrl.render.layout_cells import HEADER, ROW, Cell
from flowrl.render.picture import Picture

LEAST_SCALE = 0.7  # a page scrolls rather than make the letters smaller
FRAME = 8.0  # pixels around the nodes of a site
STEEP = 30.0  # pixels: words stand at the end of an arrow that climbs more


def svg_of(drawn: Picture) -> str:
    """The picture as an `svg` element, with a group for each node and each edge."""
    return "\n".join(_svg(lay_out(drawn), drawn.sites))


def _svg(laid: Layout, sites: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    width, height = _n(laid.width), _n(laid.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="min-width:{_n(laid.width * LEAST_SCALE)}px" role="img" aria-label="the graph">'
    )
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
        yield from _node(cell)
    yield "</svg>"


Frame = tuple[float, float, float, float]  # left, top, right, bottom


def _frames(cells: Mapping[str, Cell], nodes: tuple[str, ...]) -> list[Frame]:
    """One frame around all nodes of a site; a frame for each, where others lie between them."""
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
    yield f'<g class="site"><title>site {escape(name)}</title>'
    size = f'width="{_n(right - left)}" height="{_n(bottom - top)}"'
    yield f'<rect x="{_n(left)}" y="{_n(top)}" rx="10" {size}/>'
    yield f'<text x="{_n(left + 8)}" y="{_n(top + 11)}">{escape(name)}</text></g>'


def _edge(route: Route) -> Iterator[str]:
    arrow = route.arrow
    path = _path(route)
    ends = f'data-from="{escape(arrow.source.node)}" data-to="{escape(arrow.to.node)}"'
    yield f'<g class="edge {arrow.kind}" {ends}>'
    said = f"{arrow.source} {'<->' if arrow.kind == 'link' else '->'} {arrow.to}: {arrow.label}"
    yield f"<title>{escape(said)}</title>"
    if arrow.kind == "link":
        yield f'<path d="{path}"/><path class="inner" d="{path}"/>'
    else:
        yield f'<path d="{path}" marker-end="url(#arrow-{arrow.kind})"/>'
    yield from _words(route)
    yield "</g>"


def _words(route: Route) -> Iterator[str]:
    """What the arrow carries: over and under it, or where it begins (state: ends) if it climbs."""
    arrow = route.arrow
    if route.pieces and arrow.back:
        lanes = route.pieces[1:-1] or route.pieces[:1]
        begin, end = lanes[len(lanes) // 2]
        yield _text((begin[0] + end[0]) / 2, begin[1] - 4, arrow.label, "middle")
        return
    after = route.pieces[0][0] if route.pieces else route.end
    x, y, anchor = (route.start[0] + after[0]) / 2, (route.start[1] + after[1]) / 2, "middle"
    if abs(after[1] - route.start[1]) > STEEP and arrow.kind != "state":
        x, y, anchor = route.start[0] + 6, route.start[1], "start"
    elif abs(after[1] - route.start[1]) > STEEP:
        x, y, anchor = route.end[0] - 12, route.end[1], "end"
    yield _text(x, y - 5, arrow.type, anchor)
    if arrow.below:
        yield _text(x, y + 13, arrow.below, anchor)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def _path(route: Route) -> str:
    """Straight in the columns, curved between them, and around a box where the arrow turns."""
    left = route.start[0] >= route.end[0] or route.arrow.back
    d, at = [f"M{_p(route.start)}"], route.start
    for begin, end in route.pieces:
        d.append(_curve(at, begin, turn=left and at is route.start))
        d.append(f"L{_p(end)}")
        at = end
    d.append(_curve(at, route.end, turn=left and bool(route.pieces)))
    return " ".join(d)


def _curve(a: Point, b: Point, turn: bool) -> str:
    if turn:  # both tangents on one side: out of a box and back below it
        side = max(a[0], b[0]) + TURN if a[1] < b[1] else min(a[0], b[0]) - TURN
        return f"C{_p((side, a[1]))} {_p((side, b[1]))} {_p(b)}"
    middle = (a[0] + b[0]) / 2
    return f"C{_p((middle, a[1]))} {_p((middle, b[1]))} {_p(b)}"


def _node(cell: Cell) -> Iterator[str]:
    box = cell.box
    assert box is not None
    name = escape(box.name)
    yield (
        f'<g class="node is-{box.look}" data-node="{name}" tabindex="0" role="button" '
        f'transform="translate({_n(cell.x)},{_n(cell.y)})">'
    )
    yield f"<title>{name}: {escape(box.type)}</title>"
    size = f'rx="6" width="{_n(cell.width)}" height="{_n(cell.height)}"'
    if box.times:
        yield f'<rect class="card shade" x="5" y="5" {size}/>'
    yield f'<rect class="card" {size}/>'
    yield f'<path class="band" d="{_band(cell.width)}"/>'
    middle = _n(cell.width / 2)
    times = f' <tspan class="times">{box.times}</tspan>' if box.times else ""
    yield f'<text class="name" x="{middle}" y="18">{name}{times}</text>'
    yield f'<text class="type" x="{middle}" y="33">{escape(box.type)}</text>'
    for i, port in enumerate(box.inputs):
        yield f'<text class="in" x="8" y="{_n(HEADER + ROW * i + 13)}">{escape(port)}</text>'
    for i, port in enumerate(box.outputs):
        x, y = _n(cell.width - 8), _n(HEADER + ROW * i + 13)
        yield f'<text class="out" x="{x}" y="{y}">{escape(port)}</text>'
    yield "</g>"


def _band(width: float) -> str:
    """The coloured head of a card, round at its upper corners."""
    return f"M0,40 V6 Q0,0 6,0 H{_n(width - 6)} Q{_n(width)},0 {_n(width)},6 V40 Z"


def _p(point: Point) -> str:
    return f"{_n(point[0])},{_n(point[1])}"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
