"""Where boxes and arrows of a picture lie, left to right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.render.layout_cells import (
    LANE,
    SMALL,
    Cell,
    cell_of,
    chain_of,
    columns_of,
    join,
    port_y,
)
from flowrl.render.picture import Arrow, Picture

GAP_Y, GAP_X, TURN, MARGIN = 26.0, 46.0, 34.0, 28.0  # pixels
SWEEPS = 24

Point = tuple[float, float]


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
    cells = {name: cell_of(box, columns[name]) for name, box in drawn.boxes.items()}
    lanes: dict[tuple[object, int], Cell] = {}
    chains = [chain_of(arrow, cells, lanes) for arrow in drawn.arrows]
    for arrow, chain in zip(drawn.arrows, chains, strict=True):
        join(arrow, chain, cells)
    grid = _columns([*cells.values(), *lanes.values()])
    _place_y(grid)
    width = _place_x(grid, drawn, columns)
    height = max((c.y + c.height for c in cells.values()), default=0.0)
    height = max([height, *(lane.y + LANE for lane in lanes.values())])
    routes = tuple(_route(a, c, cells) for a, c in zip(drawn.arrows, chains, strict=True))
    return Layout(width, height + MARGIN, cells, routes)


def _columns(cells: list[Cell]) -> dict[int, list[Cell]]:
    """The columns as they begin: boxes as they fire, a box's lanes below it, others last."""
    grid: dict[int, list[Cell]] = {}
    rank = {id(cell): number for number, cell in enumerate(cells)}
    for cell in sorted(cells, key=lambda c: (rank[id(c.below or c)], rank[id(c)])):
        grid.setdefault(cell.column, []).append(cell)
    return grid


def _place_y(grid: dict[int, list[Cell]]) -> None:
    """Heights, and with them each column's order: as near to the neighbours as there is room."""
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
    """Least squares in a given order (pool adjacent violators): what presses moves together."""
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
    """Columns side by side, with room for the words between them; gives the whole width."""
    words: dict[int, float] = {}
    for arrow in drawn.arrows:
        c = columns[arrow.source.node]
        if c < columns[arrow.to.node]:
            text = max(len(arrow.type), len(arrow.below))
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
    assert source.box is not None
    assert to.box is not None
    start = (source.x + source.width, source.y + port_y(source.box, arrow.source.port, "out"))
    end = (to.x, to.y + port_y(to.box, arrow.to.port, "in"))
    left = source.column >= to.column
    pieces = []
    for lane in chain:
        y = lane.y + LANE / 2
        near, far = (lane.x, y), (lane.x + lane.width, y)
        pieces.append((far, near) if left else (near, far))
    return Route(arrow, start, end, tuple(pieces))
