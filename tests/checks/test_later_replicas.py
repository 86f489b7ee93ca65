"""Replicas that may come later than the run: how they are written, and where nothing waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.checks.check import CheckedGraph, check
from flowrl.checks.site_kinds import require_later_sites_elastic
from flowrl.core.errors import UsageError
from flowrl.graph.diff import changes
from flowrl.graph.expand import expand
from flowrl.graph.host_offers import HostOffer
from flowrl.graph.loading import load_data, load_text
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import SiteLayout, make_layout
from flowrl.render.report import check_json, check_text
from tests.toys.toy_runs import toy_graph

OWN = "tests.sites.site_nodes"
FREE: list[Any] = [
    {"c -> b": {"merge": "any"}},
    *("b -> l", "l.priorities -> b.priorities"),
    {"l.weights -> c.weights": {"latest": True}},
]


def free_graph(replicas: Any = "2..4", edges: list[Any] | None = None, **more: Any) -> Any:
    nodes = {
        "c": {"type": "Source", "replicas": replicas},
        "b": f"{OWN}:RatioBuffer",
        "l": "Learner",
    }
    return toy_graph(nodes, FREE if edges is None else edges, **more)


def checked(graph: Any) -> CheckedGraph:
    return check(load_data(graph))


def laid_out(graph: Any, placement: str, *hosts: str) -> SiteLayout:
    found = checked(graph).require_sound().graph
    offers = [HostOffer(name) for name in hosts] or None
    return make_layout(found, resolve_placement(found, placement), offers)


def test_the_greatest_number_of_replicas_belongs_to_the_graph() -> None:
    spec = checked(free_graph()).require_sound().graph.nodes["c"]
    assert (spec.replicas, spec.least_replicas, spec.written_replicas) == (4, 2, "2..4")
    assert [spec.may_be_absent(replica) for replica in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    "written", ["4..2", "3..3", "0..2", "2..", "2...4", "2..20000", "x", 0, True]
)
def test_another_range_is_refused(written: Any) -> None:
    [problem] = checked(free_graph(written)).problems
    assert "nodes.c.replicas is" in str(problem)


def test_the_resolved_graph_and_a_comparison_have_the_range() -> None:
    graph = checked(free_graph()).graph
    assert "    replicas: 2..4\n" in expand(graph)
    again = load_text(expand(graph), "again").graph
    assert again.nodes["c"].least_replicas == 2
    [change] = changes(graph, checked(free_graph(4)).graph)
    assert "2..4" in str(change)
    assert not changes(graph, again)


def test_linked_nodes_have_the_range_of_one_of_them() -> None:
    nodes = {
        "c": {"type": "ServiceCaller", "replicas": "1..3"},
        "s": "CountingService",
        "d": "Drain",
    }
    graph = load_data(toy_graph(nodes, ["c <-> s", "c -> d"])).graph
    assert graph.nodes["s"].written_replicas == "1..3"


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        (
            ["c -> b", *FREE[1:]],
            "c.data -> b.data: 'b' waits for a token of each replica; write 'merge: any'",
        ),
        (
            [*FREE[:3], "l.weights -> c.weights"],
            "",
        ),  # the learner is free, so its newest version is read
    ],
)
def test_replicas_for_which_others_wait_cannot_be_absent(edges: list[Any], why: str) -> None:
    problems = [str(problem) for problem in checked(free_graph(edges=edges)).problems]
    assert len(problems) == bool(why)
    for problem in problems:
        assert (
            f"nodes.c: replicas is 2..4, and none can be absent: {why}; write one number" in problem
        )


def test_a_deterministic_graph_refuses_replicas_that_come_later() -> None:
    nodes = {"c": {"type": "Source", "replicas": "2..4"}, "l": "Learner"}
    [problem] = checked(toy_graph(nodes, ["c -> l", "l.weights -> c.weights"])).problems
    assert "none can be absent: c.data -> l.data: 'l' waits for its tokens" in str(problem)


def test_learners_and_evaluators_cannot_be_absent() -> None:
    group = {"s": {"type": "Source", "give": 4}, "l": {"type": "GroupLearner", "replicas": "2..4"}}
    [problem] = checked(toy_graph(group, ["s -> l"])).problems
    assert "the replicas of 'l' fire together" in str(problem)
    nodes = {"s": "Source", "l": "Learner", "e": {"type": "Evaluator", "replicas": "1..2"}}
    [problem] = checked(toy_graph(nodes, ["s -> l", {"l.weights -> e": {"every": 2}}])).problems
    assert "'e' fires after certain versions" in str(problem)


def test_a_warm_up_counts_the_replicas_that_must_be_there() -> None:
    phase = {"edges": ["c -> b"], "steps": 100}
    found = checked(free_graph(warmup=[phase])).require_sound()
    assert [warm.rounds for warm in found.program.warmup] == [5]  # of two replicas with ten steps


def test_a_warm_up_that_waits_for_each_replica_is_refused() -> None:
    nodes = {"c": {"type": "Source", "replicas": "2..4"}, "w": "Widener", "l": "Learner"}
    edges: list[Any] = ["c -> w", {"w -> l": {"when_full": "drop_oldest"}}]
    [problem] = checked(
        toy_graph(nodes, edges, warmup=[{"edges": ["c -> w"], "rounds": 2}])
    ).problems
    assert "'w' waits for its tokens in the warm-up" in str(problem)


def test_each_further_replica_gets_a_host_without_another_one() -> None:
    layout = laid_out(free_graph(), "c=cpu-*", "cpu-1")
    assert dict(layout.hosts) == {
        **{"cpu-1:c": "cpu-1", "cpu-1:c#1": "cpu-1"},
        **{"cpu-*:c#2": "cpu-*", "cpu-*:c#3": "cpu-*"},
    }
    assert layout.absent == set(layout.later) == {"cpu-*:c#2", "cpu-*:c#3"}
    assert layout.later["cpu-*:c#2"] == {"cpu-1:c", "cpu-1:c#1", "cpu-*:c#3"}
    layout = laid_out(free_graph(), "c=cpu-*", "cpu-1", "cpu-2", "cpu-3", "gpu")
    assert layout.site_of["c", 2] == "cpu-3:c#2"
    assert layout.absent == {"cpu-*:c#3"}
    assert not laid_out(free_graph(), "c=cpu-*", *[f"cpu-{n}" for n in range(5)]).absent


@pytest.mark.parametrize("placement", ["serial", "threads", "processes"])
def test_all_replicas_are_there_on_one_machine(placement: str) -> None:
    layout = laid_out(free_graph(), placement)
    assert not layout.later
    assert len([node for node, _ in layout.site_of if node == "c"]) == 4


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("cpu-*:all", "each one that joins needs a site of its own; write 'cpu-*'"),
        ({"place": "cpu-*", "cores": 2}, "what a host that joins later has is not known"),
    ],
)
def test_a_place_that_cannot_be_kept_is_refused(place: Any, why: str) -> None:
    graph = free_graph(placements={"p": {"c": place}})
    with pytest.raises(UsageError, match=r"c has 2\.\.4 replicas, and") as error:
        laid_out(graph, "p")
    assert why in str(error.value)


def test_a_placement_in_which_others_wait_is_refused() -> None:
    found = checked(free_graph()).require_sound()
    layout = laid_out(free_graph(), "c=cpu-*,b=cpu-*")
    with pytest.raises(UsageError, match=r"may join later than the run, .* both ends are on 'cpu-"):
        require_later_sites_elastic(found, layout)
    require_later_sites_elastic(found, laid_out(free_graph(), "c=cpu-*,b=gpu"))


def test_check_says_which_sites_may_come_later() -> None:
    found, layout = checked(free_graph()), laid_out(free_graph(), "c=cpu-*")
    text = check_text(found, layout)
    assert "c (2..4 replicas)" in text
    assert (
        "  later: cpu-*:c#2, cpu-*:c#3 (the run begins without those for which no host is there)"
        in text
    )
    nodes: Any = check_json(found, layout)["nodes"]
    assert (nodes["c"]["replicas"], nodes["c"]["least_replicas"]) == (4, 2)
    assert "least_replicas" not in nodes["l"]
