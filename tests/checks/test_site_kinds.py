"""Which sites are elastic, and why others are not."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.checks.check import CheckedGraph, check
from flowrl.checks.site_kinds import elastic_sites, inelastic_reason
from flowrl.graph.loading import load_data
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import SiteLayout, make_layout
from flowrl.render.report import check_json, check_text
from tests.toys.toy_runs import toy_graph

OWN = "tests.sites.site_nodes"
NODES = {"c": {"type": "Source", "replicas": 2}, "b": f"{OWN}:RatioBuffer", "l": "Learner"}
FREE: list[Any] = [
    {"c -> b": {"merge": "any"}},
    *("b -> l", "l.priorities -> b.priorities"),
    {"l.weights -> c.weights": {"latest": True}},
]


def placed(
    nodes: dict[str, Any], edges: list[Any], placement: str = "processes"
) -> tuple[CheckedGraph, SiteLayout]:
    checked = check(load_data(toy_graph(nodes, edges))).require_sound()
    return checked, make_layout(checked.graph, resolve_placement(checked.graph, placement))


@pytest.mark.parametrize(
    "edges",
    [
        FREE,
        [{"c -> l": {"when_full": "drop_oldest"}}, {"l.weights -> c.weights": {"latest": True}}],
        [{"c -> l": {"when_full": "drop_oldest"}}, "l.weights -> c.weights"],  # of a free site
    ],
)
def test_collectors_for_which_nobody_waits_are_elastic(edges: list[Any]) -> None:
    nodes = {name: spec for name, spec in NODES.items() if name != "b" or edges is FREE}
    checked, layout = placed(nodes, edges)
    assert elastic_sites(checked, layout) == {"process:c", "process:c#1"}


def test_threads_are_not_elastic() -> None:
    assert not elastic_sites(*placed(NODES, FREE, "threads"))


def test_sites_on_hosts_are_elastic_if_no_peer_is_on_the_same_host() -> None:
    checked, layout = placed(NODES, FREE, "c=cpu,b=gpu,l=gpu")
    assert elastic_sites(checked, layout) == {"cpu:c", "cpu:c#1"}
    checked, layout = placed(NODES, FREE, "c=cpu,b=cpu,l=gpu")
    assert not elastic_sites(checked, layout)
    why = "c.data -> b.data: both ends are on 'cpu', and the site may be started again on another host"
    assert inelastic_reason(checked, layout, "cpu:c") == why


def test_a_relay_between_lossy_edges_is_elastic() -> None:
    lossy = {"when_full": "drop_oldest"}
    nodes = {"c": "Source", "r": "Relay", "l": "Learner"}
    checked, layout = placed(nodes, [{"c -> r": lossy}, {"r -> l": lossy}], "r=process")
    assert elastic_sites(checked, layout) == {"process:r"}


@pytest.mark.parametrize(
    ("nodes", "edges", "site", "why"),
    [
        ({}, FREE, "process:l", "'l' would lose what it has learned"),
        (
            {},
            FREE,
            "process:b",
            "c.data -> b.data: its sources wait for it; write 'when_full: drop_oldest'",
        ),
        (
            {},
            [{"c -> b": {"merge": "any"}}, "b -> l", "l.priorities -> b.priorities", "l.weights -> c.weights"],
            "process:c",
            "",
        ),
        (
            {"b": None},
            [{"c -> l": {"merge": "any"}}, {"l.weights -> c.weights": {"latest": True}}],
            "process:c",
            "c.data -> l.data: 'l' waits for its tokens",
        ),
        (
            {},
            ["c -> b", *FREE[1:]],
            "process:c#1",
            "c.data -> b.data: 'b' waits for a token of each replica; write 'merge: any'",
        ),
        (
            {"e": "Evaluator"},
            [*FREE, {"l.weights -> e": {"every": 5}}],
            "process:e",
            "'e' fires after certain versions",
        ),
    ],
)  # fmt: skip
def test_the_reason_why_a_site_is_not_elastic(
    nodes: dict[str, Any], edges: list[Any], site: str, why: str
) -> None:
    whole = {name: spec for name, spec in (NODES | nodes).items() if spec is not None}
    assert inelastic_reason(*placed(whole, edges), site) == why


def test_a_reader_of_certain_versions_is_not_elastic() -> None:
    nodes = {**NODES, "d": "Source", "m": "Learner"}
    edges: list[Any] = [*FREE[:-1], "d -> m", "m.weights -> c.weights"]
    checked, layout = placed(nodes, edges)
    why = "m.weights -> c.weights: it reads the version of a certain round; write 'latest: true'"
    assert inelastic_reason(checked, layout, "process:c") == why


def test_check_lists_elastic_sites_and_says_why_others_are_not() -> None:
    checked, layout = placed(NODES, FREE)
    lines = check_text(checked, layout).splitlines()
    more = "(if one is lost, it is started again while the run goes on)"
    at = lines.index(f"  elastic: process:c, process:c#1 {more}")
    assert lines[at + 2] == "  process:l is not elastic: 'l' would lose what it has learned"
    assert check_json(checked, layout)["elastic"] == ["process:c", "process:c#1"]


def test_check_does_not_speak_of_elastic_sites_in_a_deterministic_graph() -> None:
    checked, layout = placed({"c": "Source", "l": "Learner"}, ["c -> l"])
    assert "elastic" not in check_text(checked, layout)
