"""The layout of a picture: where its cards, its arrows with their labels, and the frames of its sites are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from flowrl.render.columns import (
    FRAME,
    FRAME_TITLE,
    LABEL_PADDING,
    TEXT_HEIGHT,
    Cell,
    Grid,
    card_size,
    make_grid,
    port_y,
)
from flowrl.render.picture import Arrow, Box, Picture
from flowrl.render.text_size import SMALL_SIZE, text_width

# pixels
MARGIN = 24.0
GAP_X = 26.0  # the least distance of columns
STEEPNESS = 6.0  # an arrow may rise or fall by so many times the distance of its columns
WIDEST_GAP = 90.0
# How far the innermost arrow that turns back reaches, and each next one further.
TURN, TURN_STEP = 26.0, 12.0

Point = tuple[float, float]
Segment = tuple[Point, ...]  # one point: a straight line to it; three: a cubic Bézier curve
TurnSide = tuple[int, str]  # a column and its side


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle whose sides are parallel to those of the picture."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def overlaps(self, other: Rect) -> bool:
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text, the middle of its base line, and its background."""

    text: str
    at: Point
    background: Rect


@dataclass(frozen=True, slots=True)
class Route:
    """The course of an arrow, and its labels."""

    arrow: Arrow
    start: Point
    segments: tuple[Segment, ...]
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class SiteFrame:
    """A frame around nodes of a site, with the place of its name, which is left-aligned."""

    site: str
    rect: Rect
    name_at: Point


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture with the positions of all that is in it."""

    width: float
    height: float
    cards: tuple[tuple[Box, Rect], ...]
    routes: tuple[Route, ...]
    frames: tuple[SiteFrame, ...]


def lay_out(drawn: Picture) -> Layout:
    grid = make_grid(drawn)
    turns = _turns(grid)
    width = _place_x(grid, turns)
    cells = [cell for column in grid.columns.values() for cell in column]
    top = min((cell.y for cell in cells), default=0.0) - MARGIN
    for cell in cells:
        cell.y -= top
    height = max((cell.y + cell.height for cell in cells), default=0.0) + MARGIN
    sides = {number: _sides(cells) for number, cells in grid.columns.items()}
    return Layout(
        width,
        height,
        tuple((cell.box, _card(cell)) for cell in grid.boxes.values() if cell.box),
        tuple(_route(arrow, grid, sides, turns) for arrow in drawn.arrows),
        tuple(_frames(grid.boxes, drawn.sites)),
    )


def _card(cell: Cell) -> Rect:
    """The card of a box, in the middle of its cell."""
    assert cell.box is not None
    width, height = card_size(cell.box)
    return Rect(cell.x + (cell.width - width) / 2, cell.y + cell.inset, width, height)


def _sides(cells: list[Cell]) -> tuple[float, float]:
    """The left and the right side of a column."""
    return min(cell.x for cell in cells), max(cell.x + cell.width for cell in cells)


# columns


def _place_x(grid: Grid, turns: Mapping[TurnSide, Mapping[Cell, float]]) -> float:
    """Place the columns side by side, and return the width of the picture."""
    gaps = dict.fromkeys(grid.columns, GAP_X)  # right of each column
    for arrow, tracks in grid.tracks.items():
        for a, b in _steps(grid, arrow, tracks):
            left = min(a[0], b[0])
            gaps[left] = max(gaps[left], min(abs(a[1] - b[1]) / STEEPNESS, WIDEST_GAP))

    def reach(column: int, side: str) -> float:
        return max(turns.get((column, side), {}).values(), default=0.0)

    numbers = list(grid.columns)
    x = MARGIN + (reach(numbers[0], "left") if numbers else 0.0)
    for number, following in zip(numbers, [*numbers[1:], None], strict=True):
        cells = grid.columns[number]
        width = max(cell.width for cell in cells)
        for cell in cells:
            cell.x = x + (width - cell.width) / 2
        x += width + reach(number, "right")
        if following is not None:
            x += max(gaps[number] - reach(number, "right"), reach(following, "left"))
    return x + MARGIN


def _steps(
    grid: Grid, arrow: Arrow, tracks: Iterable[Cell]
) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    """The (column, height) between which an arrow bends, from one column to the next."""
    stops = [(track.column, track.y + track.inset) for track in tracks]
    source, to = grid.boxes[arrow.source.node], grid.boxes[arrow.to.node]
    if source.column < to.column:
        start, end = _port_height(source, arrow, "out"), _port_height(to, arrow, "in")
        stops = [(source.column, start), *stops, (to.column, end)]
    yield from pairwise(stops)


def _port_height(cell: Cell, arrow: Arrow, side: str) -> float:
    assert cell.box is not None
    port = arrow.source.port if side == "out" else arrow.to.port
    return cell.y + cell.inset + port_y(cell.box, port, side)


# arrows


def _turns(grid: Grid) -> dict[TurnSide, dict[Cell, float]]:
    """How far arrows that turn back reach out of a column, by their track: longer ones enclose the shorter ones."""
    extents: dict[TurnSide, dict[Cell, tuple[float, float]]] = {}
    for arrow, tracks in grid.tracks.items():
        source, to = grid.boxes[arrow.source.node], grid.boxes[arrow.to.node]
        if source.column < to.column:
            continue
        for side, box, track in (("right", source, tracks[0]), ("left", to, tracks[-1])):
            port_height = _port_height(box, arrow, "out" if side == "right" else "in")
            ends = sorted((port_height, track.y + track.inset))
            extents.setdefault((box.column, side), {})[track] = (ends[0], ends[1])
    return {side: _reaches(found) for side, found in extents.items()}


def _reaches(extents: Mapping[Cell, tuple[float, float]]) -> dict[Cell, float]:
    reaches: dict[Cell, float] = {}
    for track in sorted(extents, key=lambda track: extents[track][1] - extents[track][0]):
        top, bottom = extents[track]
        inside = [reaches[t] for t in reaches if extents[t][0] < bottom and top < extents[t][1]]
        reaches[track] = max(inside) + TURN_STEP if inside else TURN
    return reaches


def _route(
    arrow: Arrow,
    grid: Grid,
    sides: Mapping[int, tuple[float, float]],
    turns: Mapping[TurnSide, Mapping[Cell, float]],
) -> Route:
    """Straight within the columns, and curved between them."""
    source, to = grid.boxes[arrow.source.node], grid.boxes[arrow.to.node]
    tracks, leads_left = grid.tracks[arrow], source.column >= to.column
    start = (_card(source).right, _port_height(source, arrow, "out"))
    end = (_card(to).left, _port_height(to, arrow, "in"))
    at = (sides[source.column][1], start[1])
    segments: list[Segment] = [(at,)]
    for track in tracks:
        left, right = sides[track.column]
        y = track.y + track.inset
        entry, exit = ((right, y), (left, y)) if leads_left else ((left, y), (right, y))
        if leads_left and track is tracks[0]:
            segments.append(_turn(at, entry, turns[source.column, "right"][track]))
        else:
            segments.append(_bend(at, entry))
        segments.append((exit,))
        at = exit
    into = (sides[to.column][0], end[1])
    if leads_left:
        segments.append(_turn(at, into, -turns[to.column, "left"][tracks[-1]]))
    else:
        segments.append(_bend(at, into))
    labels = tuple(label for track in tracks for label in _labels(track))
    return Route(arrow, start, (*segments, (end,)), labels)


def _bend(a: Point, b: Point) -> Segment:
    middle = (a[0] + b[0]) / 2
    return (middle, a[1]), (middle, b[1]), b


def _turn(a: Point, b: Point, reach: float) -> Segment:
    """A half circle between two points on one side of a column."""
    return (a[0] + reach, a[1]), (b[0] + reach, b[1]), b


def _labels(track: Cell) -> Iterator[Label]:
    """The type of the tokens over the arrow, and the facts below it."""
    middle, line = track.x + track.width / 2, track.y + track.inset
    tops = [line - TEXT_HEIGHT, *(line + 2 + TEXT_HEIGHT * i for i in range(len(track.label) - 1))]
    for text, top in zip(track.label, tops, strict=False):
        width = text_width(text) + 2 * LABEL_PADDING
        background = Rect(middle - width / 2, top, width, TEXT_HEIGHT - 2)
        yield Label(text, (middle, top + 0.95 * SMALL_SIZE), background)


# sites


def _frames(boxes: Mapping[str, Cell], sites: Mapping[str, tuple[str, ...]]) -> Iterator[SiteFrame]:
    """One frame around all nodes of a site, or one around each node if nodes of other sites lie between them."""
    rects = {name: Rect(cell.x, cell.y, cell.width, cell.height) for name, cell in boxes.items()}
    for site, names in sites.items():
        whole = _around(rects[name] for name in names)
        if any(whole.overlaps(rect) for name, rect in rects.items() if name not in names):
            yield from (_frame(site, [rects[name]]) for name in names)
        else:
            yield _frame(site, [rects[name] for name in names])


def _frame(site: str, rects: list[Rect]) -> SiteFrame:
    """The name of the site is over its highest box, where its frame leaves room for it."""
    highest = min(rects, key=lambda rect: rect.top)
    return SiteFrame(
        site, _around(rects), (highest.left + FRAME, highest.top + FRAME_TITLE + FRAME / 2 - 6.0)
    )


def _around(rects: Iterable[Rect]) -> Rect:
    kept = list(rects)
    left, top = min(r.left for r in kept), min(r.top for r in kept)
    return Rect(left, top, max(r.right for r in kept) - left, max(r.bottom for r in kept) - top)
