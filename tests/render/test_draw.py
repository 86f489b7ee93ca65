"""Pictures: DOT that Graphviz reads, Mermaid, a page that needs nothing else, and a layout."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import UsageError
from flowrl.graph.placement import resolve_placement
from flowrl.render import graphviz
from flowrl.render.dot import dot_text, graph_dot_text
from flowrl.render.draw import draw
from flowrl.render.layout import assign_columns, lay_out
from flowrl.render.mermaid import mermaid_text
from flowrl.render.picture import Picture, make_picture
from flowrl.render.svg import svg_document, svg_element
from tests.needs import find_program
from tests.render.graphs_to_show import HERE, checked, tree

needs_dot = pytest.mark.needs("dot")


def fan(actors: int) -> CheckedGraph:
    """Many sources whose tokens one sink takes, and whose weights all come from it."""
    types = {"source": "Source", "world": "World", "mixer": "Mixer"}
    nodes = {
        f"{n}{i}": {"type": HERE + types[n]}
        for i in range(actors)
        for n in ("source", "world", "mixer")
    }
    nodes["sink"] = {"type": f"{HERE}Sink"}
    edges: list[Any] = [", ".join(f"mixer{i}" for i in range(actors)) + " -> sink"]
    for i in range(actors):
        edges += [f"source{i} <-> world{i}", f"source{i} -> mixer{i}", f"sink -> source{i}"]
    return checked("fan", nodes=nodes, edges=edges, warmup=[])


# what a picture shows


def arrows(drawn: Picture) -> dict[str, tuple[str, bool, str]]:
    """Each arrow's kind, whether it leads back, and its words."""
    return {f"{a.source} {a.to}": (a.kind, a.back, a.label) for a in drawn.arrows}


def test_arrows_have_a_kind_a_direction_and_a_type() -> None:
    assert arrows(make_picture(checked())) == {
        "world.serve source.world": ("link", False, "world"),
        "source.data mixer.data": ("stream", False, "samples, 1 a round"),
        "mixer.out sink.data": ("stream", False, "samples, 2 a round"),
        "sink.weights source.weights": ("state", True, "weights, lag 0"),
        "sink.weights evaluator.weights": ("state", False, "weights, every 10"),
    }


@pytest.mark.parametrize(
    ("edge", "words"),
    [
        ({"sink -> source": {"lag": 2}}, "weights, lag 2"),
        ({"sink -> source": {"latest": True}}, "weights, latest"),
    ],
)
def test_staleness_is_on_the_arrow(edge: dict[str, Any], words: str) -> None:
    edges = [*tree()["edges"][:2], edge, tree()["edges"][3]]
    assert arrows(make_picture(checked(edges=edges)))["sink.weights source.weights"][2] == words


def test_feedback_and_dropping_are_on_the_arrow() -> None:
    feedback = {"sink.marks -> mixer.marks": {"capacity": 4, "when_full": "drop_oldest"}}
    found = arrows(make_picture(checked(edges=[*tree()["edges"], feedback])))
    words = "marks, 2 a round, 2 initial, drop oldest"
    assert found["sink.marks mixer.marks"] == ("stream", True, words)


def test_boxes_come_as_they_fire_with_services_before_their_clients() -> None:
    boxes = make_picture(checked()).boxes
    assert list(boxes) == ["world", "source", "mixer", "sink", "evaluator"]
    looks = [b.look for b in boxes.values()]
    assert looks == ["service", "collector", "node", "learner", "evaluator"]


def test_optional_ports_are_shown_where_they_are_used() -> None:
    assert make_picture(checked()).boxes["mixer"].inputs == ("data",)
    edges = [*tree()["edges"], "sink.marks -> mixer.marks"]
    assert make_picture(checked(edges=edges)).boxes["mixer"].inputs == ("data", "marks")


def test_the_warm_up_is_shown_in_words() -> None:
    assert make_picture(checked()).warmup == ("3 rounds: source, mixer (20 env steps)",)


def test_an_unsound_graph_can_be_drawn() -> None:
    broken = checked(edges=["source -> mixer -> sink"])
    assert broken.problems
    assert [a.kind for a in make_picture(broken).arrows] == ["stream", "stream"]
    assert "source" in graph_dot_text(broken)


def test_a_placement_of_other_nodes_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        make_picture(checked(), {"snik": "process"})
    assert str(error.value) == "placement: unknown node 'snik'; did you mean 'sink'?"


# DOT


def test_each_edge_is_written_once_and_forwards() -> None:
    dot = graph_dot_text(checked())
    assert re.findall(r'^  "(\w+)":"out_\w+":e -> "(\w+)":"in_\w+":w', dot, re.M) == [
        ("world", "source"),
        ("source", "mixer"),
        ("mixer", "sink"),
        ("sink", "source"),
        ("sink", "evaluator"),
    ]


def test_kinds_of_edges_look_different() -> None:
    lines = {
        kind: next(line for line in graph_dot_text(checked()).splitlines() if words in line)
        for kind, words in (
            ("link", '"world":'),
            ("stream", '"mixer":"out_'),
            ("state", '"evaluator":'),
        )
    }
    assert "dir=none" in lines["link"]
    assert "style=dashed" in lines["state"]
    assert "dashed" not in lines["stream"]
    assert "dir=none" not in lines["stream"]


def test_replicas_are_counted_on_the_node() -> None:
    nodes = tree()["nodes"]
    nodes["source"]["replicas"] = 4
    dot = graph_dot_text(checked(nodes=nodes))
    assert dot.count("×4") == 2  # its linked service has as many
    assert make_picture(checked()).boxes["source"].times == ""


def test_sites_are_clusters() -> None:
    graph = checked()
    dot = graph_dot_text(graph, resolve_placement(graph.graph, "processes"))
    assert re.findall(r'label="(process:\w+)"', dot) == [
        "process:source",
        "process:mixer",
        "process:sink",
        "process:evaluator",
    ]
    assert "cluster" not in graph_dot_text(graph)


ODD = ['a "quoted" <b>&amp; \\ name', "one\ntwo", "}] -> {", "\x00null", "日本"]


@needs_dot
@pytest.mark.parametrize("odd", ODD)
def test_odd_names_and_words_are_valid_dot(odd: str) -> None:
    graph = checked(odd, about=odd)
    graph.graph.nodes["sink"].type = odd
    placement = dict.fromkeys(graph.graph.nodes, "process")
    svg = graphviz.run_dot(graph_dot_text(graph, placement), "svg").decode()
    assert svg.count('class="edge"') == 5


@needs_dot
@pytest.mark.parametrize("for_layout", [False, True])
def test_graphviz_reads_a_large_graph(for_layout: bool) -> None:
    drawn = make_picture(fan(9))
    svg = graphviz.run_dot(dot_text(drawn, for_layout), "svg").decode()
    assert svg.count('class="node"') == len(drawn.boxes) == 28
    assert svg.count('class="edge"') == len(drawn.arrows) == 36


@needs_dot
def test_graphviz_errors_are_reported() -> None:
    with pytest.raises(UsageError, match=r"^draw: dot failed: Error: <stdin>: syntax error"):
        graphviz.run_dot("digraph {", "svg")


def test_the_error_without_graphviz_says_what_to_install_or_draw_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as error:
        draw(checked(), None, tmp_path / "x.png")
    assert str(error.value) == (
        "draw: .png needs the program 'dot', which is not on the PATH; install Graphviz "
        "(apt install graphviz, brew install graphviz), "
        "or draw .svg, .html, .md or .dot, which do not need it"
    )


def a_dot(folder: Path, script: str) -> None:
    """A program called dot that executes a script."""
    program = folder / "dot"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_dot_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_dot(tmp_path, "exec sleep 30")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(UsageError) as error:
        graphviz.run_dot("digraph {}", "svg", timeout_s=0.05)
    assert str(error.value) == (
        "draw: dot has not finished after 0.05 s; draw .html or .md, which do not need it"
    )


def test_a_dot_without_output_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_dot(tmp_path, "exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as error:
        graphviz.run_dot("digraph {}", "svg")
    assert str(error.value) == "draw: dot failed: exit status 3"


# SVG

SVG = "{http://www.w3.org/2000/svg}"


def svg_of(graph: CheckedGraph, placement: dict[str, str] | None = None) -> Element:
    """The root of the SVG file of a graph. Parsing fails unless it is well-formed."""
    return fromstring(svg_document(make_picture(graph, placement)).encode())


def groups_of_class(svg: Element, name: str) -> list[Element]:
    return [g for g in svg.iter(f"{SVG}g") if name in (g.get("class") or "").split()]


def texts_of(element: Element) -> list[str]:
    return ["".join(text.itertext()) for text in element.iter(f"{SVG}text")]


def without_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphviz.shutil, "which", lambda name: None)


def test_svg_needs_no_graphviz(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_graphviz(monkeypatch)
    for number, graph in enumerate((checked(), fan(14))):
        path = draw(graph, None, tmp_path / f"{number}.svg")
        root = fromstring(Path(path).read_bytes())
        assert len(groups_of_class(root, "node")) == len(graph.graph.nodes)


@needs_dot
def test_graphviz_draws_svg_of_large_graphs(tmp_path: Path) -> None:
    draw(fan(2), None, tmp_path / "small.svg")
    draw(fan(14), None, tmp_path / "large.svg")
    assert "Generated by graphviz" not in (tmp_path / "small.svg").read_text()
    assert "Generated by graphviz" in (tmp_path / "large.svg").read_text()


def test_svg_shows_the_same_facts_as_dot() -> None:
    """Title, warm-up, nodes with types and ports, edges with their kinds and labels, and sites."""
    graph = checked()
    placement = resolve_placement(graph.graph, "processes")
    drawn, svg = make_picture(graph, placement), svg_of(graph, placement)
    texts = texts_of(svg)
    assert texts[:3] == ["small", "A graph to look at.", f"warm-up, {drawn.warmup[0]}"]
    for box, group in zip(drawn.boxes.values(), groups_of_class(svg, "node"), strict=True):
        assert texts_of(group) == [box.name, box.type, *box.inputs, *box.outputs]
    kinds = [(group.get("class") or "").split()[1] for group in groups_of_class(svg, "edge")]
    assert kinds == [a.kind for a in drawn.arrows] + ["stream", "state", "link"]  # and the legend
    for arrow, group in zip(drawn.arrows, groups_of_class(svg, "edge"), strict=False):
        shown = " ".join(sorted(texts_of(group)))
        assert all(words in shown for words in (arrow.type, arrow.facts, arrow.transport) if words)
    sites = [texts_of(group)[0] for group in groups_of_class(svg, "site")]
    assert (
        sites
        == list(drawn.sites)
        == re.findall(r'label="(process:\w+)"', graph_dot_text(graph, placement))
    )


def test_an_svg_file_needs_neither_a_style_sheet_nor_a_page_around_it() -> None:
    text = svg_document(make_picture(checked()))
    assert "var(" not in text
    assert "href" not in text
    assert 'role="button"' not in text
    assert '<rect class="background"' in text


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_and_words_are_valid_svg(odd: str) -> None:
    graph = checked(odd, about=odd)
    graph.graph.nodes["sink"].type = odd
    svg = svg_of(graph, dict.fromkeys(graph.graph.nodes, "process"))
    assert len(groups_of_class(svg, "node")) == 5
    if odd.isprintable():
        assert texts_of(svg)[0] == odd


@pytest.mark.parametrize("graph", [checked(), fan(2), fan(9)], ids=["small", "fan2", "fan9"])
def test_everything_lies_within_an_svg_file(graph: CheckedGraph) -> None:
    svg, laid = svg_of(graph), lay_out(make_picture(graph))
    assert float(svg.get("width") or 0) >= laid.width
    assert float(svg.get("height") or 0) > laid.height
    xs = [float(text.get("x") or 0) for text in svg.iter(f"{SVG}text")]
    assert 0 <= min(xs) <= max(xs) < float(svg.get("width") or 0)


def test_arrows_back_from_one_node_do_not_cross() -> None:
    """The arrow that leads back further lies below the other in every column of both."""
    graph = checked(edges=[*tree()["edges"], "sink.marks -> mixer.marks"])
    routes = {r.arrow.to.node: r for r in lay_out(make_picture(graph)).routes if r.arrow.back}
    far = {round(begin[0]): begin[1] for begin, _ in routes["source"].pieces}
    near = {round(begin[0]): begin[1] for begin, _ in routes["mixer"].pieces}
    assert len(near.keys() & far.keys()) == 2
    assert all(near[x] < far[x] for x in near.keys() & far.keys())


# Mermaid


def test_mermaid_has_a_line_for_each_node_and_edge() -> None:
    page = mermaid_text(make_picture(checked()))
    lines = page.partition("```mermaid\n")[2].partition("```")[0].splitlines()
    assert lines[0] == "flowchart LR"
    assert lines[3].strip() == f'n2["<b>mixer</b><br/>{HERE}Mixer"]:::is_node'
    assert '  n0 ===|"world"| n1' in lines
    assert '  n1 -->|"samples<br/>1 a round"| n2' in lines
    assert '  n3 -.->|"weights<br/>lag 0"| n1' in lines


def test_mermaid_escapes_what_would_end_a_label() -> None:
    graph = checked()
    graph.graph.nodes["sink"].type = 'a"]b|c'
    assert 'a#34;#93;b#124;c"]' in mermaid_text(make_picture(graph))


def test_mermaid_puts_sites_around_their_nodes() -> None:
    page = mermaid_text(make_picture(checked(), {"sink": "process"}))
    assert 'subgraph s1 ["process:sink"]\n    n3[' in page


# the page


class Page(HTMLParser):
    """Counts elements and their references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.classes.append(found.get("class") or "")
        self.references += [v for k in ("src", "href") if (v := found.get(k))]
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(graph: CheckedGraph, tmp_path: Path) -> str:
    """The page of a graph."""
    return Path(draw(graph, None, tmp_path / "page.html")).read_text()


def data_of(page: str) -> dict[str, Any]:
    """The page's data about its nodes."""
    found = re.search(r'<script id="nodes" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    page = Page(page_of(checked(), tmp_path))
    assert page.open == []
    assert page.references == []
    assert sum(c.startswith("node is-") for c in page.classes) == 5
    assert sum(c.startswith("edge ") for c in page.classes) == 5


def test_the_page_holds_each_nodes_parameters_and_facts(tmp_path: Path) -> None:
    nodes = tree()["nodes"]
    nodes["mixer"]["times"] = 3
    found = data_of(page_of(checked(nodes=nodes), tmp_path))["mixer"]
    assert found["params"] == [
        ["times", "3", True, "tokens for each that comes in"],
        ["how", "plain", False, "in which way"],
    ]
    assert found["facts"] == [
        ["fires", "1 × a round", False, ""],
        ["gives out", "reward float32", False, ""],
    ]


def test_the_page_says_how_often_a_paced_node_fires(tmp_path: Path) -> None:
    facts = data_of(page_of(checked(), tmp_path))["evaluator"]["facts"]
    assert facts == [["fires", "1 × every 10 versions of sink.weights", False, ""]]


def test_nothing_in_a_graph_can_break_out_of_the_page(tmp_path: Path) -> None:
    nodes = tree()["nodes"]
    nodes["mixer"]["how"] = "</script><script>alert(1)</script>"
    graph = checked("<i>odd</i>", nodes=nodes, about="<script>alert(2)</script>@svg@")
    page = page_of(graph, tmp_path)
    assert "alert(1)</script>" not in page
    assert "<script>alert" not in page
    assert "&lt;i&gt;odd&lt;/i&gt;" in page
    assert page.count("<svg") == 1
    assert data_of(page)["mixer"]["params"][1][1].count("</script>") == 2


def test_the_page_of_an_unsound_graph_lists_its_problems(tmp_path: Path) -> None:
    page = page_of(checked(edges=["source -> mixer -> sink"]), tmp_path)
    assert "the link &#x27;world&#x27; (world) is not connected" in page
    assert "An unsound graph has no schedule." in page


@pytest.mark.needs("chromium")
def test_a_picture_that_needs_all_the_room_has_its_details_below(tmp_path: Path) -> None:
    def main_of(width: int) -> str:
        size = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
        words = [
            str(find_program("chromium")),
            *size,
            "--dump-dom",
            (tmp_path / "page.html").as_uri(),
        ]
        dom = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
        return re.findall("<main[^>]*>", dom)[0]

    page_of(checked(), tmp_path)
    assert main_of(1000) == '<main class="stacked">'
    assert main_of(2000) == "<main>"


# where things lie


def test_columns_follow_the_arrows() -> None:
    assert assign_columns(make_picture(checked())) == {
        "world": 0,
        "source": 1,
        "mixer": 2,
        "sink": 3,
        "evaluator": 4,
    }


@pytest.mark.parametrize("graph", [checked(), fan(1), fan(9)], ids=["small", "fan1", "fan9"])
def test_no_box_covers_another(graph: CheckedGraph) -> None:
    laid = lay_out(make_picture(graph))
    for a, b in combinations(laid.cells.values(), 2):
        beside = a.x + a.width <= b.x or b.x + b.width <= a.x
        assert beside or a.y + a.height <= b.y or b.y + b.height <= a.y
    for cell in laid.cells.values():
        assert cell.x >= 0
        assert cell.y >= 0
        assert cell.x + cell.width <= laid.width
        assert cell.y + cell.height <= laid.height


@pytest.mark.parametrize("graph", [checked(), fan(2), fan(9)], ids=["small", "fan2", "fan9"])
def test_no_arrow_passes_through_a_box(graph: CheckedGraph) -> None:
    laid = lay_out(make_picture(graph))
    for route in laid.routes:
        for (x0, y), (x1, _) in route.pieces:
            for cell in laid.cells.values():
                crosses = min(x0, x1) < cell.x + cell.width and cell.x < max(x0, x1)
                assert not (crosses and cell.y < y < cell.y + cell.height)


def test_an_arrow_back_goes_below_both_of_its_boxes() -> None:
    laid = lay_out(make_picture(checked()))
    route = next(r for r in laid.routes if r.arrow.back)
    source, to = laid.cells["sink"], laid.cells["source"]
    assert route.start[0] == source.x + source.width
    assert route.end[0] == to.x
    assert route.pieces[0][0][1] > source.y + source.height
    assert route.pieces[-1][0][1] > to.y + to.height


def test_a_straight_line_of_nodes_is_drawn_straight() -> None:
    laid = lay_out(make_picture(checked()))
    forward = [r for r in laid.routes if not r.arrow.back]
    assert [r.start[1] - r.end[1] for r in forward] == pytest.approx([0.0] * 4, abs=1.0)


# the verb


def test_the_ending_says_what_is_drawn(tmp_path: Path) -> None:
    for name, begins in (("a.dot", "digraph"), ("a.md", "# small"), ("a.html", "<!doctype html>")):
        path = tmp_path / name
        assert draw(checked(), None, path) == str(path)
        assert path.read_text().startswith(begins)


@needs_dot
def test_png_is_drawn_by_graphviz(tmp_path: Path) -> None:
    draw(checked(), None, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_file_the_dot_is_given() -> None:
    assert draw(checked()) == graph_dot_text(checked())


@pytest.mark.parametrize(("name", "ending"), [("a.jpg", ".jpg"), ("a", "")])
def test_an_unknown_ending_lists_the_known_ones(tmp_path: Path, name: str, ending: str) -> None:
    with pytest.raises(UsageError) as error:
        draw(checked(), None, tmp_path / name)
    assert str(error.value) == (
        f"draw: {tmp_path / name}: unknown ending '{ending}'; known: .dot, .svg, .png, .md, .html"
    )
    assert not (tmp_path / name).exists()


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.dot"
    with pytest.raises(UsageError) as error:
        draw(checked(), None, path)
    assert str(error.value) == f"draw: {path}: cannot be written: No such file or directory"


# placements


def test_an_edge_across_sites_names_its_transport() -> None:
    ways = {"main": "", "thread": "by reference", "process": "ipc + shared memory", "cpu-1": "tcp"}
    for place, words in ways.items():
        drawn = make_picture(checked(), {"sink": place} if place != "main" else {})
        assert {a.transport for a in drawn.arrows if "sink" in (a.source.node, a.to.node)} == {
            words
        }
        assert all(
            a.transport == "" for a in drawn.arrows if "sink" not in (a.source.node, a.to.node)
        )
    assert {a.transport for a in make_picture(checked()).arrows} == {""}


def test_the_page_draws_a_frame_around_each_site() -> None:
    page = svg_element(make_picture(checked(), {"sink": "process"}))
    assert page.count('<g class="site">') >= 2
    assert "<title>site process:sink</title>" in page
    assert '<g class="site">' not in svg_element(make_picture(checked()))


def test_a_frame_never_encloses_nodes_of_other_sites() -> None:
    """The first node of a chain, its service and the last node share a site, and each has a frame of its own."""
    names = [b.name for b in make_picture(checked()).boxes.values()]
    placed = {names[0]: "thread:x", names[-1]: "thread:x"}
    page = svg_element(make_picture(checked(), placed))
    assert page.count("<title>site thread:x</title>") == 3
