"""Pictures: DOT that Graphviz reads, Mermaid, a page that needs nothing else, and a layout."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
from PIL import Image

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.errors import UsageError
from flowrl.graph.loading import load_graph
from flowrl.graph.placement import Placement, read_placement, resolve_placement
from flowrl.render import png
from flowrl.render.dot import dot_text, graph_dot_text
from flowrl.render.draw import draw
from flowrl.render.mermaid import mermaid_text
from flowrl.render.picture import Picture, make_picture
from flowrl.render.png import SCALE
from flowrl.render.report import check_text
from flowrl.render.sheet import make_sheet
from flowrl.render.svg import palette, svg_document, svg_element
from flowrl.render.text_size import SMALL_SIZE
from tests.needs import find_program
from tests.render.graphs_to_show import HERE, checked, fan, tree

needs_dot = pytest.mark.needs("dot")


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


def test_a_group_is_told_from_independent_replicas() -> None:
    found = check(load_graph("cartpole_ppo_group"))
    assert graph_dot_text(found).count("group ×2") == 1
    assert "every round: collector, learner (a group of 2)" in check_text(found)


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


def drawn_by_graphviz(dot: str) -> str:
    """The SVG that Graphviz makes of DOT text; it fails if the text is malformed."""
    words = [str(find_program("dot")), "-Tsvg"]
    return subprocess.run(
        words, input=dot, capture_output=True, text=True, check=True, timeout=60
    ).stdout


ODD = ['a "quoted" <b>&amp; \\ name', "one\ntwo", "}] -> {", "\x00null", "日本"]


@needs_dot
@pytest.mark.parametrize("odd", ODD)
def test_odd_names_and_words_are_valid_dot(odd: str) -> None:
    graph = checked(odd, about=odd)
    graph.graph.nodes["sink"].type = odd
    placement = resolve_placement(graph.graph, "processes")
    svg = drawn_by_graphviz(graph_dot_text(graph, placement))
    assert svg.count('class="edge"') == 5


@needs_dot
def test_graphviz_reads_a_large_graph() -> None:
    drawn = make_picture(fan(9))
    svg = drawn_by_graphviz(dot_text(drawn))
    assert svg.count('class="node"') == len(drawn.boxes) == 28
    assert svg.count('class="edge"') == len(drawn.arrows) == 36


# SVG

SVG = "{http://www.w3.org/2000/svg}"


def svg_of(graph: CheckedGraph, placement: Placement | None = None) -> Element:
    """The root of the SVG file of a graph. Parsing fails unless it is well-formed."""
    return fromstring(svg_document(make_picture(graph, placement)).encode())


def groups_of_class(svg: Element, name: str) -> list[Element]:
    return [g for g in svg.iter(f"{SVG}g") if name in (g.get("class") or "").split()]


def texts_of(element: Element) -> list[str]:
    return ["".join(text.itertext()) for text in element.iter(f"{SVG}text")]


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
    page = mermaid_text(placed_picture({"sink": "process"}))
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


def dom_of(page: Path, width: int) -> str:
    """The elements of a page in a window of this width, after its scripts."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    words = [str(find_program("chromium")), *options, "--dump-dom", page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_a_picture_that_needs_all_the_room_has_its_details_below(tmp_path: Path) -> None:
    page_of(checked(), tmp_path)
    page = tmp_path / "page.html"
    assert re.findall("<main[^>]*>", dom_of(page, 1000)) == ['<main class="stacked">']
    assert re.findall("<main[^>]*>", dom_of(page, 2400)) == ["<main>"]


@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_a_narrow_page_begins_with_the_first_nodes_and_says_that_it_continues(
    tmp_path: Path,
) -> None:
    page = Path(draw(check(load_graph("cartpole_dqn")), None, tmp_path / "page.html"))
    measure = """<script>
      const at = (name) => document.querySelector(`[data-node=${name}]`).getBoundingClientRect();
      const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      const places = [at("envs").left, at("collector").right, picture.clientWidth, scale];
      const hintHeight = () => document.querySelector(".hint").getBoundingClientRect().height;
      const before = hintHeight();
      picture.scrollLeft = 10000;
      hint();
      document.title = [...places, before, hintHeight()].join(" ");
    </script>"""
    page.write_text(page.read_text() + measure)
    title = re.findall("<title>([-. 0-9]+)</title>", dom_of(page, 700))[0]
    left, right, width, scale, hint_before, hint_at_the_end = map(float, title.split())
    assert 0 < left < right < width < 700
    assert scale * SMALL_SIZE >= 11
    assert hint_before > 10
    assert hint_at_the_end == 0


@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_a_page_of_1100_pixels_shows_the_usual_graph_without_scrolling_sideways(
    tmp_path: Path,
) -> None:
    page = Path(draw(check(load_graph("cartpole_dqn")), None, tmp_path / "page.html"))
    measure = """<script>
      const widths = [picture, document.documentElement].map((e) => e.scrollWidth - e.clientWidth);
      document.title = widths.join(" ");
    </script>"""
    page.write_text(page.read_text() + measure)
    assert re.findall("<title>([ 0-9]+)</title>", dom_of(page, 1100)) == ["0 0"]


# the verb


def test_the_ending_says_what_is_drawn(tmp_path: Path) -> None:
    for name, begins in (("a.dot", "digraph"), ("a.md", "# small"), ("a.html", "<!doctype html>")):
        path = tmp_path / name
        assert draw(checked(), None, path) == str(path)
        assert path.read_text().startswith(begins)


@pytest.mark.slow
def test_png_has_the_layout_of_the_svg_file_and_needs_no_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    odd = checked(
        about="a \x00 and a $ and a 日", edges=[*tree()["edges"], "sink.marks -> mixer.marks"]
    )
    placement = resolve_placement(odd.graph, "processes")
    with Image.open(draw(odd, placement, tmp_path / "a.png")) as file:
        picture = file.convert("RGB")
    sheet = make_sheet(make_picture(odd, placement))
    assert picture.size == pytest.approx((sheet.width * SCALE, sheet.height * SCALE), abs=SCALE)
    for box, card in sheet.picture.cards:  # the colour of its head, in its upper corner
        at = (round((card.left + 6) * SCALE), round((card.top + sheet.top + 8) * SCALE))
        assert "#{:02x}{:02x}{:02x}".format(*picture.getpixel(at)) == palette()[box.look]


def test_a_huge_picture_is_drawn_smaller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(png, "LONGEST_SIDE", 400)
    with Image.open(draw(checked(), None, tmp_path / "a.png")) as picture:
        assert max(picture.size) == pytest.approx(400, abs=2)
    monkeypatch.setattr(png, "MOST_PIXELS", 2_000)
    with Image.open(draw(checked(), None, tmp_path / "b.png")) as picture:
        assert picture.width * picture.height == pytest.approx(2_000, rel=0.1)


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


def placed_picture(written: dict[str, object]) -> Picture:
    graph = checked()
    return make_picture(graph, read_placement(graph.graph, written))


def test_an_edge_across_sites_names_its_transport() -> None:
    ways = {"main": "", "thread": "by reference", "process": "ipc + shared memory", "cpu-1": "tcp"}
    for place, words in ways.items():
        drawn = placed_picture({"sink": place} if place != "main" else {})
        assert {a.transport for a in drawn.arrows if "sink" in (a.source.node, a.to.node)} == {
            words
        }
        assert all(
            a.transport == "" for a in drawn.arrows if "sink" not in (a.source.node, a.to.node)
        )
    assert {a.transport for a in make_picture(checked()).arrows} == {""}


def test_a_site_shows_what_it_needs() -> None:
    drawn = placed_picture({"sink": {"place": "gpu-*", "gpus": 1, "cores": 2}, "mixer": "process"})
    assert set(drawn.sites) == {"main", "gpu-*:sink (1 GPU, 2 cores)", "process:mixer"}


def test_replicas_at_several_places_are_in_one_frame_that_names_all() -> None:
    nodes = {**tree()["nodes"]}
    for name in ("source", "world"):
        nodes[name] = {**nodes[name], "replicas": 4}
    graph = checked(nodes=nodes)
    spread = {"place": "cpu-*", "cores": 1, "spread": True}
    written = {"source[0-2]": spread, "source[3]": {"place": "gpu-1", "gpus": 1}}
    sites = make_picture(graph, read_placement(graph.graph, written)).sites
    [text] = [text for text, names in sites.items() if "source" in names]
    assert text == "cpu-*:source ×3 (1 core, each on another host), gpu-1:source (1 GPU)"
    assert sites[text] == ("world", "source")


def test_the_page_draws_a_frame_around_each_site() -> None:
    page = svg_element(placed_picture({"sink": "process"}))
    assert page.count('<g class="site">') >= 2
    assert "<title>site process:sink</title>" in page
    assert '<g class="site">' not in svg_element(make_picture(checked()))


def test_a_frame_never_encloses_nodes_of_other_sites() -> None:
    """The first node of a chain, its service and the last node share a site, and each has a frame of its own."""
    names = [b.name for b in make_picture(checked()).boxes.values()]
    placed = {names[0]: "thread:x", names[-1]: "thread:x"}
    page = svg_element(placed_picture(placed))
    assert page.count("<title>site thread:x</title>") == 3
