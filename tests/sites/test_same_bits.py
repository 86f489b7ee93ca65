"""The same graph and seed give the same bits, files and counts, wherever its nodes live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.channels import ChannelLimits
from flowrl.runtime.remote.edge_factory import SiteEdgeFactory
from tests.sites.comparing import ran, same_everywhere
from tests.toys.running import tree

BASIC = tree({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
JUDGED = tree(
    {"c": "Source", "l": "Learner", "e": "Judge"},
    ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}],
)


def learning(nodes: dict[str, Any], edges: list[Any], **more: Any) -> dict[str, Any]:
    """A graph that ends in a learner `l` and judge `e`, of which others are variations."""
    whole = {"c": "Source", "l": "Learner", "e": {"type": "Judge"}, **nodes}
    return tree(whole, [*edges, {"l.weights -> e": {"every": 3}}], **more)


RATES = learning(
    {"c": {"type": "Source", "give": 3}, "g": {"type": "Gear", "take": 2, "give": 5}},
    ["c -> g -> l"],
)
FEEDBACK = learning(
    {"b": {"type": "Buffer", "updates": 4}},
    ["c -> b -> l", "l.priorities -> b.priorities", {"l.weights -> c.weights": {"lag": 1}}],
)
TWO_JUDGES = tree(
    {"c": {"type": "Source", "give": 4}, "l": "Learner", "e": "Judge", "f": "Judge"},
    ["c -> l", {"l.weights -> e": {"every": 2}}, {"l.weights -> f": {"every": 3}}],
)
NESTED = tree(
    {"c": {"type": "Source", "give": 2}, "l": "Learner", "e": "Judge", "d": "Drain", "m": "Mirror",
     "f": "Judge"},
    ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> d", {"l.weights -> m": {"every": 1}},
     {"m.mine -> f": {"every": 2}}],
)  # fmt: skip
FAN_IN = learning({"c": {"type": "Source", "replicas": 3}, "r": "Relay"}, ["c -> r -> l"])
DEALT = learning({"r": {"type": "Relay", "replicas": 3}}, ["c -> r -> l"])
PAIRS = learning(
    {"c": {"type": "Source", "replicas": 3}, "r": {"type": "Relay", "replicas": 3}},
    ["c -> r -> l", {"l.weights -> c.weights": {"lag": 2}}],
)
JOINED = learning(
    {"d": "Source", "j": "Join"}, ["c -> j.left", "d -> j.right", "j -> l"]
)  # fmt: skip
LINKED = tree(
    {"c": {"type": "Bucket", "replicas": 3}, "w": {"type": "Well", "replicas": 3}, "l": "Learner"},
    ["c <-> w", "c -> l"],
)
COMPONENTS = learning({"x": "Source", "y": "Drain", "z": "Dice"}, ["c -> l", "x -> y, z"])
TWO_LEARNERS = tree(
    {"c": "Source", "k": "Learner", "l": "Learner", "f": "Follower", "e": "Judge"},
    ["c -> k, l, f", {"k.weights -> f.weights": {"lag": 1}}, {"l.weights -> e": {"every": 2}}],
)
WARM = learning(
    {"b": {"type": "Buffer", "updates": 2}},
    ["c -> b -> l", "l.weights -> c.weights"],
    warmup=[
        {"edges": ["c -> b"], "steps": 45, "set": {"c.mode": "random"}},
        {"edges": ["c -> b -> l"], "rounds": 2},
    ],
)
NO_LEARNER = tree({"c": "Source", "r": "Relay", "d": "Dice"}, ["c -> r -> d"])

GRAPHS = {
    "basic": BASIC, "judged": JUDGED, "rates": RATES, "feedback": FEEDBACK,
    "two judges": TWO_JUDGES, "nested": NESTED, "fan-in": FAN_IN, "dealt": DEALT, "pairs": PAIRS,
    "joined": JOINED, "linked": LINKED, "components": COMPONENTS, "two learners": TWO_LEARNERS,
    "warm": WARM, "no learner": NO_LEARNER,
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_does_the_same_in_threads(name: str, tmp_path: Path) -> None:
    same_everywhere(GRAPHS[name], tmp_path, "threads", rounds=9)


@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "no learner"])
@pytest.mark.parametrize("train_iters", [7, 12])
def test_train_iters_cut_at_the_same_place(name: str, train_iters: int, tmp_path: Path) -> None:
    facts = same_everywhere(GRAPHS[name], tmp_path, "threads", train_iters=train_iters)
    assert facts["train_iters"] == train_iters


@pytest.mark.parametrize("name", [n for n in GRAPHS if n != "no learner"])
def test_steps_cut_at_the_same_place(name: str, tmp_path: Path) -> None:
    facts = same_everywhere(GRAPHS[name], tmp_path, "threads", steps=65)
    assert facts["env_steps"] >= 65


# the first learner is paced itself, by the second
PACED = tree(
    {"c": {"type": "Source", "give": 2}, "l": "Learner", "e": "Judge", "a": "tests.sites.site_nodes:Student"},
    ["c -> l", {"l.weights -> e": {"every": 3}}, "e -> a"],
)  # fmt: skip


@pytest.mark.parametrize("train_iters", [1, 2, 5])
def test_a_paced_learners_iterations_cut_where_they_are_paced(
    train_iters: int, tmp_path: Path
) -> None:
    facts = same_everywhere(PACED, tmp_path, "threads", "e=thread", train_iters=train_iters)
    assert len(facts["logs/l.log"]) == 1 + 3 * train_iters
    assert len(facts["logs/a.log"]) == 1 + train_iters


VARYING = tree(
    {"c": "tests.sites.site_nodes:Varying", "l": "Learner", "e": "Judge"},
    ["c -> l", {"l.weights -> c.weights": {"lag": 1}}, {"l.weights -> e": {"every": 1}}],
    warmup=[{"edges": ["c -> l"], "rounds": 2}],
)


@pytest.mark.parametrize("steps", [1, 7, 30, 61])
def test_steps_that_only_counting_tells_cut_at_the_same_place(steps: int, tmp_path: Path) -> None:
    facts = same_everywhere(VARYING, tmp_path, "threads", "c=thread", steps=steps)
    assert facts["env_steps"] in range(steps, steps + 10)


def with_lag(lag: int) -> dict[str, Any]:
    """Both ways across, with a lag."""
    return tree(
        {"c": "Source", "l": "Learner"}, ["c -> l", {"l.weights -> c.weights": {"lag": lag}}]
    )


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
@pytest.mark.parametrize("placement", ["threads", "c=thread", "l=thread", "c=thread:x,l=thread:x"])
def test_every_lag_sees_the_same_versions(lag: int, placement: str, tmp_path: Path) -> None:
    facts = same_everywhere(with_lag(lag), tmp_path, placement, rounds=12)
    saw = [int(line.split()[-1]) for line in facts["logs/c.log"] if " saw " in line]
    assert saw == [max(r - lag, 0) for r in range(12)]


# verdicts


def mine(name: str) -> str:
    """A type of this folder."""
    return f"tests.sites.site_nodes:{name}"


JUDGES = {
    "an evaluator": tree(
        {"c": "Source", "l": "Learner", "e": {"type": "Judge", "goal": 6}},
        ["c -> l", {"l.weights -> e": {"every": 2}}],
    ),
    "one in the midst of a round": tree(
        {"c": {"type": "Source", "give": 5}, "l": "Learner", "z": "Dice",
         "e": {"type": "Judge", "goal": 7}},
        ["c -> l, z", {"l.weights -> e": {"every": 1}}],
    ),
    "the slower of two": tree(
        {"c": {"type": "Source", "give": 4}, "l": "Learner", "e": {"type": "Judge", "goal": 21},
         "f": {"type": "Judge", "goal": 10}},
        ["c -> l", {"l.weights -> e": {"every": 2}}, {"l.weights -> f": {"every": 5}}],
    ),
    "two at one version": tree(
        {"c": {"type": "Source", "give": 4}, "l": "Learner", "e": {"type": "Judge", "goal": 6},
         "f": {"type": "Judge", "goal": 6}},
        ["c -> l", {"l.weights -> e": {"every": 3}}, {"l.weights -> f": {"every": 2}}],
    ),
    "one after an evaluator": tree(
        {"c": "Source", "l": "Learner", "e": "Judge", "f": {"type": "Judge", "goal": 4}, "m": "Mirror",
         "d": "Drain"},
        ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> d", {"l.weights -> m": {"every": 1}},
         {"m.mine -> f": {"every": 2}}],
    ),
    "the learner": tree(
        {"c": {"type": "Source", "give": 3}, "l": {"type": "Learner", "stops_at": 7}, "e": "Judge", "d": "Drain"},
        ["c -> l", {"l.weights -> e": {"every": 1}}, "e -> d"],
    ),
    "the second learner": tree(
        {"c": {"type": "Source", "give": 3}, "k": "Learner", "l": {"type": "Learner", "stops_at": 7},
         "e": "Judge"},
        ["c -> k, l", {"k.weights -> e": {"every": 2}}],
    ),
    "one in a stream, before the learner": tree(
        {"c": {"type": "Source", "give": 3}, "k": {"type": mine("Critic"), "firing": 7}, "l": "Learner",
         "e": "Judge"},
        ["c -> k -> l", {"l.weights -> e": {"every": 2}}],
    ),
    "one in a stream, after the learner": tree(
        {"c": {"type": "Source", "give": 3}, "l": "Learner", "z": {"type": mine("Critic"), "firing": 4}},
        ["c -> l, z", {"l.weights -> c.weights": {"lag": 1}}],
    ),
    "a replica": tree(
        {"c": {"type": "Source", "give": 2, "replicas": 3},
         "k": {"type": mine("Critic"), "replicas": 3, "firing": 5}, "l": "Learner"},
        ["c -> k -> l"],
    ),
    "the learner's own student": tree(
        {"c": {"type": "Source", "give": 3}, "l": "Learner", "e": "Judge", "s": mine("Student"),
         "z": {"type": mine("Critic"), "firing": 3}},
        ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> s, z"],
    ),
    "the learner and, before it, one that it paces": tree(
        {"c": {"type": "Source", "give": 3}, "l": {"type": "Learner", "stops_at": 6},
         "e": {"type": "Judge", "goal": 5}},
        ["c -> l", {"l.weights -> e": {"every": 3}}],
    ),
    "one in the warm-up": tree(
        {"c": {"type": "Source", "give": 3}, "k": {"type": mine("Critic"), "firing": 4}, "l": "Learner"},
        ["c -> k -> l"], warmup=[{"edges": ["c -> k"], "rounds": 5}],
    ),
    "the learner in the warm-up": tree(
        {"c": {"type": "Source", "give": 3}, "k": "Dice", "l": {"type": "Learner", "stops_at": 5},
         "e": "Judge"},
        ["c -> l, k", {"l.weights -> e": {"every": 2}}],
        warmup=[{"edges": ["c -> l"], "rounds": 5}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("who", JUDGES)
@pytest.mark.parametrize("limits", [{"rounds": 30}, {"train_iters": 6}])
def test_a_verdict_cuts_at_the_same_place(who: str, limits: dict[str, int], tmp_path: Path) -> None:
    facts = same_everywhere(JUDGES[who], tmp_path, "threads", "l=thread", "c=thread", **limits)
    if "rounds" in limits:
        assert facts["status"] == "solved"


def test_a_round_may_hold_more_bytes_than_its_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site x waits for b's token, which b's site gives after all those of a: they are more than x has room for."""
    monkeypatch.setattr(
        SiteEdgeFactory, "_stream_limits", lambda self, edge: ChannelLimits(tokens=99, bytes=200)
    )
    graph = tree(
        {"a": {"type": "Source", "give": 40}, "b": "Source", "c": "Drain", "d": "Drain"},
        ["a -> d", "b -> c"],
    )
    same_everywhere(graph, tmp_path, "a=thread:s,b=thread:s,c=thread:x,d=thread:x", rounds=3)


@pytest.mark.parametrize("goal", [40, 80])
def test_an_evaluation_does_not_hold_up_what_it_evaluates(goal: int, tmp_path: Path) -> None:
    watcher = {"type": mine("Watcher"), "ahead": 50, "goal": goal}
    graph = tree({"c": "Source", "l": mine("Racer"), "e": watcher}, ["c -> l"])
    graph["edges"] += [{"l.weights -> c.weights": {"lag": 1}}, {"l.weights -> e": {"every": 40}}]
    facts = ran(graph, "threads", tmp_path / "a", train_iters=200)
    assert facts["status"] == "solved"
    graph["nodes"]["e"]["ahead"] = 0
    serial = ran(graph, "serial", tmp_path / "b", train_iters=200)
    assert facts["digest"] == serial["digest"]
    assert facts["metrics.jsonl"] == serial["metrics.jsonl"]
