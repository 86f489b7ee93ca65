"""The cells of a layered layout (Sugiyama et al. 1981): boxes in columns, and lanes for arrows.

Boxes stand in columns by their longest way from a source. An arrow that passes columns has a lane
in each of them, and one that leads back also has a lane below both of its boxes, so that no arrow
crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from flowrl.render.picture import Arrow, Box, Picture

HEADER, ROW, LANE = 42.0, 18.0, 16.0  # heights in pixels: a box's head, a port, an arrow's lane
CHAR, SMALL = 7.6, 6.0  # widths of a letter, on the safe side


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
    # ^ cells of other columns: this top lies so far below theirs where the arrow is straight


def columns_of(drawn: Picture) -> dict[str, int]:
    """Each node's column: after all that lead to it; a source right before what it leads to."""
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


def cell_of(box: Box, column: int) -> Cell:
    """The cell of a box, not placed yet."""
    rows = max(len(box.inputs), len(box.outputs))
    return Cell(column, HEADER + ROW * rows + 6, box_width(box), box)


def chain_of(
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


def join(arrow: Arrow, chain: list[Cell], cells: Mapping[str, Cell]) -> None:
    """Note which cells of neighbouring columns would like to be on one height."""
    source, to = cells[arrow.source.node], cells[arrow.to.node]
    ways = [(lane, LANE / 2) for lane in chain]
    if source.column < to.column and source.box and to.box:
        start = (source, port_y(source.box, arrow.source.port, "out"))
        ways = [start, *ways, (to, port_y(to.box, arrow.to.port, "in"))]
    for (a, a_y), (b, b_y) in pairwise(ways):
        a.beside.append((b, b_y - a_y))
        b.beside.append((a, a_y - b_y))
