"""The clocks of tokens, and the random streams of nodes."""

import pytest

from flowrl.core.state import EMPTY_CLOCK, Clock, Count
from tests.toys.toy_runs import logged_lines, run, toy_graph

CLOCK = {"type": "Drain", "clock": True}


def test_env_steps_travel_through_a_buffer_and_a_learner() -> None:
    graph = toy_graph(
        {"c": "Source", "b": {"type": "Buffer", "updates": 2}, "l": "Learner", "d": CLOCK},
        ["c -> b -> l", "l.priorities -> d"],
    )
    assert run(graph, rounds=2)[1].lines_of("d") == [
        *["(10, 1, 1)", "(10, 1, 2)", "(20, 2, 3)", "(20, 2, 4)"]
    ]


def test_two_paths_from_one_source_count_it_once() -> None:
    graph = toy_graph(
        {"c": "Source", "a": "Relay", "b": "Relay", "j": "Join", "d": CLOCK},
        ["c -> a -> j.left", "c -> b -> j.right", "j -> d"],
    )
    assert run(graph, rounds=2)[1].lines_of("d") == ["(10, 1, 0)", "(20, 2, 0)"]


def test_two_sources_add_up() -> None:
    graph = toy_graph(
        {"a": "Source", "b": {"type": "Source", "steps": 7}, "j": "Join", "d": CLOCK},
        ["a -> j.left", "b -> j.right", "j -> d"],
    )
    assert run(graph, rounds=1)[1].lines_of("d") == ["(17, 2, 0)"]


def test_replicas_add_up_in_a_fan_in() -> None:
    graph = toy_graph({"c": {"type": "Source", "replicas": 3}, "d": CLOCK}, ["c -> d"])
    executor, trace, _ = run(graph, rounds=2)
    assert trace.lines_of("d") == ["(30, 3, 0)", "(60, 6, 0)"]
    assert tuple(executor.counts) == (60, 6, 0)


def test_a_list_of_tokens_has_the_merged_clock() -> None:
    graph = toy_graph(
        {"c": "Source", "g": {"type": "RateChanger", "take": 3}, "d": CLOCK}, ["c -> g -> d"]
    )
    assert run(graph, rounds=1)[1].lines_of("d") == ["(30, 3, 0)"]


def test_the_clock_of_a_collectors_token_includes_the_train_iterations_of_its_weights() -> None:
    graph = toy_graph(
        {"c": "Source", "l": "Learner", "d": CLOCK},
        ["c -> l", "c -> d", {"l.weights -> c.weights": {"lag": 1}}],
    )
    assert run(graph, rounds=4)[1].lines_of("d") == [
        *["(10, 1, 0)", "(20, 2, 0)", "(30, 3, 1)", "(40, 4, 2)"]
    ]


def test_clocks_merge_by_the_larger_count_of_each_node() -> None:
    a = Clock({"x": Count(5, 2, 0), "y": Count(0, 0, 3)})
    b = Clock({"x": Count(4, 2, 0), "z": Count(1, 0, 0)})
    assert a.merge(b).counts == {"x": (5, 2, 0), "y": (0, 0, 3), "z": (1, 0, 0)}
    assert a.merge(EMPTY_CLOCK) is a
    assert EMPTY_CLOCK.merge(a) is a
    assert tuple(EMPTY_CLOCK.total) == (0, 0, 0)


# random streams


def random_lines(
    name: str = "d", seed: int = 0, replicas: int = 1, **beside: str
) -> dict[str, list[str]]:
    nodes = {"c": "Source", name: {"type": "RandomLogger", "replicas": replicas}, **beside}
    edges = [f"c -> {name}", *(f"c -> {other}" for other in beside)]
    trace = run(toy_graph(nodes, edges), seed, rounds=2)[1]
    return {key: trace.lines_of(key) for key in (name, f"{name}#1")}


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert random_lines() == random_lines()


@pytest.mark.parametrize("other", [{"seed": 1}, {"name": "e"}])
def test_another_seed_or_name_gives_other_numbers(other: dict[str, object]) -> None:
    changed = random_lines(**other)  # type: ignore[arg-type]
    assert not set(random_lines()["d"]) & set(next(iter(changed.values())))


def test_each_replica_has_its_own_numbers_and_replica_0_those_of_a_single_node() -> None:
    both = random_lines(replicas=2)
    assert not set(both["d"]) & set(both["d#1"])
    assert both["d"][0] == random_lines()["d"][0]


def test_other_nodes_change_no_numbers() -> None:
    assert random_lines(a="RandomLogger", z="Drain")["d"] == random_lines()["d"]


def test_the_trace_is_repeatable() -> None:
    graph = toy_graph(
        {
            "c": {"type": "Source", "replicas": 2},
            "l": "Learner",
            "d": "RandomLogger",
            "e": "Evaluator",
        },
        ["c -> l", "l.weights -> c.weights", "c -> d", {"l.weights -> e": {"every": 2}}],
    )
    assert logged_lines(graph, seed=3, rounds=5) == logged_lines(graph, seed=3, rounds=5)
    digests = [run(graph, seed, rounds=5)[0].digest() for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]
