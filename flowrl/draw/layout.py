"""Where boxes and arrows of a picture lie: a layered layout (Sugiyama et al. 1981), left to right.

Boxes stand in columns by their longest way from a source. An arrow that passes columns has a lane in each of
them, and one that leads back also has a lane below both of its boxes, so that no arrow crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flowrl.draw.picture import Arrow, Box, Picture

HEADER, ROW, CHAR, SMALL = (
    42.0,
    18.0,
    7.6,
    6.0,
)  # pixels; the widths of a letter are on the safe side
GAP_Y, LANE, GAP_X, TURN = 26.0, 16.0, 46.0, 34.0
MARGIN = 28.0
SWEEPS = 24

Point = tuple[float, float]


@dataclass(slots=True, eq=False)
class Cell:
    """What stands in a column: a box, or an arrow's lane."""

    column: int
    height: float
    width: float = 0.0
    box: Box | None = None
    below: Cell | None = None  # a lane that belongs right below this box
    x: float = 0.0
    y: float = 0.0
    beside: list[tuple[Cell, float]] = field(default_factory=list)
    # ^ cells of other columns, and how far below this one's top theirs would be if the arrow were straight


@dataclass(frozen=True, slots=True)
class Route:
    """An arrow's way: its ends, and a straight piece (from, to) in every column that it passes."""

    arrow: Arrow
    start: Point
    end: Point
    pieces: tuple[tuple[Point, Point], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A picture with places."""

    width: float
    height: float
    cells: Mapping[str, Cell]  # by node
    routes: tuple[Route, ...]


def lay_out(drawn: Picture) -> Layout:
    """The places of all boxes and arrows."""
    columns = columns_of(drawn)
    cells = {name: _cell(box, columns[name]) for name, box in drawn.boxes.items()}
    lanes: dict[tuple[object, int], Cell] = {}
    chains = [_chain(arrow, cells, lanes) for arrow in drawn.arrows]
    for arrow, chain in zip(drawn.arrows, chains, strict=True):
        _join(arrow, chain, cells)
    grid = _columns([*cells.values(), *lanes.values()])
    _place_y(grid)
    width = _place_x(grid, drawn, columns)
    height = max((c.y + c.height for c in cells.values()), default=0.0)
    height = max([height, *(lane.y + LANE for lane in lanes.values())])
    routes = tuple(_route(a, c, cells) for a, c in zip(drawn.arrows, chains, strict=True))
    return Layout(width, height + MARGIN, cells, routes)


def columns_of(drawn: Picture) -> dict[str, int]:
    """Each node's column: right of all that lead to it, and a source right before what it leads to."""
    forward = [a for a in drawn.arrows if not a.back]
    before: dict[str, set[str]] = {name: set() for name in drawn.boxes}
    after: dict[str, set[str]] = {name: set() for name in drawn.boxes}
    rank = {name: number for number, name in enumerate(drawn.boxes)}
    for arrow in forward:
        a, b = arrow.source.node, arrow.to.node
        if rank[a] < rank[b]:  # links of an unsound graph may go in a circle
            before[b].add(a)
            after[a].add(b)
    column: dict[str, int] = {}
    for name in drawn.boxes:
        column[name] = max((column[b] + 1 for b in before[name]), default=0)
    for name in reversed(list(drawn.boxes)):
        if not before[name] and after[name]:
            column[name] = min(column[a] for a in after[name]) - 1
    return column


def port_y(box: Box, port: str, side: str) -> float:
    """How far below a box's top a port lies."""
    ports = box.inputs if side == "in" else box.outputs
    return HEADER + ROW * (ports.index(port) + 0.5)


def box_width(box: Box) -> float:
    """A box's width: room for its name and its ports."""
    title = CHAR * (len(box.name) + len(box.times) + 1)
    ports = max((len(a) + len(b) for a, b in _rows(box)), default=0)
    return max(96.0, title + 24, SMALL * len(box.type) + 24, SMALL * ports + 36)


def _rows(box: Box) -> Iterator[tuple[str, str]]:
    for i in range(max(len(box.inputs), len(box.outputs))):
        yield (
            box.inputs[i] if i < len(box.inputs) else "",
            box.outputs[i] if i < len(box.outputs) else "",
        )


def _cell(box: Box, column: int) -> Cell:
    rows = max(len(box.inputs), len(box.outputs))
    return Cell(column, HEADER + ROW * rows + 6, box_width(box), box)


def _chain(
    arrow: Arrow, cells: Mapping[str, Cell], lanes: dict[tuple[object, int], Cell]
) -> list[Cell]:
    """The lanes of an arrow, from its beginning to its end."""
    source, to = cells[arrow.source.node], cells[arrow.to.node]
    if source.column < to.column:
        between: Iterable[int] = range(source.column + 1, to.column)
        return [lanes.setdefault((arrow, c), Cell(c, LANE)) for c in between]
    first = lanes.setdefault(  # all that leads back from one output begins in one lane
        (arrow.source, source.column), Cell(source.column, LANE, below=source)
    )
    if source is to:
        return [first]
    chain = [first]
    for c in range(source.column - 1, to.column, -1):
        chain.append(lanes.setdefault((arrow, c), Cell(c, LANE)))
    last = lanes.setdefault((arrow.to, to.column), Cell(to.column, LANE, below=to))
    return [*chain, last]


def _join(arrow: Arrow, chain: list[Cell], cells: Mapping[str, Cell]) -> None:
    """Note which cells of neighbouring columns would like to be on one height."""
    source, to = cells[arrow.source.node], cells[arrow.to.node]
    ways = [(lane, LANE / 2) for lane in chain]
    if source.column < to.column and source.box and to.box:
        start = (source, port_y(source.box, arrow.source.port, "out"))
        ways = [start, *ways, (to, port_y(to.box, arrow.to.port, "in"))]
    for (a, a_y), (b, b_y) in zip(ways, ways[1:], strict=False):
        a.beside.append((b, b_y - a_y))
        b.beside.append((a, a_y - b_y))


def _columns(cells: list[Cell]) -> dict[int, list[Cell]]:
    """The columns as they begin: boxes as they fire, the lanes of a box below it, all others at the end."""
    grid: dict[int, list[Cell]] = {}
    rank = {id(cell): number for number, cell in enumerate(cells)}
    for cell in sorted(cells, key=lambda c: (rank[id(c.below or c)], rank[id(c)])):
        grid.setdefault(cell.column, []).append(cell)
    return grid


def _place_y(grid: dict[int, list[Cell]]) -> None:
    """Heights, and with them the order in each column: as near to the neighbours' as there is room."""
    columns = sorted(grid)
    for cells in grid.values():
        y = 0.0
        for cell, room in zip(cells, _rooms(cells), strict=True):
            cell.y, y = y, y + room
    for sweep in range(SWEEPS):
        for c in columns if sweep % 2 == 0 else reversed(columns):
            if sweep < SWEEPS // 2:
                grid[c].sort(key=_wished_place)
            _settle(grid[c])
    top = min((c.y for cells in grid.values() for c in cells), default=0.0)
    for cells in grid.values():
        for cell in cells:
            cell.y += MARGIN - top


def _wish(cell: Cell) -> float:
    """The top that would make a cell's arrows straight, on the average."""
    wishes = [other.y + theirs for other, theirs in cell.beside]
    return sum(wishes) / len(wishes) if wishes else cell.y


def _wished_place(cell: Cell) -> tuple[float, float, bool]:
    owner = cell.below or cell
    return _wish(owner) + owner.height / 2, owner.y, cell.below is not None


def _rooms(cells: list[Cell]) -> list[float]:
    """What each cell takes, with the gap to the next."""
    following = [*cells[1:], None]
    return [
        c.height + (8.0 if n is not None and (n.below is c or not n.box) else GAP_Y)
        for c, n in zip(cells, following, strict=True)
    ]


def _settle(cells: list[Cell]) -> None:
    """Least squares with a given order (pool adjacent violators): boxes that press on each other move together."""
    rooms = _rooms(cells)
    blocks: list[tuple[float, float, int]] = []  # sum of wishes, weight, cells
    offset, offsets = 0.0, []
    for cell, room in zip(cells, rooms, strict=True):
        weight = (4.0 if cell.box else 1.0) if cell.beside else 0.05
        offsets.append(offset)
        blocks.append(((_wish(cell) - offset) * weight, weight, 1))
        offset += room
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = (blocks[-1][0] + last[0], blocks[-1][1] + last[1], blocks[-1][2] + last[2])
    bases = [total / weight for total, weight, count in blocks for _ in range(count)]
    for cell, base, below in zip(cells, bases, offsets, strict=True):
        cell.y = base + below


def _place_x(grid: Mapping[int, list[Cell]], drawn: Picture, columns: Mapping[str, int]) -> float:
    """Columns side by side, with room for the words on the arrows between them; gives the whole width."""
    words: dict[int, float] = {}
    for arrow in drawn.arrows:
        c = columns[arrow.source.node]
        if c < columns[arrow.to.node]:
            text = max(len(arrow.type), len(arrow.facts))
            words[c] = max(words.get(c, 0.0), SMALL * text)
    x = MARGIN + TURN
    for c in sorted(grid):
        width = max((cell.width for cell in grid[c]), default=0.0)
        for cell in grid[c]:
            cell.x = x + (width - cell.width) / 2 if cell.box else x
            cell.width = cell.width if cell.box else width
        x += width + GAP_X + words.get(c, 0.0)
    return x - GAP_X + TURN + MARGIN


def _route(arrow: Arrow, chain: list[Cell], cells: Mapping[str, Cell]) -> Route:
    source, to = cells[arrow.source.node], cells[arrow.to.node]
    assert source.box and to.box
    start = (source.x + source.width, source.y + port_y(source.box, arrow.source.port, "out"))
    end = (to.x, to.y + port_y(to.box, arrow.to.port, "in"))
    left = source.column >= to.column
    pieces = []
    for lane in chain:
        y = lane.y + LANE / 2
        near, far = (lane.x, y), (lane.x + lane.width, y)
        pieces.append((far, near) if left else (near, far))
    return Route(arrow, start, end, tuple(pieces))
