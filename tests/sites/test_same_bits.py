"""Graphs of toy nodes have equal results in every placement."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.channels import ChannelLimits
from flowrl.core.node import Node
from flowrl.runtime.remote.edge_factory import SiteEdgeFactory
from tests.quick_selection import exhaustive_except
from tests.runs.test_resume import StopsAt
from tests.sites.run_comparison import compare_placements, run_graph
from tests.sites.site_nodes import ProgressLearner
from tests.toys.toy_runs import toy_graph

BASIC = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
EVALUATED = toy_graph(
    {"c": "Source", "l": "Learner", "e": "Evaluator"},
    ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}],
)


def learning(nodes: dict[str, Any], edges: list[Any], **more: Any) -> dict[str, Any]:
    """Return a graph with a collector `c`, a learner `l` and an evaluator `e`."""
    whole = {"c": "Source", "l": "Learner", "e": {"type": "Evaluator"}, **nodes}
    return toy_graph(whole, [*edges, {"l.weights -> e": {"every": 3}}], **more)


RATES = learning(
    {"c": {"type": "Source", "give": 3}, "g": {"type": "RateChanger", "take": 2, "give": 5}},
    ["c -> g -> l"],
)
FEEDBACK = learning(
    {"b": {"type": "Buffer", "updates": 4}},
    ["c -> b -> l", "l.priorities -> b.priorities", {"l.weights -> c.weights": {"lag": 1}}],
)
TWO_EVALUATORS = toy_graph(
    {"c": {"type": "Source", "give": 4}, "l": "Learner", "e": "Evaluator", "f": "Evaluator"},
    ["c -> l", {"l.weights -> e": {"every": 2}}, {"l.weights -> f": {"every": 3}}],
)
NESTED = toy_graph(
    {"c": {"type": "Source", "give": 2}, "l": "Learner", "e": "Evaluator", "d": "Drain", "m": "StateRelay",
     "f": "Evaluator"},
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
LINKED = toy_graph(
    {
        "c": {"type": "ServiceCaller", "replicas": 3},
        "w": {"type": "CountingService", "replicas": 3},
        "l": "Learner",
    },
    ["c <-> w", "c -> l"],
)
COMPONENTS = learning({"x": "Source", "y": "Drain", "z": "RandomLogger"}, ["c -> l", "x -> y, z"])
TWO_LEARNERS = toy_graph(
    {"c": "Source", "k": "Learner", "l": "Learner", "f": "StateFollower", "e": "Evaluator"},
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
PARTLY_WARM = toy_graph(
    {"a": {"type": "Source", "replicas": 2}, "b": "Source", "r": "Relay", "l": "Learner"},
    ["a, b -> r -> l", "l.weights -> a.weights"],
    warmup=[{"edges": ["b -> r"], "rounds": 2}, {"edges": ["a -> r -> l"], "rounds": 1}],
)
GROUP = learning(
    {
        "w": "Widener",
        "b": {"type": "Buffer", "updates": 2},
        "l": {"type": "GroupLearner", "replicas": 3},
    },
    ["c -> w -> b -> l", "l.priorities -> b.priorities", {"l.weights -> c.weights": {"lag": 1}}],
    warmup=[{"edges": ["c -> w -> b -> l"], "rounds": 2}],
)
SHARDED = learning(
    {"c": {"type": "Source", "replicas": 2}, "b": {"type": "Buffer", "updates": 2, "replicas": 2},
     "l": {"type": "GroupLearner", "replicas": 2}},
    ["c -> b -> l", "l.priorities -> b.priorities", "l.weights -> c.weights"],
)  # fmt: skip
FAN_IN_OF_PARTS = learning(
    {"c": {"type": "Source", "replicas": 3}, "w": {"type": "Widener", "replicas": 3},
     "l": {"type": "GroupLearner", "replicas": 2}},
    ["c -> w -> l"],
)  # fmt: skip
NO_LEARNER = toy_graph({"c": "Source", "r": "Relay", "d": "RandomLogger"}, ["c -> r -> d"])


def site_node(name: str) -> str:
    """Return the path of a class of `site_nodes`."""
    return f"tests.sites.site_nodes:{name}"


def with_results(lag: int, give: int, every: int, **evaluator: Any) -> dict[str, Any]:
    """Return a graph whose learner, and another node, see the evaluations of its versions."""
    return toy_graph(
        {
            "c": {"type": "Source", "give": give},
            "l": site_node("ResultLearner"),
            "z": site_node("ResultReader"),
            "e": {"type": site_node("ResultGiver"), **evaluator},
        },
        [
            "c -> l, z",
            {"l.weights -> e": {"every": every}},
            {"e.found -> l.found": {"lag": lag}},
            {"e.found -> z.found": {"lag": lag}},
        ],
        warmup=[{"edges": ["c -> l"], "rounds": 2}, {"edges": ["c -> z"], "rounds": 1}],
    )


RESULTS = with_results(2, 3, 2)


def with_fractions(*options: dict[str, Any], lag: int = 1) -> dict[str, Any]:
    """Return a graph of fractions whose edges have these options: the stream, the lagged state, the paced state."""
    stream, lagged, paced = options
    nodes = "tests.runtime.number_nodes:Fraction"
    return toy_graph(
        {"c": f"{nodes}s", "l": f"{nodes}Learner", "e": f"{nodes}Reader"},
        [
            {"c -> l": stream},
            {"l.weights -> c": {"lag": lag, **lagged}},
            {"l.weights -> e": {"every": 3, **paced}},
        ],
    )


HALF = {"dtype": "float16"}
ROUNDED = with_fractions({**HALF, "compress": "lz4"}, HALF, HALF)
GRAPHS = {
    "basic": BASIC, "evaluated": EVALUATED, "rates": RATES, "feedback": FEEDBACK,
    "two evaluators": TWO_EVALUATORS, "nested": NESTED, "fan-in": FAN_IN, "dealt": DEALT, "pairs": PAIRS,
    "joined": JOINED, "linked": LINKED, "components": COMPONENTS, "two learners": TWO_LEARNERS,
    "warm": WARM, "partly warm": PARTLY_WARM, "results": RESULTS, "no learner": NO_LEARNER,
    "rounded": ROUNDED,
    "group": GROUP, "sharded group": SHARDED, "fan-in of parts": FAN_IN_OF_PARTS,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_has_equal_results_in_threads(name: str, tmp_path: Path) -> None:
    compare_placements(GRAPHS[name], tmp_path, "threads", rounds=9)


def test_in_a_warm_up_a_fan_in_takes_what_there_is(tmp_path: Path) -> None:
    facts = compare_placements(PARTLY_WARM, tmp_path, "threads", rounds=1)
    tokens = [line.split()[-1] for line in facts["logs/r.log"]]
    assert tokens == ["0", "1", "0,100", "1,101,2"]


LEARNING = [n for n in GRAPHS if n != "no learner"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train_iters", "name"),
    exhaustive_except(list(zip(cycle([7, 12]), LEARNING, strict=False)), [7, 12], LEARNING),
)
def test_a_limit_of_train_iterations_cuts_at_the_same_position(
    name: str, train_iters: int, tmp_path: Path
) -> None:
    facts = compare_placements(GRAPHS[name], tmp_path, "threads", train_iters=train_iters)
    assert facts["train_iters"] == train_iters


def test_a_cut_at_the_end_of_a_warm_up_has_the_weights_of_its_last_firing(tmp_path: Path) -> None:
    """In the rounds that follow, the learner has another place in the order, as `b` fires before it."""
    graph = toy_graph(
        {"a": "Source", "b": "Source", "l": "Learner", "d": "Drain"},
        ["a -> l", "b -> d"],
        warmup=[{"edges": ["a -> l"], "rounds": 5}],
    )
    compare_placements(graph, tmp_path, "threads", train_iters=5)


@pytest.mark.slow
def test_a_cut_after_the_last_firing_of_a_learner_has_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second phase of the warm-up, in which the run is stopped, the learner does not fire.

    No node may give a verdict, so the versions of earlier rounds are not kept.
    """
    monkeypatch.setattr(Node, "may_end_run", False)
    graph = toy_graph(
        {"a": "Source", "l": "Learner", "d": "Drain"},
        ["a -> l, d"],
        warmup=[{"edges": ["a -> l"], "rounds": 5}, {"edges": ["a -> d"], "rounds": 10**6}],
    )
    digests = set()
    for placement in ("serial", "threads"):
        watcher = StopsAt(env_steps=100)
        out = tmp_path / placement
        result = flowrl.load(graph).run(placement=placement, out=out, quiet=True, watcher=watcher)
        assert (result.status, result.train_iters) == ("interrupted", 5)
        digests.add(result.digest)
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_a_limit_of_steps_cuts_at_the_same_position(name: str, tmp_path: Path) -> None:
    facts = compare_placements(GRAPHS[name], tmp_path, "threads", steps=65)
    assert facts["env_steps"] >= 65


# the first learner is paced itself, by the second
PACED = toy_graph(
    {"c": {"type": "Source", "give": 2}, "l": "Learner", "e": "Evaluator",
     "a": "tests.sites.site_nodes:TolerantLearner"},
    ["c -> l", {"l.weights -> e": {"every": 3}}, "e -> a"],
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("train_iters", [1, 2, 5])
def test_the_train_iterations_of_a_paced_learner_cut_at_the_same_position(
    train_iters: int, tmp_path: Path
) -> None:
    facts = compare_placements(PACED, tmp_path, "threads", "e=thread", train_iters=train_iters)
    assert len(facts["logs/l.log"]) == 3 * train_iters
    assert len(facts["logs/a.log"]) == train_iters


VARYING = toy_graph(
    {"c": "tests.sites.site_nodes:VaryingSteps", "l": "Learner", "e": "Evaluator"},
    ["c -> l", {"l.weights -> c.weights": {"lag": 1}}, {"l.weights -> e": {"every": 1}}],
    warmup=[{"edges": ["c -> l"], "rounds": 2}],
)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 7, 30, 61])
def test_steps_that_must_be_counted_cut_at_the_same_position(steps: int, tmp_path: Path) -> None:
    facts = compare_placements(VARYING, tmp_path, "threads", "c=thread", steps=steps)
    assert facts["env_steps"] in range(steps, steps + 10)


def with_lag(lag: int) -> dict[str, Any]:
    """Return a collector and a learner with a lag."""
    return toy_graph(
        {"c": "Source", "l": "Learner"}, ["c -> l", {"l.weights -> c.weights": {"lag": lag}}]
    )


LAGS, APART = [0, 1, 2, 5], ["threads", "c=thread", "l=thread", "c=thread:x,l=thread:x"]


@pytest.mark.parametrize(
    ("lag", "placement"),
    exhaustive_except([(0, "threads"), *zip(LAGS, reversed(APART), strict=True)], LAGS, APART),
)
def test_every_lag_reads_the_same_versions(lag: int, placement: str, tmp_path: Path) -> None:
    facts = compare_placements(with_lag(lag), tmp_path, placement, rounds=12)
    saw = [int(line.split()[-1]) for line in facts["logs/c.log"] if " saw " in line]
    assert saw == [max(r - lag, 0) for r in range(12)]


# states of paced nodes


PACES = [(1, 1), (1, 3), (5, 2), (2, 6)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lag", "pace"),
    exhaustive_except(
        [(0, (1, 3)), (0, (2, 6)), (1, (1, 1)), (1, (5, 2)), (3, (5, 2))], [0, 1, 3], PACES
    ),
)
def test_the_lag_behind_a_paced_node_counts_its_firings(
    lag: int, pace: tuple[int, int], tmp_path: Path
) -> None:
    give, every = pace
    graph = with_results(lag, give, every)
    facts = compare_placements(graph, tmp_path, "threads", "e=thread", rounds=9)
    learning_rounds = [0, 1, *range(3, 12)]  # in round 2, of the warm-up, it does not learn
    learned = {r: learning_rounds.index(r) * give for r in learning_rounds}  # before the round
    expected = [max(learned[r] // every - lag, 0) for r in learning_rounds for _ in range(give)]
    lines = [line.split() for line in facts["logs/l.log"] if " saw " in line]
    assert [(int(words[-2]), int(words[-1])) for words in lines] == [
        (n, n * every) for n in expected
    ]


def test_with_a_lag_a_learner_does_not_wait_for_an_evaluation_that_goes_on(tmp_path: Path) -> None:
    ProgressLearner.at[0] = 0
    graph = with_results(1, 1, 4, ahead=3)
    # Each evaluation ends only when the learner has gone on.
    facts = run_graph(graph, "e=thread", tmp_path / "run", rounds=9)
    assert facts["status"] == "finished"


# verdicts


VERDICTS = {
    "an evaluator": toy_graph(
        {"c": "Source", "l": "Learner", "e": {"type": "Evaluator", "goal": 6}},
        ["c -> l", {"l.weights -> e": {"every": 2}}],
    ),
    "an evaluator within a round": toy_graph(
        {"c": {"type": "Source", "give": 5}, "l": "Learner", "z": "RandomLogger",
         "e": {"type": "Evaluator", "goal": 7}},
        ["c -> l, z", {"l.weights -> e": {"every": 1}}],
    ),
    "the slower of two": toy_graph(
        {"c": {"type": "Source", "give": 4}, "l": "Learner", "e": {"type": "Evaluator", "goal": 21},
         "f": {"type": "Evaluator", "goal": 10}},
        ["c -> l", {"l.weights -> e": {"every": 2}}, {"l.weights -> f": {"every": 5}}],
    ),
    "two at one version": toy_graph(
        {"c": {"type": "Source", "give": 4}, "l": "Learner", "e": {"type": "Evaluator", "goal": 6},
         "f": {"type": "Evaluator", "goal": 6}},
        ["c -> l", {"l.weights -> e": {"every": 3}}, {"l.weights -> f": {"every": 2}}],
    ),
    "one after an evaluator": toy_graph(
        {"c": "Source", "l": "Learner", "e": "Evaluator", "f": {"type": "Evaluator", "goal": 4}, "m": "StateRelay",
         "d": "Drain"},
        ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> d", {"l.weights -> m": {"every": 1}},
         {"m.mine -> f": {"every": 2}}],
    ),
    "the learner": toy_graph(
        {"c": {"type": "Source", "give": 3}, "l": {"type": "Learner", "stops_at": 7}, "e": "Evaluator", "d": "Drain"},
        ["c -> l", {"l.weights -> e": {"every": 1}}, "e -> d"],
    ),
    "the second learner": toy_graph(
        {"c": {"type": "Source", "give": 3}, "k": "Learner", "l": {"type": "Learner", "stops_at": 7},
         "e": "Evaluator"},
        ["c -> k, l", {"k.weights -> e": {"every": 2}}],
    ),
    "one in a stream, before the learner": toy_graph(
        {"c": {"type": "Source", "give": 3}, "k": {"type": site_node("VerdictGiver"), "firing": 7}, "l": "Learner",
         "e": "Evaluator"},
        ["c -> k -> l", {"l.weights -> e": {"every": 2}}],
    ),
    "one in a stream, after the learner": toy_graph(
        {"c": {"type": "Source", "give": 3}, "l": "Learner", "z": {"type": site_node("VerdictGiver"), "firing": 4}},
        ["c -> l, z", {"l.weights -> c.weights": {"lag": 1}}],
    ),
    "a replica": toy_graph(
        {"c": {"type": "Source", "give": 2, "replicas": 3},
         "k": {"type": site_node("VerdictGiver"), "replicas": 3, "firing": 5}, "l": "Learner"},
        ["c -> k -> l"],
    ),
    "the learner's own student": toy_graph(
        {"c": {"type": "Source", "give": 3}, "l": "Learner", "e": "Evaluator", "s": site_node("TolerantLearner"),
         "z": {"type": site_node("VerdictGiver"), "firing": 3}},
        ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> s, z"],
    ),
    "the learner and, before it, one that it paces": toy_graph(
        {"c": {"type": "Source", "give": 3}, "l": {"type": "Learner", "stops_at": 6},
         "e": {"type": "Evaluator", "goal": 5}},
        ["c -> l", {"l.weights -> e": {"every": 3}}],
    ),
    "one in the warm-up": toy_graph(
        {"c": {"type": "Source", "give": 3}, "k": {"type": site_node("VerdictGiver"), "firing": 4}, "l": "Learner"},
        ["c -> k -> l"], warmup=[{"edges": ["c -> k"], "rounds": 5}],
    ),
    "the learner in the warm-up": toy_graph(
        {"c": {"type": "Source", "give": 3}, "k": "RandomLogger", "l": {"type": "Learner", "stops_at": 5},
         "e": "Evaluator"},
        ["c -> l, k", {"l.weights -> e": {"every": 2}}],
        warmup=[{"edges": ["c -> l"], "rounds": 5}],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("source", VERDICTS)
def test_a_verdict_cuts_at_the_same_position(source: str, tmp_path: Path) -> None:
    facts = compare_placements(
        VERDICTS[source], tmp_path, "threads", "l=thread", "c=thread", rounds=30
    )
    assert facts["status"] == "solved"


LIMITED_TOO = ("the slower of two", "the learner's own student", "a replica")


@pytest.mark.slow
@pytest.mark.parametrize("source", exhaustive_except([(s,) for s in LIMITED_TOO], VERDICTS))
def test_the_earlier_of_a_verdict_and_a_limit_cuts(source: str, tmp_path: Path) -> None:
    compare_placements(VERDICTS[source], tmp_path, "threads", "l=thread", "c=thread", train_iters=6)


def test_a_round_may_have_more_bytes_than_its_channels_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site x waits for b's token, which b's site sends after the tokens of a, for which x has too little room."""
    monkeypatch.setattr(
        SiteEdgeFactory, "_stream_limits", lambda self, edge: ChannelLimits(tokens=99, bytes=200)
    )
    graph = toy_graph(
        {"a": {"type": "Source", "give": 40}, "b": "Source", "c": "Drain", "d": "Drain"},
        ["a -> d", "b -> c"],
    )
    compare_placements(graph, tmp_path, "a=thread:s,b=thread:s,c=thread:x,d=thread:x", rounds=3)


@pytest.mark.parametrize("goal", [40, 80])
def test_an_evaluation_does_not_block_its_learner(goal: int, tmp_path: Path) -> None:
    watcher = {"type": site_node("WaitingEvaluator"), "ahead": 50, "goal": goal}
    graph = toy_graph({"c": "Source", "l": site_node("ProgressLearner"), "e": watcher}, ["c -> l"])
    graph["edges"] += [{"l.weights -> c.weights": {"lag": 1}}, {"l.weights -> e": {"every": 40}}]
    facts = run_graph(graph, "threads", tmp_path / "a", train_iters=200)
    assert facts["status"] == "solved"
    graph["nodes"]["e"]["ahead"] = 0
    serial = run_graph(graph, "serial", tmp_path / "b", train_iters=200)
    assert facts["digest"] == serial["digest"]
    assert facts["metrics.jsonl"] == serial["metrics.jsonl"]
