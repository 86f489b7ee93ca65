"""Links across sites have the results of links on one site: replies, records, counts and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.core.errors import NodeError, UsageError
from flowrl.core.node import Node
from flowrl.core.ports import Service
from tests.sites.run_comparison import compare_placements, run_graph
from tests.toys.toy_runs import toy_graph

APART = ["f=thread,w=main", "f=main,w=thread", "f=thread:a,w=thread:b,l=thread:b"]


def service_node(name: str, **params: Any) -> dict[str, Any]:
    return {"type": f"tests.runtime.service_nodes:{name}", **params}


def drawing_graph(*edges: str, **nodes: Any) -> dict[str, Any]:
    """Return a graph of a collector `f`, its service `w`, and a learner `l`."""
    graph = {
        "f": service_node("DrawingCollector"),
        "w": service_node("RandomService"),
        "l": "Learner",
        **nodes,
    }
    return toy_graph(graph, [*(edges or ["f <-> w"]), "f -> l"])


def lines(facts: dict[str, Any], key: str) -> list[str]:
    """Return the lines that a node logged, without the numbers of the firings."""
    return [line.partition("] ")[2] for line in facts[f"logs/{key}.log"]]


@pytest.mark.parametrize("placement", APART)
def test_results_are_equal_with_a_service_on_another_site(placement: str, tmp_path: Path) -> None:
    facts = compare_placements(drawing_graph(), tmp_path, placement, rounds=7)
    assert lines(facts, "f")[0].startswith("1 [(1, 2), ()] ")
    assert (facts["env_steps"], facts["episodes"]) == (21, 21)  # the well counts, too


@pytest.mark.slow
def test_results_are_equal_with_a_service_in_another_process(tmp_path: Path) -> None:
    placements = "f=process,w=main", "f=process:a,w=process:b,l=thread"
    compare_placements(drawing_graph(), tmp_path, *placements, train_iters=5)


def test_the_records_of_a_service_belong_to_its_clients_firing(tmp_path: Path) -> None:
    facts = compare_placements(drawing_graph(), tmp_path, "f=thread,w=main", rounds=2)
    logged = ["draw 1 of size 2", "draw 3 of size 4", "draw 4 of size 2", "draw 6 of size 4"]
    assert lines(facts, "w") == logged
    metrics = [line for line in facts["metrics.jsonl"] if '"node": "w"' in line]
    assert len(metrics) == 4
    assert '"firing": 1, ' in metrics[-1]


@pytest.mark.parametrize("calls", ["f <-> w", "f <-> p"])
def test_records_of_a_service_that_is_being_made_are_kept(calls: str, tmp_path: Path) -> None:
    nodes = {
        "w": service_node("RandomService", logs_in_setup=True),
        "p": service_node("ForwardingService"),
    }
    edges = [calls, "p <-> w"] if "p" in calls else [calls]
    if "p" not in calls:
        del nodes["p"]
    facts = compare_placements(drawing_graph(*edges, **nodes), tmp_path, *APART, rounds=1)
    assert lines(facts, "w")[0] == "made"


def test_each_replica_calls_its_own_service(tmp_path: Path) -> None:
    nodes = {
        "f": service_node("DrawingCollector", replicas=3),
        "w": service_node("RandomService", replicas=3),
    }
    placements = "f=thread,w=main", "f=thread:a,w=thread"
    facts = compare_placements(drawing_graph(**nodes), tmp_path, *placements, rounds=4)
    assert lines(facts, "f#1") != lines(facts, "f#2")


@pytest.mark.parametrize(
    "placement",
    ["f=main,p=thread,w=main", "f=thread:a,p=thread:b,w=thread:c", "f=main,p=main,w=thread"],
)
def test_a_service_may_call_another(placement: str, tmp_path: Path) -> None:
    graph = drawing_graph("f <-> p", "p <-> w", p=service_node("ForwardingService"))
    facts = compare_placements(graph, tmp_path, placement, rounds=5)
    assert len(lines(facts, "p")) == 15
    assert lines(facts, "w")[0] == "draw 1 of size 3"


@pytest.mark.parametrize("placement", ["s=thread", "f=thread,g=thread,s=main", "f=thread:a,s=main"])
def test_a_service_without_state_may_have_several_clients(placement: str, tmp_path: Path) -> None:
    graph = toy_graph(
        {
            "f": service_node("DrawingCollector"),
            "g": service_node("DrawingCollector", times=2),
            "s": service_node("StatelessService"),
            "l": "Learner",
        },
        ["f <-> s", "g <-> s", "f -> l", "g -> d"],
    )
    graph["nodes"]["d"] = {"type": "tests.toys.toy_nodes:Drain"}
    compare_placements(graph, tmp_path, placement, rounds=5)


@pytest.mark.parametrize("placement", ["serial", "s=thread,f=main"])
def test_a_service_with_several_clients_cannot_record(placement: str, tmp_path: Path) -> None:
    collector = service_node("DrawingCollector")
    service = service_node("StatelessService", logs=True)
    nodes = {"f": collector, "g": collector, "s": service, "d": "Drain", "e": "Drain"}
    graph = toy_graph(nodes, ["f <-> s", "g <-> s", "f -> d", "g -> e"])
    with pytest.raises(
        NodeError, match=r"node '[fg]', firing 0 .*: a service with several clients"
    ):
        run_graph(graph, placement, tmp_path, rounds=5)


# failures


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", "f=thread,w=main", "f=main,w=process"])
def test_an_error_of_a_service_is_a_failure_of_its_client(placement: str, tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        run_graph(
            drawing_graph(w=service_node("RandomService", fails_at=5)),
            placement,
            tmp_path,
            rounds=9,
        )
    assert str(caught.value) == "node 'f', firing 1 (round 1): ValueError: failed at draw 5"
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("placement", ["serial", *APART])
def test_a_service_that_cannot_be_made_is_named(placement: str, tmp_path: Path) -> None:
    graph = drawing_graph(w={"type": "tests.runtime.service_nodes:UnmakeableService"})
    with pytest.raises(NodeError, match="node 'w', being made: OSError: no resources"):
        run_graph(graph, placement, tmp_path, rounds=9)


@pytest.mark.parametrize("placement", APART)
def test_a_restart_recreates_the_service(placement: str, tmp_path: Path) -> None:
    nodes = {
        "f": service_node("DrawingCollector", on_failure="restart"),
        "w": service_node("RandomService", fails_at=5),
    }
    facts = compare_placements(drawing_graph(**nodes), tmp_path, placement, rounds=5)
    logged = "node 'f', firing 1 (round 1): ValueError: failed at draw 5"
    assert logged in lines(facts, "f")
    assert lines(facts, "w")[2:4] == ["draw 1 of size 2", "draw 3 of size 4"]


def test_a_restart_recreates_a_chain_of_services(tmp_path: Path) -> None:
    nodes = {
        **{
            "f": service_node("DrawingCollector", on_failure="restart"),
            "p": service_node("ForwardingService"),
        },
        "w": service_node("RandomService", fails_at=4),
    }
    graph = drawing_graph("f <-> p", "p <-> w", **nodes)
    placements = "f=main,p=thread,w=main", "f=thread:a,p=thread:b,w=thread:c"
    compare_placements(graph, tmp_path, *placements, rounds=5)


def test_only_the_services_methods_can_be_called(tmp_path: Path) -> None:
    graph = drawing_graph(f=service_node("DrawingCollector", first_call="unlisted"))
    words = "AttributeError: the service 'random' offers draw, unlisted_value, verdict; it has no 'unlisted'"
    with pytest.raises(NodeError, match=words):
        run_graph(graph, "f=thread,w=main", tmp_path, rounds=9)


@pytest.mark.parametrize("placement", ["f=main,w=thread:a,v=thread:b", "f=main,w=main,v=thread"])
def test_results_are_equal_with_several_pending_calls(placement: str, tmp_path: Path) -> None:
    wells = {
        "f": service_node("ManyServicesCollector", at_once=True),
        "w": service_node("RandomService"),
        "v": service_node("RandomService"),
    }
    graph = toy_graph({**wells, "l": "Learner"}, ["w, v <-> f", "f -> l"])
    facts = compare_placements(graph, tmp_path, placement, rounds=4)
    assert lines(facts, "v") == [f"draw {k} of size 2" for k in range(1, 13)]


def test_a_reply_must_be_taken_before_the_next_call(tmp_path: Path) -> None:
    graph = drawing_graph(f=service_node("DrawingCollector", first_call="two at once"))
    words = (
        "service 'random': a call of 'draw' is pending; take its reply before 'verdict' is called"
    )
    with pytest.raises(NodeError, match=words):
        run_graph(graph, "f=thread,w=main", tmp_path, rounds=9)


def test_a_service_cannot_have_a_method_begin() -> None:
    with pytest.raises(TypeError, match="a service cannot have a method 'begin'"):
        Service("random", methods=("draw", "begin"))
    with pytest.raises(TypeError, match=r"Beginning: a service cannot have the attribute 'begin'"):

        class Beginning(Node):
            serve = Service("random", methods=("draw",))

            def draw(self) -> None: ...

            def begin(self) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["f=thread,w=main", "f=process,w=main"])
def test_a_reply_that_cannot_be_sent_is_an_error(placement: str, tmp_path: Path) -> None:
    graph = drawing_graph(f=service_node("DrawingCollector", first_call="unlisted_value"))
    words = r"a call between sites cannot carry a tests.runtime.service_nodes.UnlistedValue; name it in the service's"
    with pytest.raises(NodeError, match=words):
        run_graph(graph, placement, tmp_path, rounds=9)


def test_a_service_that_fires_must_share_its_clients_site(tmp_path: Path) -> None:
    graph = toy_graph(
        {
            "f": service_node("DrawingCollector"),
            "m": service_node("FiringService"),
            "c": "Source",
            "d": "Drain",
        },
        ["f <-> m", "c -> m", "f -> d"],
    )
    with pytest.raises(UsageError, match="f calls m, which also fires; put both on one site"):
        run_graph(graph, "f=thread,m=main", tmp_path, rounds=9)
    compare_placements(graph, tmp_path, "threads", rounds=4)


# cuts


@pytest.mark.parametrize("placement", APART)
def test_a_services_verdict_cuts_at_the_same_position(placement: str, tmp_path: Path) -> None:
    graph = drawing_graph(f=service_node("DrawingCollector", verdict_at=8))
    facts = compare_placements(graph, tmp_path, placement, rounds=30)
    assert (facts["status"], facts["env_steps"]) == ("solved", 9)


@pytest.mark.parametrize("limits", [{"steps": 20}, {"train_iters": 4}, {"rounds": 6}])
def test_limits_cut_at_the_same_position(limits: dict[str, int], tmp_path: Path) -> None:
    graph = drawing_graph("f <-> p", "p <-> w", p=service_node("ForwardingService"))
    compare_placements(graph, tmp_path, "f=thread:a,p=thread:b,w=thread:c", **limits)
