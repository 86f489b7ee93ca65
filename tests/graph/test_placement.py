"""Which nodes share a site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl.core.errors import UsageError
from flowrl.graph.host_offers import HostOffer, matching_hosts
from flowrl.graph.model import Graph
from flowrl.graph.placement import InstanceId, Placement, read_placement, resolve_placement
from flowrl.graph.places import Needs, Place
from flowrl.graph.site_shares import (
    host_places,
    nodes_on_hosts,
    placed_shares,
    shares_by_site,
    without_hosts,
)
from tests.render.graphs_to_show import checked, tree


@pytest.fixture
def graph() -> Graph:
    """A graph with a placement of its own."""
    return checked(placements={"apart": {"sink": "process", "evaluator": "gpu-host"}}).graph


@pytest.fixture
def refusal(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The error of a placement file with the given text."""

    def refusal(text: str) -> str:
        monkeypatch.chdir(tmp_path)
        Path("there.yaml").write_text(text)
        with pytest.raises(UsageError) as error:
            resolve_placement(graph, "there.yaml")
        return str(error.value)

    return refusal


def placed(graph: Graph, text: str) -> dict[str, list[str]]:
    """The sites of a placement by its name."""
    sites = shares_by_site(graph, resolve_placement(graph, text))
    return {site: [n for s in shares for n, _ in s.instances] for site, shares in sites.items()}


def words(placement: Placement) -> dict[InstanceId, str]:
    return {instance: place.word for instance, place in placement.items()}


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
    assert words(resolve_placement(graph, "part=thread")) == {
        ("part/mixer", 0): "thread",
        ("part/sink", 0): "thread",
    }


def test_a_placement_may_be_a_file(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "there.yaml"
    path.write_text("sink: process\nmixer: thread\n")
    found = words(resolve_placement(graph, str(path)))
    assert found == {("sink", 0): "process", ("mixer", 0): "thread"}


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
            "sink=thread,sink=process",
            "--placement sink=thread,sink=process: 'sink' is put at thread and at process; name it once",
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
    refusal: Callable[[str], str], text: str, message: str
) -> None:
    assert refusal(text) == message


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
    assert [offer.name for offer in matching_hosts(place, offers)] == found


@pytest.mark.parametrize(
    "name", ["main", "thread", "process", "any", "coordinator", "a b", "", "x" * 64, "ä"]
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


# needs and replicas


def replicated(count: int = 4) -> Graph:
    """A graph whose `source` and `world`, which are linked, have replicas."""
    nodes = {**tree()["nodes"]}
    for name in ("source", "world"):
        nodes[name] = {**nodes[name], "replicas": count}
    return checked(nodes=nodes).graph


def shared(graph: Graph, written: dict[str, object]) -> dict[str, tuple[str, int]]:
    """The text of the needs of each site, and the number of its shares."""
    sites: dict[str, list[str]] = {}
    for share in placed_shares(graph, read_placement(graph, written)):
        sites.setdefault(share.site, []).append(str(share.needs))
    return {site: (needs[0], len(needs)) for site, needs in sites.items()}


def test_a_place_may_say_what_a_node_needs(graph: Graph) -> None:
    written = {"place": "gpu-*", "cores": 2, "memory": "1.5GB", "gpus": 1, "spread": True}
    [place] = read_placement(graph, {"sink": written}).values()
    assert place == Place("gpu-*", Needs(2, 1_500_000_000, 1), spread=True)
    assert str(place.needs) == "1 GPU, 2 cores, 1.5 GB"
    assert place.asks
    assert not Place("gpu-*").asks


def test_needs_without_a_place_mean_any_host(graph: Graph) -> None:
    placement = read_placement(graph, {"sink": {"gpus": 1}})
    assert host_places(graph, placement) == ["any"]
    assert nodes_on_hosts(graph, placement) == {"sink"}
    here = without_hosts(placement)
    assert host_places(graph, here) == []
    assert here["sink", 0] == Place("process", Needs(gpus=1))


def test_the_needs_of_nodes_that_share_a_site_add_up() -> None:
    graph = replicated(2)
    needs = {"place": "process", "cores": 2}
    assert shared(graph, {"source": needs, "world": needs})["process:source"] == ("4 cores", 2)
    assert shared(graph, {"source": needs})["process:source"] == ("2 cores", 2)  # world goes along


def test_replicas_may_have_places_of_their_own() -> None:
    graph = replicated()
    written = {"source[0-1]": "cpu-*", "source[3]": {"place": "gpu-1", "gpus": 1}}
    found = shared(graph, written)
    assert found["cpu-*:source"] == ("", 2)
    assert found["gpu-1:source"] == ("1 GPU", 1)
    assert found["main"][1] == 2  # replica 0 of the other nodes, and replica 2
    sites = shares_by_site(graph, read_placement(graph, written))
    assert [share.instances for share in sites["gpu-1:source"]] == [(("world", 3), ("source", 3))]


def test_some_replicas_are_exceptions_from_the_place_of_a_node() -> None:
    graph = replicated()
    assert shared(graph, {"source[3]": "gpu-1", "source": "cpu-*"}).keys() >= {
        "cpu-*:source",
        "gpu-1:source",
    }


def test_replicas_are_named_in_part_graphs(graph: Graph) -> None:
    for name in ("mixer", "sink"):
        graph.nodes[f"part/{name}"] = graph.nodes.pop(name)
    graph.edges.clear()
    assert words(read_placement(graph, {"part[0]": "thread"})) == {
        ("part/mixer", 0): "thread",
        ("part/sink", 0): "thread",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sink: {cores: two}",
            "1:15: 'sink': cores is 'two'; expected a whole number of 0 or more",
        ),
        ("sink: {cores: -1}", "1:15: 'sink': cores is -1; expected a whole number of 0 or more"),
        ("sink: {gpus: true}", "1:14: 'sink': gpus is True; expected a whole number of 0 or more"),
        ("sink: {core: 2}", "1:14: 'sink': unknown key 'core'; did you mean 'cores'?"),
        ("sink: {memory: 8}", "1:16: 'sink': memory is 8; expected a size such as 8GB"),
        ("sink: {spread: 1}", "1:16: 'sink': spread is 1; expected true or false"),
        ("sink: {place: a b}", "1:15: 'sink': place is 'a b'; expected thread, process or a host"),
        (
            "sink: {place: thread, gpus: 1}",
            "1:29: 'sink': gpus asks for GPUs in a thread ('thread'); "
            "threads share the GPUs of their process; write `place: process`",
        ),
        (
            "sink: {place: process, spread: true}",
            "1:32: 'sink': spread asks for a host for each replica; 'process' is on the machine of the run; "
            "name hosts in `place`, or leave `spread` out",
        ),
        ("sink[2-1]: thread", "1:1: 'sink[2-1]' names no replica; write sink[1-2]"),
        (
            "sink[x]: thread",
            "1:1: 'sink[x]' does not name replicas; write sink[0-3] or sink[0]",
        ),
    ],
)
def test_wrong_needs_in_a_file_are_reported_with_their_location(
    refusal: Callable[[str], str], text: str, message: str
) -> None:
    assert refusal(text) == f"there.yaml:{message}"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            {"source[0-9]": "thread"},
            "placement: 'source[0-9]' names replica 9, and source has 4 replicas, 0 to 3; "
            "name only these, or set source.replicas=10",
        ),
        (
            {"sink[1]": "thread"},
            "placement: 'sink[1]' names replica 1, and sink has one replica, 0; "
            "name only these, or set sink.replicas=2",
        ),
        (
            {"source[0-2]": "thread", "source[2]": "process"},
            "placement: 'source[0-2]' and 'source[2]' both place replica 2; place each once",
        ),
    ],
)
def test_replicas_that_are_missing_or_placed_twice_are_refused(
    written: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        read_placement(replicated(), written)
    assert str(error.value) == message


def test_needs_are_not_written_on_the_command_line(graph: Graph) -> None:
    with pytest.raises(UsageError, match=r"write them in the graph .* 'sink: \{gpus: 1\}'"):
        resolve_placement(graph, "sink={gpus: 1}")
