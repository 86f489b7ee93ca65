"""Which nodes share a site."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.core.errors import UsageError
from flowrl.graph.model import Graph
from flowrl.graph.placement import (
    HostOffer,
    host_places,
    matching_hosts,
    nodes_by_site,
    resolve_placement,
)
from tests.render.graphs_to_show import checked


@pytest.fixture
def graph() -> Graph:
    """A graph with a placement of its own."""
    return checked(placements={"apart": {"sink": "process", "evaluator": "gpu-host"}}).graph


def placed(graph: Graph, text: str) -> dict[str, list[str]]:
    """The sites of a placement by its name."""
    return nodes_by_site(graph, resolve_placement(graph, text))


def test_serial_is_one_site(graph: Graph) -> None:
    assert placed(graph, "serial") == {"main": ["world", "source", "mixer", "sink", "evaluator"]}


@pytest.mark.parametrize(("name", "place"), [("threads", "thread"), ("processes", "process")])
def test_each_linked_group_has_a_site_named_after_its_client(
    graph: Graph, name: str, place: str
) -> None:
    assert placed(graph, name) == {
        f"{place}:source": ["world", "source"],
        f"{place}:mixer": ["mixer"],
        f"{place}:sink": ["sink"],
        f"{place}:evaluator": ["evaluator"],
    }


def test_a_node_that_a_placement_does_not_name_is_on_the_main_site(graph: Graph) -> None:
    assert placed(graph, "apart") == {
        "main": ["world", "source", "mixer"],
        "process:sink": ["sink"],
        "gpu-host:evaluator": ["evaluator"],
    }


def test_nodes_go_with_the_nodes_that_they_are_linked_to(graph: Graph) -> None:
    assert placed(graph, "world=process")["process:source"] == ["world", "source"]


def test_linked_nodes_may_be_put_on_two_sites(graph: Graph) -> None:
    found = placed(graph, "source=thread:a, world=process:b")
    assert (found["thread:a"], found["process:b"]) == (["source"], ["world"])


def test_a_place_with_a_name_is_shared(graph: Graph) -> None:
    assert placed(graph, "mixer=process:left,sink=process:left")["process:left"] == [
        "mixer",
        "sink",
    ]


def test_a_placement_may_have_any_name(graph: Graph) -> None:
    graph.placements["threads"] = {"sink": "process"}
    assert list(placed(graph, "threads")) == ["main", "process:sink"]


def test_a_part_graph_stands_for_all_of_its_nodes(graph: Graph) -> None:
    for name in ("mixer", "sink"):
        graph.nodes[f"part/{name}"] = graph.nodes.pop(name)
    graph.edges.clear()
    assert resolve_placement(graph, "part=thread") == {
        "part/mixer": "thread",
        "part/sink": "thread",
    }


def test_a_placement_may_be_a_file(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "there.yaml"
    path.write_text("sink: process\nmixer: thread\n")
    assert resolve_placement(graph, str(path)) == {"sink": "process", "mixer": "thread"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "proceses",
            "--placement proceses: there is no such placement; did you mean 'processes'? "
            "(or give a YAML file, or node=process,…)",
        ),
        (
            "zzz",
            "--placement zzz: there is no such placement; known: apart, processes, serial, threads "
            "(or give a YAML file, or node=process,…)",
        ),
        ("snik=thread", "--placement snik=thread: unknown node 'snik'; did you mean 'sink'?"),
        (
            "sink=",
            "--placement sink=: 'sink=' is not node=place; write collector=process,learner=thread",
        ),
        (
            "sink=a b",
            "--placement sink=a b: 'sink' is put at 'a b'; expected thread, process or a host",
        ),
    ],
)
def test_a_wrong_placement_is_refused_with_a_remedy(graph: Graph, text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve_placement(graph, text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("snik: thread\n", "there.yaml: unknown node 'snik'; did you mean 'sink'?"),
        ("- sink\n", "there.yaml:1:1: a placement is a mapping; write 'collector: process'"),
        (
            "sink: 3\n",
            "there.yaml:1:7: 'sink' is put at 3; expected thread, process or a host",
        ),
    ],
)
def test_a_wrong_placement_file_is_reported_with_its_location(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        resolve_placement(graph, "there.yaml")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        ("proc", "process"),
        ("proces:left", "process"),
        ("processes", "process"),
        ("Thread", "thread"),
        ("serial", "main"),
    ],
)
def test_a_misspelt_local_place_is_not_the_name_of_a_host(
    graph: Graph, place: str, meant: str
) -> None:
    with pytest.raises(UsageError) as error:
        resolve_placement(graph, f"sink={place}")
    pattern = f"{place.partition(':')[0]}*"
    assert str(error.value) == (
        f"--placement sink={place}: 'sink' is put at '{place}'; did you mean '{meant}'? "
        f"For a host of this name, write the pattern '{pattern}'"
    )
    assert host_places(graph, resolve_placement(graph, f"sink={pattern}")) == [pattern]


@pytest.mark.parametrize("host", ["train", "gpu", "main-1", "thread2", "domain", "pro", "left"])
def test_other_words_are_names_of_hosts(graph: Graph, host: str) -> None:
    assert host_places(graph, resolve_placement(graph, f"sink={host}")) == [host]


def test_a_missing_file_is_reported(graph: Graph) -> None:
    with pytest.raises(UsageError) as error:
        resolve_placement(graph, "nowhere.yaml")
    assert str(error.value) == (
        "--placement nowhere.yaml: there is no such file; write nodes and places in it"
    )


# hosts


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("cpu-2", ["cpu-2"]),
        ("cpu-*", ["cpu-1", "cpu-2", "cpu-10"]),  # as people count
        ("cpu-[1-9]", ["cpu-1", "cpu-2"]),
        ("big", ["cpu-10", "gpu"]),  # a label
        ("b?g", ["cpu-10", "gpu"]),
        ("tpu", []),
    ],
)
def test_a_place_means_hosts_by_name_label_or_pattern(place: str, found: list[str]) -> None:
    offers = [
        HostOffer("cpu-10", ("big",)),
        HostOffer("gpu", ("big",)),
        HostOffer("cpu-2"),
        HostOffer("cpu-1"),
    ]
    assert matching_hosts(place, offers) == found


@pytest.mark.parametrize(
    "name", ["main", "thread", "process", "coordinator", "a b", "", "x" * 64, "ä"]
)
def test_a_host_cannot_have_the_name_of_a_place(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' cannot be a host's name or label"):
        HostOffer(name)
    with pytest.raises(UsageError, match="cannot be a host's name or label"):
        HostOffer("fine", (name,))


def test_the_hosts_of_a_placement_are_its_places_on_other_machines(graph: Graph) -> None:
    placement = resolve_placement(
        graph, "source=cpu-*:all,mixer=thread,sink=gpu,evaluator=process:x"
    )
    assert host_places(graph, placement) == ["cpu-*", "gpu"]
