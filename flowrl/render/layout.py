"""The layered layout of a picture, left to right (Sugiyama et al. 1981).

Boxes stand in columns, by the longest path from a source. An arrow that passes a column has a track in it, and an arrow
that leads back also has a track below both of its boxes, so no arrow crosses a box. Boxes and tracks are the cells of a
column. Sweeps over the columns first order the cells, and then move each one to where its arrows are straightest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from flowrl.render.picture import Arrow, Box, Picture

# pixels
HEADER_HEIGHT, PORT_HEIGHT, TRACK_HEIGHT = 42.0, 18.0, 16.0
CHAR_WIDTH, SMALL_CHAR_WIDTH = 7.6, 6.0  # upper bounds
GAP_Y, TRACK_GAP, GAP_X, MARGIN = 26.0, 8.0, 46.0, 28.0
TURN_WIDTH = 34.0  # of the curve of an arrow that turns back
SWEEPS = 24
BOX_WEIGHT, TRACK_WEIGHT, ISOLATED_WEIGHT = 4.0, 0.05, 0.01  # straight arrows matter most at boxes
OWNER_PULL = 0.1  # how much the tracks below a box prefer being close to it over being straight

Point = tuple[float, float]


@dataclass(slots=True, eq=False)
class Cell:
    """A box, or the track of an arrow, in a column."""

    column: int
    height: float
    width: float = 0.0
    box: Box | None = None  # None: a track
    owner: Cell | None = None  # of a track that stays right below a box: that box
    span: int = 0  # of such a track: the number of columns that its longest arrow leads back
    x: float = 0.0
    y: float = 0.0
    neighbours: list[tuple[Cell, float]] = field(default_factory=list)
    # ^ cells of adjacent columns, and how far below their top this one lies if the arrow is straight


@dataclass(frozen=True, slots=True)
class Route:
    """The course of an arrow: its ends, and a straight piece (from, to) in every column that it passes."""

    arrow: Arrow
    start: Point
    end: Point
    pieces: tuple[tuple[Point, Point], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture with the positions of all boxes and arrows."""

    width: float
    height: float
    cells: Mapping[str, Cell]  # by node
    routes: tuple[Route, ...]


def lay_out(drawn: Picture) -> Layout:
    columns = assign_columns(drawn)
    cells = {name: _box_cell(box, columns[name]) for name, box in drawn.boxes.items()}
    tracks: dict[tuple[object, int], Cell] = {}
    paths = [_tracks_of(arrow, cells, tracks) for arrow in drawn.arrows]
    for arrow, path in zip(drawn.arrows, paths, strict=True):
        _connect_neighbours(arrow, path, cells)
    grid = _grid([*cells.values(), *tracks.values()])
    _place_y(grid)
    width = _place_x(grid, drawn, columns)
    height = max((c.y + c.height for c in cells.values()), default=0.0)
    height = max([height, *(track.y + TRACK_HEIGHT for track in tracks.values())])
    routes = tuple(_route(a, p, cells) for a, p in zip(drawn.arrows, paths, strict=True))
    return Layout(width, height + MARGIN, cells, routes)


# columns


def assign_columns(drawn: Picture) -> dict[str, int]:
    """The column of each node: right of all its predecessors. A source stands just left of its first successor."""
    before: dict[str, set[str]] = {name: set() for name in drawn.boxes}
    after: dict[str, set[str]] = {name: set() for name in drawn.boxes}
    rank = {name: number for number, name in enumerate(drawn.boxes)}
    for arrow in drawn.arrows:
        a, b = arrow.source.node, arrow.to.node
        if not arrow.back and rank[a] < rank[b]:  # the links of an unsound graph may form a cycle
            before[b].add(a)
            after[a].add(b)
    column: dict[str, int] = {}
    for name in drawn.boxes:
        column[name] = max((column[b] + 1 for b in before[name]), default=0)
    for name in reversed(list(drawn.boxes)):
        if not before[name] and after[name]:
            column[name] = min(column[a] for a in after[name]) - 1
    return column


def _box_cell(box: Box, column: int) -> Cell:
    rows = max(len(box.inputs), len(box.outputs))
    return Cell(column, HEADER_HEIGHT + PORT_HEIGHT * rows + 6, _box_width(box), box)


def _box_width(box: Box) -> float:
    """Room for the name, the type and the ports."""
    title = CHAR_WIDTH * (len(box.name) + len(box.times) + 1)
    ports = max((len(a) + len(b) for a, b in _port_rows(box)), default=0)
    return max(
        96.0, title + 24, SMALL_CHAR_WIDTH * len(box.type) + 24, SMALL_CHAR_WIDTH * ports + 36
    )


def _port_rows(box: Box) -> Iterator[tuple[str, str]]:
    for i in range(max(len(box.inputs), len(box.outputs))):
        yield (
            box.inputs[i] if i < len(box.inputs) else "",
            box.outputs[i] if i < len(box.outputs) else "",
        )


def _port_y(box: Box, port: str, side: str) -> float:
    """The distance of a port from the top of its box."""
    ports = box.inputs if side == "in" else box.outputs
    return HEADER_HEIGHT + PORT_HEIGHT * (ports.index(port) + 0.5)


# tracks


def _tracks_of(
    arrow: Arrow, cells: Mapping[str, Cell], tracks: dict[tuple[object, int], Cell]
) -> list[Cell]:
    """The tracks of an arrow, from its start to its end. New ones are added to `tracks`."""
    source, to = cells[arrow.source.node], cells[arrow.to.node]
    if source.column < to.column:
        between: Iterable[int] = range(source.column + 1, to.column)
        return [tracks.setdefault((arrow, c), Cell(c, TRACK_HEIGHT)) for c in between]
    first = tracks.setdefault(  # arrows that lead back from one output share their first track
        (arrow.source, source.column), Cell(source.column, TRACK_HEIGHT, owner=source)
    )
    span = source.column - to.column
    first.span = max(first.span, span)
    if source is to:
        return [first]
    path = [first]
    for c in range(source.column - 1, to.column, -1):
        path.append(tracks.setdefault((arrow, c), Cell(c, TRACK_HEIGHT)))
    last = tracks.setdefault((arrow.to, to.column), Cell(to.column, TRACK_HEIGHT, owner=to))
    last.span = max(last.span, span)
    return [*path, last]


def _connect_neighbours(arrow: Arrow, path: list[Cell], cells: Mapping[str, Cell]) -> None:
    """Note which cells of adjacent columns should have the same height for the arrow to be straight."""
    source, to = cells[arrow.source.node], cells[arrow.to.node]
    stops = [(track, TRACK_HEIGHT / 2) for track in path]
    if source.column < to.column and source.box and to.box:
        start = (source, _port_y(source.box, arrow.source.port, "out"))
        stops = [start, *stops, (to, _port_y(to.box, arrow.to.port, "in"))]
    for (a, a_y), (b, b_y) in pairwise(stops):
        a.neighbours.append((b, b_y - a_y))
        b.neighbours.append((a, a_y - b_y))


def _grid(cells: list[Cell]) -> dict[int, list[Cell]]:
    """The cells of each column in their first order: boxes as they fire, each above its own tracks, then the others."""
    grid: dict[int, list[Cell]] = {}
    rank = {id(cell): number for number, cell in enumerate(cells)}
    for cell in sorted(cells, key=lambda c: (rank[id(c.owner or c)], rank[id(c)])):
        grid.setdefault(cell.column, []).append(cell)
    return grid


# positions


def _place_y(grid: dict[int, list[Cell]]) -> None:
    """Order the cells of each column, and place them as close to their desired heights as there is room."""
    columns = sorted(grid)
    for cells in grid.values():
        y = 0.0
        for cell, space in zip(cells, _spaces(cells), strict=True):
            cell.y, y = y, y + space
    for sweep in range(SWEEPS):
        for c in columns if sweep % 2 == 0 else reversed(columns):
            if sweep < SWEEPS // 2:
                grid[c].sort(key=_sort_key)
            _fit_column(grid[c])
    top = min((c.y for cells in grid.values() for c in cells), default=0.0)
    for cells in grid.values():
        for cell in cells:
            cell.y += MARGIN - top


def _desired_y(cell: Cell) -> float:
    """The y at which the cell's arrows are straight on average."""
    wanted = [other.y + offset for other, offset in cell.neighbours]
    straight = sum(wanted) / len(wanted) if wanted else cell.y
    if cell.owner is None:
        return straight
    close = cell.owner.y + cell.owner.height + TRACK_GAP
    return straight + OWNER_PULL * (close - straight)


def _sort_key(cell: Cell) -> tuple[float, float, bool, int]:
    """A box comes right before its tracks, and among these the arrow that leads back furthest comes last."""
    owner = cell.owner or cell
    return _desired_y(owner) + owner.height / 2, owner.y, cell.owner is not None, cell.span


def _spaces(cells: list[Cell]) -> list[float]:
    """The height of each cell with the gap to the next one."""
    following = [*cells[1:], None]
    return [
        c.height + (TRACK_GAP if n is not None and (n.owner is c or not n.box) else GAP_Y)
        for c, n in zip(cells, following, strict=True)
    ]


def _fit_column(cells: list[Cell]) -> None:
    """Place ordered cells with the least squared distance to the desired heights (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # weighted sum, weight, number of cells
    offset, offsets = 0.0, []
    for cell, space in zip(cells, _spaces(cells), strict=True):
        weight = BOX_WEIGHT if cell.box else TRACK_WEIGHT
        weight = weight if cell.neighbours else ISOLATED_WEIGHT
        offsets.append(offset)
        blocks.append(((_desired_y(cell) - offset) * weight, weight, 1))
        offset += space
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = (blocks[-1][0] + last[0], blocks[-1][1] + last[1], blocks[-1][2] + last[2])
    bases = [total / weight for total, weight, count in blocks for _ in range(count)]
    for cell, base, below in zip(cells, bases, offsets, strict=True):
        cell.y = base + below


def _place_x(grid: Mapping[int, list[Cell]], drawn: Picture, columns: Mapping[str, int]) -> float:
    """Place the columns side by side, with room for the labels between them, and return the total width."""
    labels: dict[int, float] = {}
    for arrow in drawn.arrows:
        c = columns[arrow.source.node]
        if c < columns[arrow.to.node]:
            length = max(len(arrow.type), len(arrow.facts_label))
            labels[c] = max(labels.get(c, 0.0), SMALL_CHAR_WIDTH * length)
    x = MARGIN + TURN_WIDTH
    for c in sorted(grid):
        width = max((cell.width for cell in grid[c]), default=0.0)
        for cell in grid[c]:
            cell.x = x + (width - cell.width) / 2 if cell.box else x
            cell.width = cell.width if cell.box else width
        x += width + GAP_X + labels.get(c, 0.0)
    return x - GAP_X + TURN_WIDTH + MARGIN


def _route(arrow: Arrow, path: list[Cell], cells: Mapping[str, Cell]) -> Route:
    source, to = cells[arrow.source.node], cells[arrow.to.node]
    assert source.box is not None
    assert to.box is not None
    start = (source.x + source.width, source.y + _port_y(source.box, arrow.source.port, "out"))
    end = (to.x, to.y + _port_y(to.box, arrow.to.port, "in"))
    leads_left = source.column >= to.column
    pieces = []
    for track in path:
        y = track.y + TRACK_HEIGHT / 2
        left, right = (track.x, y), (track.x + track.width, y)
        pieces.append((right, left) if leads_left else (left, right))
    return Route(arrow, start, end, tuple(pieces))
