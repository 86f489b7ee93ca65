"""Nothing in a picture covers anything else, and all of it can be read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import pytest

from flowrl.checks.check import CheckedGraph, check
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.loading import load_graph
from flowrl.graph.placement import resolve_placement
from flowrl.render.columns import assign_columns
from flowrl.render.layout import Rect, lay_out
from flowrl.render.picture import make_picture
from flowrl.render.svg import MINIMUM_SCALE, svg_document
from flowrl.render.text_size import text_width
from tests.render.drawn_svg import DrawnSvg, font, measure_svg
from tests.render.graphs_to_show import HERE, checked, fan, tree

SMALLEST_TEXT = 11  # pixels
NEAR = 1.5  # pixels: half of the width of a line, about


def replicas() -> CheckedGraph:
    nodes = tree()["nodes"]
    nodes["source"]["replicas"] = 4
    return checked("replicas", nodes=nodes)


def feedback() -> CheckedGraph:
    """With edges that lead back, one to the next node and one to the node itself."""
    nodes = {**tree()["nodes"], "loop": {"type": f"{HERE}Echo"}}
    back = {"sink.marks -> mixer.marks": {"capacity": 4, "when_full": "drop_oldest"}}
    return checked(
        "feedback", nodes=nodes, edges=[*tree()["edges"], back, "loop -> loop"], warmup=[]
    )


def side_by_side() -> CheckedGraph:
    """Wide and narrow boxes in one column, and an edge that passes others."""
    nodes = {
        **tree()["nodes"],
        "another_source_with_a_long_name": {"type": f"{HERE}Source"},
        "second_world": {"type": f"{HERE}World"},
        "second": {"type": f"{HERE}Evaluator"},
    }
    edges = [
        "source <-> world",
        "another_source_with_a_long_name <-> second_world",
        "source -> mixer",
        "mixer, another_source_with_a_long_name -> sink",
        "sink -> source",
        "sink -> another_source_with_a_long_name",
        {"sink -> evaluator": {"every": 10}},
        {"sink -> second": {"every": 7}},
    ]
    return checked("side_by_side", nodes=nodes, edges=edges, warmup=[])


TOYS: dict[str, Callable[[], CheckedGraph]] = {
    "small": checked,
    "fan1": lambda: fan(1),
    "fan5": lambda: fan(5),
    "replicas": replicas,
    "feedback": feedback,
    "side_by_side": side_by_side,
    "unsound": lambda: checked(edges=["source -> mixer -> sink"]),
}
PLACES = ["none", "processes"]


@pytest.fixture(scope="module", params=[*TOYS, *bundled_graphs()])
def graph(request: pytest.FixtureRequest) -> CheckedGraph:
    return TOYS[request.param]() if request.param in TOYS else check(load_graph(request.param))


def measured(graph: CheckedGraph, place: str) -> DrawnSvg:
    placement = None if place == "none" else resolve_placement(graph.graph, place)
    return measure_svg(svg_document(make_picture(graph, placement)))


@pytest.fixture(scope="module", params=PLACES)
def drawn(request: pytest.FixtureRequest, graph: CheckedGraph) -> DrawnSvg:
    """The picture of each graph in each placement, drawn once for all tests of it."""
    return measured(graph, request.param)


def shrunk(rect: Rect, by: float) -> Rect:
    return Rect(rect.left + by, rect.top + by, rect.width - 2 * by, rect.height - 2 * by)


def inside(point: tuple[float, float], rect: Rect) -> bool:
    return rect.left < point[0] < rect.right and rect.top < point[1] < rect.bottom


def test_nothing_in_a_picture_covers_anything_else(drawn: DrawnSvg) -> None:
    boxes = list(drawn.boxes.values())
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
    for edge in drawn.edges:
        cut = [name for name, box in drawn.boxes.items() if _any(edge.points, shrunk(box, 1.0))]
        assert not cut, f"{edge.ends} passes through {cut}"
        assert edge.labels
        for label in edge.labels:
            struck = [e.ends for e in drawn.edges if _any(e.points, shrunk(label.rect, -NEAR))]
            assert not struck, f"{label.words} is struck through by {struck}"
            assert not [box for box in boxes if box.overlaps(label.rect)], label.words
    for a, b in combinations(drawn.texts, 2):
        assert not a.rect.overlaps(b.rect), f"{a.words} and {b.words} overlap"


def _any(points: list[tuple[float, float]], rect: Rect) -> bool:
    """Whether a line enters a rectangle: one of its points, or the middle between two of them."""
    middles = [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2) for a, b in pairwise(points)]
    return any(inside(p, rect) for p in (*points, *middles))


def test_all_text_can_be_read_and_lies_within_the_picture(drawn: DrawnSvg) -> None:
    whole = Rect(0, 0, drawn.width, drawn.height)
    for text in drawn.texts:
        assert text.size * MINIMUM_SCALE >= SMALLEST_TEXT, text.words
        corners = [(text.rect.left, text.rect.top), (text.rect.right, text.rect.bottom)]
        assert all(inside(corner, whole) for corner in corners), text.words
    for edge in drawn.edges:
        assert all(inside(point, whole) for point in edge.points)


def test_the_lines_of_the_title_keep_their_distance() -> None:
    title, about, warmup = measured(checked(), "none").texts[:3]
    assert about.rect.top - title.rect.bottom >= 5
    assert warmup.rect.top - about.rect.bottom >= 3


@pytest.mark.slow
@pytest.mark.parametrize("bold", [False, True])
def test_text_is_not_wider_than_its_room(bold: bool) -> None:
    words = [w for name in bundled_graphs() for w in _words_of(name)]
    for word in [*words, "×16", "ipc + shared memory", "8 a round, 8 initial"]:
        actual = font(bold).getlength(word) / 100 * 12
        assert actual <= text_width(word, 12.0, bold) <= 1.35 * actual + 4, word


def _words_of(name: str) -> set[str]:
    nodes = load_graph(name).graph.nodes.values()
    return {w for node in nodes for w in (node.name, node.type, *node.cls.ports)}


# what an arrangement looks like


def test_columns_follow_the_arrows() -> None:
    assert assign_columns(make_picture(checked())) == {
        "world": 0,
        "source": 1,
        "mixer": 2,
        "sink": 3,
        "evaluator": 4,
    }


def test_an_arrow_back_goes_below_both_of_its_boxes() -> None:
    drawn = measured(checked(), "none")
    edge = next(e for e in drawn.edges if e.ends == ("sink", "source"))
    source, to = drawn.boxes["sink"], drawn.boxes["source"]
    assert edge.points[0][0] == pytest.approx(source.right, abs=0.2)
    assert edge.points[-1][0] == pytest.approx(to.left, abs=0.2)
    assert max(y for _, y in edge.points) > max(source.bottom, to.bottom)


def test_arrows_back_from_one_node_do_not_cross() -> None:
    """The arrow that leads back further lies below the other wherever both are horizontal, and encloses its turn."""
    graph = checked(edges=[*tree()["edges"], "sink.marks -> mixer.marks"])
    routes = {r.arrow.to.node: r for r in lay_out(make_picture(graph)).routes if r.arrow.back}
    far, near = (
        {round(segment[0][0]): segment[0][1] for segment in route.segments if len(segment) == 1}
        for route in (routes["source"], routes["mixer"])
    )
    shared = set(list(near)[1:-1]) & far.keys()
    assert shared
    assert all(near[x] < far[x] for x in shared)
    assert routes["mixer"].segments[1][0][0] < routes["source"].segments[1][0][0]


@pytest.mark.parametrize("name", ["cartpole_dqn", "cartpole_dqn_demos", "hopper_ppo"])
@pytest.mark.parametrize("place", PLACES)
def test_a_straight_line_of_nodes_is_drawn_straight(name: str, place: str) -> None:
    drawn = measured(check(load_graph(name)), place)
    alone: dict[Any, int] = {}
    for edge in drawn.edges:
        alone[edge.ends[1]] = alone.get(edge.ends[1], 0) + 1
    for edge in drawn.edges:
        ahead = edge.points[0][0] < edge.points[-1][0]
        if ahead and (edge.ends[0] == "envs" or alone[edge.ends[1]] == 1):
            heights = [y for _, y in edge.points]
            assert max(heights) - min(heights) < 1.5, edge.ends
