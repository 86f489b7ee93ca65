"""Where the boxes, labels and arrows of a picture are: columns from left to right (Sugiyama et al. 1981).

Columns with even numbers hold the boxes, by the longest path from a source. Columns with odd numbers, between them,
hold the labels of the arrows. What an arrow passes in a column is a track. An arrow that leads back also has a track
below both of its boxes. Boxes and tracks are the cells of a column, and no cell covers another. Arrows bend only in
the gaps between columns, where nothing else is. Therefore no arrow can cross a box or a label.

Sweeps over the columns first order the cells, and then move each one to where its arrows are straightest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from flowrl.render.picture import Arrow, Box, Picture
from flowrl.render.text_size import NAME_SIZE, text_width

# pixels
HEADER_HEIGHT, PORT_HEIGHT, BOX_FOOT = 44.0, 20.0, 6.0
TRACK_HEIGHT = 12.0
TEXT_HEIGHT = 17.0  # of a line of a label, with the room between it and the arrow
LABEL_PADDING = 4.0  # left and right of a label's text
SHADE = 5.0  # by which the second card of a node with replicas stands out
FRAME, FRAME_TITLE = 9.0, 18.0  # around the boxes of a site, and above them for its name
OWN_GAP, GAP_Y = 10.0, 20.0  # between a box and its own tracks; between other cells
ORDER_SWEEPS, MOST_SWEEPS = 12, 120  # the first ones also change the order of cells
OVERSHOOT = 1.6  # later sweeps move cells further than desired: they end sooner (over-relaxation)
STILL = 0.05  # pixels: the sweeps end when no cell moves further
BACK_WEIGHT = 1e-5  # how much it matters that arrows that lead back are straight; others have 1
OWNER_PULL = 0.1  # how much the tracks below a box prefer being close to it over being straight


@dataclass(slots=True, eq=False)
class Cell:
    """A box, or the track of an arrow, in a column."""

    column: int
    height: float
    width: float
    inset: float  # how far below its top the card of a box is, or the line of a track
    box: Box | None = None  # None: a track
    back: bool = False  # said of a track whose arrow leads back
    label: tuple[str, ...] = ()  # the line of text over the arrow, and the lines below it
    owner: Cell | None = None  # of a track that stays right below a box: that box
    span: int = 0  # of such a track: the number of columns that its longest arrow leads back
    x: float = 0.0
    y: float = 0.0
    neighbours: list[tuple[Cell, float]] = field(default_factory=list)
    # ^ cells of adjacent columns, and how far below their top this one lies if the arrow is straight


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a picture: boxes by node, the tracks that each arrow passes, in its order, and all by column."""

    boxes: Mapping[str, Cell]
    tracks: Mapping[Arrow, tuple[Cell, ...]]
    columns: Mapping[int, list[Cell]]


def make_grid(drawn: Picture) -> Grid:
    """The grid of a picture, with the heights at which its cells are. The columns have no places yet."""
    columns = assign_columns(drawn)
    site_of = {name: site for site, names in drawn.sites.items() for name in names}
    boxes = {
        name: _box_cell(box, 2 * columns[name], site_of.get(name))
        for name, box in drawn.boxes.items()
    }
    known: dict[tuple[object, int], Cell] = {}
    tracks = {arrow: tuple(_tracks_of(arrow, boxes, known)) for arrow in drawn.arrows}
    for arrow, path in tracks.items():
        _connect_neighbours(arrow, path, boxes)
    grid = _by_column([*boxes.values(), *known.values()])
    _place_y(grid)
    _straighten_arrows_back(tracks.values(), grid)
    return Grid(boxes, tracks, grid)


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


# boxes


def card_size(box: Box) -> tuple[float, float]:
    """Width and height of the card of a node, with room for its name, its type and its ports."""
    name = text_width(box.name, NAME_SIZE, bold=True)
    name += text_width(f" {box.times}", NAME_SIZE, bold=True) if box.times else 0.0
    ports = max((text_width(a) + text_width(b) for a, b in _port_rows(box)), default=0.0)
    rows = max(len(box.inputs), len(box.outputs))
    width = max(100.0, name + 24, text_width(box.type) + 24, ports + 36)
    return width, HEADER_HEIGHT + PORT_HEIGHT * rows + BOX_FOOT


def port_y(box: Box, port: str, side: str) -> float:
    """How far a port is below the top of its box's card."""
    ports = box.inputs if side == "in" else box.outputs
    return HEADER_HEIGHT + PORT_HEIGHT * (ports.index(port) + 0.5)


def _box_cell(box: Box, column: int, site: str | None) -> Cell:
    """The cell of a box: its card, the shade of replicas, and the frame of its site."""
    card_width, card_height = card_size(box)
    shade = SHADE if box.times else 0.0
    width, height = card_width + 2 * shade, card_height + shade
    if site is None:
        return Cell(column, height, width, 0.0, box)
    width = max(width, text_width(site)) + 2 * FRAME
    return Cell(column, height + 2 * FRAME + FRAME_TITLE, width, FRAME + FRAME_TITLE, box)


def _port_rows(box: Box) -> Iterator[tuple[str, str]]:
    for i in range(max(len(box.inputs), len(box.outputs))):
        yield (
            box.inputs[i] if i < len(box.inputs) else "",
            box.outputs[i] if i < len(box.outputs) else "",
        )


# tracks


def _tracks_of(
    arrow: Arrow, boxes: Mapping[str, Cell], known: dict[tuple[object, int], Cell]
) -> list[Cell]:
    """The tracks of an arrow, from its start to its end. New ones are added to `known`."""
    source, to = boxes[arrow.source.node], boxes[arrow.to.node]
    a, b = source.column, to.column
    if a < b:
        lines = {a + 1: arrow.label_lines}
        return [known.setdefault((arrow, c), _track(c, lines.get(c, ()))) for c in range(a + 1, b)]
    # Below the source, and from its left side to another box of its column, or to itself.
    if a == b:
        return [known.setdefault((arrow, a), _track(a, arrow.label_lines, source, back=True))]
    # arrows that lead back from one output share their first track, and those to one input their last
    first = known.setdefault((arrow.source, a), _track(a, owner=source, back=True))
    last = known.setdefault((arrow.to, b), _track(b, owner=to, back=True))
    for track in (first, last):
        track.span = max(track.span, a - b)
    lines = {(a + b) // 4 * 2 + 1: arrow.label_lines}  # a column of labels about halfway
    inner = [
        known.setdefault((arrow, c), _track(c, lines.get(c, ()), back=True))
        for c in range(a - 1, b, -1)
    ]
    return [first, *inner, last]


def _track(
    column: int, label: tuple[str, ...] = (), owner: Cell | None = None, back: bool = False
) -> Cell:
    head = TEXT_HEIGHT if label else TRACK_HEIGHT / 2
    foot = TEXT_HEIGHT * len(label[1:]) or TRACK_HEIGHT / 2
    width = max(map(text_width, label), default=0.0) + 2 * LABEL_PADDING
    return Cell(column, head + foot, width, head, back=back, label=label, owner=owner)


def _connect_neighbours(arrow: Arrow, path: Iterable[Cell], boxes: Mapping[str, Cell]) -> None:
    """Note which cells of adjacent columns should have the same height for the arrow to be straight."""
    source, to = boxes[arrow.source.node], boxes[arrow.to.node]
    stops = [(track, track.inset) for track in path]
    if source.column < to.column and source.box and to.box:
        start = (source, source.inset + port_y(source.box, arrow.source.port, "out"))
        end = (to, to.inset + port_y(to.box, arrow.to.port, "in"))
        stops = [start, *stops, end]
    for (a, a_y), (b, b_y) in pairwise(stops):
        a.neighbours.append((b, b_y - a_y))
        b.neighbours.append((a, a_y - b_y))


def _by_column(cells: list[Cell]) -> dict[int, list[Cell]]:
    """The cells of each column in their first order: boxes as they fire, each above its own tracks, then the others."""
    columns: dict[int, list[Cell]] = {}
    rank = {id(cell): number for number, cell in enumerate(cells)}
    for cell in sorted(cells, key=lambda c: (rank[id(c.owner or c)], rank[id(c)])):
        columns.setdefault(cell.column, []).append(cell)
    return dict(sorted(columns.items()))


# heights


def _place_y(columns: dict[int, list[Cell]]) -> None:
    """Order the cells of each column, and place them as close to their desired heights as there is room."""
    for cells in columns.values():
        y = 0.0
        for cell, space in zip(cells, _spaces(cells), strict=True):
            cell.y, y = y, y + space
    for sweep in range(MOST_SWEEPS):
        moved = 0.0
        for c in columns if sweep % 2 == 0 else reversed(columns):
            if sweep < ORDER_SWEEPS:
                columns[c].sort(key=_sort_key)
            moved = max(moved, _fit_column(columns[c], 1.0 if sweep < ORDER_SWEEPS else OVERSHOOT))
        if sweep >= ORDER_SWEEPS and moved < STILL:
            break


def _desired_y(cell: Cell) -> float:
    """The y at which the cell's arrows are straight on average."""
    wanted = [other.y + offset for other, offset in cell.neighbours]
    straight = sum(wanted) / len(wanted) if wanted else cell.y
    if cell.owner is None:
        return straight
    close = cell.owner.y + cell.owner.height + OWN_GAP
    return straight + OWNER_PULL * (close - straight)


def _sort_key(cell: Cell) -> tuple[float, float, bool, int]:
    """A box comes right before its tracks, and among these the arrow that leads back furthest comes last."""
    owner = cell.owner or cell
    return _desired_y(owner) + owner.height / 2, owner.y, cell.owner is not None, cell.span


def _spaces(cells: list[Cell]) -> list[float]:
    """The height of each cell with the gap to the next one."""
    following = [*cells[1:], None]
    return [
        c.height + (OWN_GAP if n is not None and (n.owner is c or not (n.box or c.box)) else GAP_Y)
        for c, n in zip(cells, following, strict=True)
    ]


def _weight(cell: Cell) -> float:
    """As every arrow pulls its two ends with the same force, the sweeps come to rest."""
    return (BACK_WEIGHT if cell.back else 1.0) * len(cell.neighbours) or BACK_WEIGHT


def _fit_column(cells: list[Cell], step: float) -> float:
    """Place ordered cells with the least squared distance to the desired heights (pool adjacent violators).

    Returns how far the cell that moved most has moved.
    """
    blocks: list[tuple[float, float, int]] = []  # weighted sum, weight, number of cells
    offset, offsets = 0.0, []
    for cell, space in zip(cells, _spaces(cells), strict=True):
        weight = _weight(cell)
        offsets.append(offset)
        y = cell.y + step * (_desired_y(cell) - cell.y)
        blocks.append(((y - offset) * weight, weight, 1))
        offset += space
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = (blocks[-1][0] + last[0], blocks[-1][1] + last[1], blocks[-1][2] + last[2])
    bases = [total / weight for total, weight, count in blocks for _ in range(count)]
    moved = 0.0
    for cell, base, below in zip(cells, bases, offsets, strict=True):
        moved = max(moved, abs(base + below - cell.y))
        cell.y = base + below
    return moved


def _straighten_arrows_back(
    paths: Iterable[tuple[Cell, ...]], columns: Mapping[int, list[Cell]]
) -> None:
    """Lower the tracks of each arrow that leads back to its lowest one, as far as there is room.

    Only other such tracks give way. They are straightened later, as the longest arrows come last.
    """
    back = [path for path in paths if path and path[0].back]
    for path in sorted(back, key=len):
        lowest = max(track.y + track.inset for track in path)
        for track in path:
            column = columns[track.column]
            below = column[column.index(track) + 1 :]
            if all(cell.back for cell in below):
                _lower([track, *below], lowest - track.inset)
            else:
                room = below[0].y - OWN_GAP - track.height
                track.y = max(track.y, min(lowest - track.inset, room))


def _lower(cells: list[Cell], y: float) -> None:
    """Lower the first cell to y, and those below it so that they keep their distance."""
    for cell in cells:
        cell.y = max(cell.y, y)
        y = cell.y + cell.height + OWN_GAP
