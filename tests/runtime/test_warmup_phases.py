"""Warm-up phases: their active edges, their settings, their length, and the rounds after them."""

from tests.toys.toy_runs import run, toy_graph

NODES = {"c": "Source", "b": {"type": "Buffer", "updates": 2}, "l": "Learner"}
EDGES = ["c -> b -> l", "l.weights -> c.weights"]


def test_a_phase_comes_before_round_0_and_then_all_edges_are_active() -> None:
    graph = toy_graph(NODES, EDGES, warmup=[{"edges": ["c -> b"], "rounds": 2}])
    assert run(graph, rounds=1)[1].lines == [
        *["c: usual saw 0", "b: 0 unwanted"] * 1,
        *["c: usual saw 0", "b: 1 unwanted"],
        *["c: usual saw 0", "b: 2", "l: 2", "l: 2"],
    ]


def test_settings_hold_for_their_phase_only() -> None:
    phases = [
        {"edges": ["c -> b"], "rounds": 1, "set": {"c.mode": "random"}},
        {"edges": ["c -> b"], "rounds": 2, "set": {"c.mode": "odd"}},
        {"edges": ["c -> b"], "rounds": 1},
    ]
    graph = toy_graph(NODES, EDGES, warmup=phases)
    modes = [line.split()[0] for line in run(graph, rounds=1)[1].lines_of("c")]
    assert modes == ["random", "odd", "odd", "usual", "usual"]


def test_settings_reach_every_replica() -> None:
    nodes = {**NODES, "c": {"type": "Source", "replicas": 2, "mode": "calm"}}
    phases = [{"edges": ["c -> b"], "rounds": 1, "set": {"c.mode": "random"}}]
    trace = run(toy_graph(nodes, EDGES, warmup=phases), rounds=1)[1]
    assert trace.lines_of("c") == trace.lines_of("c#1") == ["random saw 0", "calm saw 0"]


def test_steps_are_rounded_up_to_whole_rounds_of_all_replicas() -> None:
    nodes = {**NODES, "c": {"type": "Source", "replicas": 2, "steps": 10}}
    executor, trace, _ = run(
        toy_graph(nodes, EDGES, warmup=[{"edges": ["c -> b"], "steps": 41}]), rounds=1
    )
    assert len(trace.lines_of("b")) == 3 + 1  # 20 steps a round: 60, and round 0
    assert executor.counts.env_steps == 80


def test_a_phase_without_steps_has_no_rounds() -> None:
    graph = toy_graph(NODES, EDGES, warmup=[{"edges": ["c -> b"], "steps": 0}])
    assert run(graph, rounds=1)[1].lines_of("b") == ["0"]


def test_a_longer_path_may_be_active() -> None:
    graph = toy_graph(
        {**NODES, "r": "Relay"},
        ["c -> r -> b -> l"],
        warmup=[{"edges": ["c -> r -> b"], "rounds": 1}],
    )
    assert run(graph, rounds=1)[1].lines == [
        *["c: usual", "r: 0", "b: 0 unwanted"],
        *["c: usual", "r: 1", "b: 1", "l: 1", "l: 1"],
    ]


def test_initial_tokens_of_a_feedback_edge_are_taken_in_round_0() -> None:
    graph = toy_graph(
        NODES,
        [*EDGES, "l.priorities -> b.priorities"],
        warmup=[{"edges": ["c -> b"], "rounds": 2}],
    )
    assert run(graph, rounds=2)[1].lines_of("b") == [
        *["0 unwanted", "1 unwanted", "2 after [begin | begin]", "3 after [p2 | p2]"]
    ]


def test_an_evaluator_is_paced_in_the_warm_up_too() -> None:
    graph = toy_graph(
        {"c": "Source", "l": "Learner", "e": "Evaluator", "d": "Drain"},
        ["c -> l", "l.priorities -> d", {"l.weights -> e": {"every": 2}}],
        warmup=[{"edges": ["c -> l"], "rounds": 3}],
    )
    executor, trace, _ = run(graph, rounds=1)
    assert trace.lines_of("e") == ["saw 2", "saw 4"]
    assert executor.rounds == 1


def test_replicas_take_turns_across_phases() -> None:
    graph = toy_graph(
        {"c": "Source", "b": {"type": "Buffer", "replicas": 2}, "d": "Drain"},
        ["c -> b -> d"],
        warmup=[{"edges": ["c -> b"], "rounds": 1}],
    )
    trace = run(graph, rounds=1)[1]
    assert trace.lines_of("b") == ["0 unwanted", "2"]
    assert trace.lines_of("b#1") == ["1 unwanted", "3"]
