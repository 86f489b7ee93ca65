"""State edges: the version that each firing reads, and the versions that are copied."""

import pytest

from tests.toys.toy_nodes import Learner
from tests.toys.toy_runs import make_executor, run, toy_graph

LOOP = {"c": "Source", "l": "Learner"}


def loop(lag: int, **more: object) -> dict[str, object]:
    """A collector and a learner, one firing of each in a round."""
    return toy_graph(LOOP, ["c -> l", {"l.weights -> c.weights": {"lag": lag}}], **more)


@pytest.mark.parametrize(
    ("lag", "seen"),
    [(0, [0, 1, 2, 3, 4]), (1, [0, 0, 1, 2, 3]), (2, [0, 0, 0, 1, 2]), (4, [0, 0, 0, 0, 0])],
)
def test_round_r_sees_the_version_at_the_end_of_round_r_minus_1_minus_lag(
    lag: int, seen: list[int]
) -> None:
    assert run(loop(lag), rounds=5)[1].lines_of("c") == [f"usual saw {v}" for v in seen]


def test_all_firings_of_a_round_see_the_same_version() -> None:
    graph = toy_graph(
        {"c": "Source", "g": {"type": "RateChanger", "take": 2, "give": 3}, "l": "Learner"},
        ["c -> g -> l", "l.weights -> c.weights"],
    )
    seen = [f"usual saw {v}" for v in (0, 0, 3, 3, 6, 6)]
    assert run(graph, rounds=3)[1].lines_of("c") == seen


def test_a_node_after_the_learner_reads_the_version_of_the_last_round() -> None:
    graph = toy_graph(
        {"c": "Source", "l": "Learner", "z": "StateFollower"},
        ["c -> l", "c -> z.data", "l.weights -> z.weights"],
    )
    logged = [line.partition(" (")[0] for line in run(graph, rounds=3)[1].lines_of("z")]
    assert logged == ["0 saw 0", "1 saw 1", "2 saw 2"]


def test_two_consumers_may_have_different_lags() -> None:
    graph = toy_graph(
        {**LOOP, "z": "StateFollower"},
        [
            *["c -> l", "c -> z.data"],
            *[{"l.weights -> c.weights": {"lag": 2}}, {"l.weights -> z.weights": {"lag": 1}}],
        ],
    )
    trace = run(graph, rounds=5)[1]
    assert trace.lines_of("c") == [f"usual saw {v}" for v in (0, 0, 0, 1, 2)]
    assert [line.split()[2] for line in trace.lines_of("z")] == ["0", "0", "1", "2", "3"]


def test_warm_up_rounds_without_the_learner_end_with_version_0() -> None:
    graph = toy_graph(
        {"c": "Source", "b": "Buffer", "l": "Learner"},
        ["c -> b -> l", {"l.weights -> c.weights": {"lag": 1}}],
        warmup=[{"edges": ["c -> b"], "rounds": 3}],
    )
    seen = [f"usual saw {v}" for v in (0, 0, 0, 0, 0, 1, 2)]
    assert run(graph, rounds=4)[1].lines_of("c") == seen


def test_warm_up_rounds_with_the_learner_count_as_rounds() -> None:
    phase = [{"edges": ["c -> l"], "rounds": 2}]
    logged = run(loop(1, warmup=phase), rounds=3)[1].lines_of("c")
    assert logged == [f"usual saw {v}" for v in (0, 0, 1, 2, 3)]


def test_a_paced_node_fires_right_after_each_nth_version_and_reads_it() -> None:
    graph = toy_graph(
        {"c": {"type": "Source", "give": 3}, "l": "Learner", "e": "Evaluator", "d": "Drain"},
        ["c -> l", "l.priorities -> d", {"l.weights -> e": {"every": 2}}],
    )
    assert run(graph, rounds=2)[1].lines == [
        *["c: usual", "l: 0", "l: 1", "e: saw 2", "l: 2"],
        *["d: p0", "d: p1", "d: p2"],
        *["c: usual", "l: 3", "e: saw 4", "l: 4", "l: 5", "e: saw 6"],
        *["d: p3", "d: p4", "d: p5"],
    ]


def test_two_paces_fire_in_the_order_of_their_names() -> None:
    graph = toy_graph(
        {**LOOP, "f": "Evaluator", "e": "Evaluator"},
        ["c -> l", {"l.weights -> f": {"every": 2}}, {"l.weights -> e": {"every": 1}}],
    )
    trace = run(graph, rounds=2)[1]
    assert [line for line in trace.lines if line[0] in "ef"] == ["e: saw 1", "e: saw 2", "f: saw 2"]


def test_consumers_of_a_paced_node_fire_right_after_it() -> None:
    graph = toy_graph(
        {**LOOP, "e": "Evaluator", "d": "Drain"},
        ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> d"],
    )
    assert run(graph, rounds=3)[1].lines == [
        *["c: usual", "l: 0", "c: usual", "l: 1", "e: saw 2", "d: 2", "c: usual", "l: 2"]
    ]


def test_latest_reads_the_newest_version_in_each_firing() -> None:
    graph = toy_graph(
        {"c": {"type": "Source", "give": 2}, "l": "Learner", "z": "StateFollower"},
        ["c -> l", "c -> z.data", {"l.weights -> z.weights": {"latest": True}}],
    )
    logged = run(graph, rounds=2)[1].lines_of("z")
    assert [line.split()[2] for line in logged] == ["2", "2", "4", "4"]


def test_a_version_does_not_change_before_it_is_read() -> None:
    graph = toy_graph(
        {**LOOP, "z": "StateFollower"},
        ["c -> l", "c -> z.data", {"l.weights -> z.weights": {"lag": 1}}],
    )
    logged = run(graph, rounds=5)[1].lines_of("z")
    sums = [0.0, 0.0, 0.0, 1.0, 2.5]  # of versions 0, 0, 1, 2, 3
    assert [line.partition("(")[2] for line in logged] == [f"{s:g})" for s in sums]


def test_a_learner_cannot_write_to_weights_that_it_returned() -> None:
    graph = toy_graph(
        {"c": "Source", "l": "SharedStateLearner"}, ["c -> l", "l.weights -> c.weights"]
    )
    with pytest.raises(Exception, match=r"node 'l', firing 0 .*read-only"):
        run(graph, rounds=1)


def copied(executor: object) -> list[int]:
    learner = executor.instances.by_node["l"][0].node  # type: ignore[attr-defined]
    assert isinstance(learner, Learner)
    return learner.copied


def test_a_version_is_copied_once_for_all_readers() -> None:
    graph = toy_graph(
        {**LOOP, "z": "StateFollower", "e": "Evaluator"},
        [
            *["c -> l", "l.weights -> c.weights", "c -> z.data", "l.weights -> z.weights"],
            {"l.weights -> e": {"every": 1}},
        ],
    )
    assert copied(run(graph, rounds=3)[0]) == [0, 1, 2, 3]


def test_versions_that_are_not_read_are_not_copied() -> None:
    graph = toy_graph(
        {"c": {"type": "Source", "give": 4}, "l": "Learner", "e": "Evaluator"},
        ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 6}}],
    )
    assert copied(run(graph, rounds=3)[0]) == [0, 4, 6, 8, 12]


def test_without_state_edges_nothing_is_copied_until_the_digest() -> None:
    executor, _, _ = run(toy_graph(LOOP, ["c -> l"]), rounds=3)
    assert copied(executor) == []
    executor.digest()
    assert copied(executor) == [3]


def test_only_versions_that_pace_an_evaluator_are_copied_for_it() -> None:
    graph = toy_graph({**LOOP, "e": "Evaluator"}, ["c -> l", {"l.weights -> e": {"every": 3}}])
    assert copied(run(graph, rounds=7)[0]) == [3, 6]


def test_a_state_has_its_version_and_its_clock() -> None:
    executor, _ = make_executor(loop(0), rounds=3)
    executor.run()
    [state] = executor.weights().values()
    assert state.version == 3
    assert tuple(state.clock.total) == (30, 3, 3)
    assert state.command == {"half": 0.5}
    executor.close()


def test_a_paced_node_may_pace_others() -> None:
    graph = toy_graph(
        {**LOOP, "m": "StateRelay", "n": "StateRelay"},
        ["c -> l", {"l.weights -> m": {"every": 2}}, {"m.mine -> n": {"every": 2}}],
    )
    trace = run(graph, rounds=8)[1]
    assert [line for line in trace.lines if line[0] in "mn"] == [
        *["m: saw 2", "m: saw 4", "n: saw 2", "m: saw 6", "m: saw 8", "n: saw 4"]
    ]


def test_the_state_of_a_paced_node_can_be_read_with_a_lag() -> None:
    graph = toy_graph(
        {**LOOP, "m": "StateRelay"},
        ["c -> l", {"l.weights -> m": {"every": 2}}, {"m.mine -> c.weights": {"lag": 1}}],
    )
    # m fires in rounds 1, 3, 5, 7; the lag counts its firings
    seen = [f"usual saw {v}" for v in (0, 0, 0, 0, 1, 1, 2, 2)]
    assert run(graph, rounds=8)[1].lines_of("c") == seen
