"""The serial program: the order of firings, and the tokens of each. The expected traces are written by hand."""

from tests.toys.toy_runs import logged_lines, run, toy_graph


def test_nodes_fire_in_topological_order_and_ties_by_name() -> None:
    graph = toy_graph(
        {"z": "Source", "m": "Relay", "b": "Drain", "a": "Drain"},
        ["z -> m", "m -> b", "z -> a"],
    )
    one_round = ["z: usual", "a: {}", "m: {}", "b: {}"]
    expected = [line.format(k) for k in range(2) for line in one_round]
    assert logged_lines(graph, rounds=2) == expected


def test_a_node_fires_all_its_firings_of_a_round_together() -> None:
    graph = toy_graph(
        {"s": {"type": "Source", "give": 3}, "g": {"type": "RateChanger", "take": 2}, "d": "Drain"},
        ["s -> g -> d"],
    )
    assert logged_lines(graph, rounds=1) == [
        *["s: usual"] * 2,
        *["g: [0 | 1]", "g: [2 | 3]", "g: [4 | 5]"],
        *["d: 1", "d: 5", "d: 9"],
    ]


def test_a_node_may_give_more_tokens_than_it_takes() -> None:
    graph = toy_graph(
        {
            "s": "Source",
            "g": {"type": "RateChanger", "give": 3},
            "h": {"type": "RateChanger", "take": 2},
            "d": "Drain",
        },
        ["s -> g -> h -> d"],
    )
    assert logged_lines(graph, rounds=1) == [
        *["s: usual"] * 2,
        *["g: [0]", "g: [1]"],
        *["h: [0 | 0]", "h: [0 | 1]", "h: [1 | 1]"],
        *["d: 0", "d: 1", "d: 2"],
    ]


def test_parts_that_no_stream_connects_share_the_round() -> None:
    graph = toy_graph(
        {
            "b": {"type": "Source", "give": 2},
            "c": {"type": "RateChanger", "take": 2},
            "x": "Drain",
            "a": "Source",
            "y": {"type": "RateChanger", "take": 3},
            "w": "Drain",
        },
        ["b -> c -> x", "a -> y -> w"],
    )
    assert logged_lines(graph, rounds=1) == [
        *["a: usual"] * 3,
        *["b: usual", "c: [0 | 1]", "x: 1", "y: [0 | 1 | 2]", "w: 3"],
    ]


def test_a_token_for_two_consumers_reaches_both() -> None:
    graph = toy_graph(
        {"s": "Source", "r": "Relay", "j": "Join"}, ["s -> r", "s -> j.left", "r -> j.right"]
    )
    assert logged_lines(graph, rounds=2) == [
        *["s: usual", "r: 0", "j: 0 and 0"],
        *["s: usual", "r: 1", "j: 1 and 1"],
    ]


def test_each_output_has_its_own_consumers() -> None:
    graph = toy_graph(
        {"s": "Source", "p": "Split", "a": "Drain", "b": "Drain"},
        ["s -> p", "p.left -> a", "p.right -> b"],
    )
    assert logged_lines(graph, rounds=1) == ["s: usual", "p: left right", "a: 0", "b: 0"]


def test_an_unconnected_optional_output_is_not_consumed() -> None:
    graph = toy_graph({"s": "Source", "p": "Split", "a": "Drain"}, ["s -> p", "p.left -> a"])
    assert logged_lines(graph, rounds=1) == ["s: usual", "p: left", "a: 0"]


def test_a_feedback_edge_begins_with_one_round_of_initial_tokens() -> None:
    graph = toy_graph(
        {"s": "Source", "b": {"type": "Buffer", "updates": 3}, "l": "Learner"},
        ["s -> b -> l", "l.priorities -> b.priorities"],
    )
    assert logged_lines(graph, rounds=2) == [
        *["s: usual", "b: 0 after [begin | begin | begin]"],
        *["l: 0"] * 3,
        *["s: usual", "b: 1 after [p0 | p0 | p0]"],
        *["l: 1"] * 3,
    ]


def test_a_fan_in_takes_one_token_of_each_replica_in_order_and_joins_their_rows() -> None:
    graph = toy_graph({"s": {"type": "Source", "replicas": 3}, "d": "Drain"}, ["s -> d"])
    assert logged_lines(graph, rounds=2) == [
        *["s: usual", "s#1: usual", "s#2: usual", "d: 0,100,200"],
        *["s: usual", "s#1: usual", "s#2: usual", "d: 1,101,201"],
    ]


def test_several_sources_of_an_input_are_joined_in_the_listed_order() -> None:
    graph = toy_graph(
        {
            "a": "Source",
            "b": {"type": "Source", "replicas": 2},
            "c": {"type": "RateChanger", "take": 2},
            "d": "Drain",
        },
        ["b, a -> c -> d"],
    )
    assert logged_lines(graph, rounds=1)[-2:] == ["c: [0,100,0 | 1,101,1]", "d: 203"]


def test_streams_are_dealt_to_replicas_in_turn() -> None:
    graph = toy_graph({"s": "Source", "d": {"type": "Drain", "replicas": 3}}, ["s -> d"])
    dealt = logged_lines(graph, rounds=2)
    assert dealt == [
        *["s: usual"] * 3,
        *["d: 0", "d#1: 1", "d#2: 2"],
        *["s: usual"] * 3,
        *["d: 3", "d#1: 4", "d#2: 5"],
    ]


def test_lists_are_dealt_token_by_token() -> None:
    graph = toy_graph(
        {
            "s": {"type": "Source", "give": 4},
            "g": {"type": "RateChanger", "take": 2, "replicas": 2},
            "d": "Drain",
        },
        ["s -> g -> d"],
    )
    assert logged_lines(graph, rounds=1) == ["s: usual", "g: [0 | 2]", "g#1: [1 | 3]", "d: 2,4"]


def test_equal_numbers_of_replicas_are_paired() -> None:
    graph = toy_graph(
        {
            "s": {"type": "Source", "replicas": 2},
            "r": {"type": "Relay", "replicas": 2},
            "d": {"type": "Drain", "replicas": 2},
        },
        ["s -> r -> d"],
    )
    assert logged_lines(graph, rounds=1) == [
        *["s: usual", "s#1: usual", "r: 0", "r#1: 100", "d: 0", "d#1: 100"]
    ]


def test_merge_any_takes_tokens_one_by_one_as_they_arrive() -> None:
    graph = toy_graph(
        {"a": {"type": "Source", "replicas": 2}, "b": "Source", "d": "Drain"},
        [{"a, b -> d": {"merge": "any"}}],
    )
    assert logged_lines(graph, rounds=1) == [
        *["a: usual", "a#1: usual", "b: usual"],
        *["d: 0", "d: 100", "d: 0"],
    ]


def test_a_lossy_edge_counts_its_dropped_tokens() -> None:
    graph = toy_graph(
        {"s": {"type": "Source", "give": 5}, "d": "Drain"},
        [{"s -> d": {"when_full": "drop_oldest", "capacity": 2}}],
    )
    executor, trace, _ = run(graph, rounds=2)
    assert trace.lines_of("d") == ["3", "4", "8", "9"]
    assert executor.irregularities.dropped == 6
    assert executor.irregularities.lines() == ["6 tokens were dropped"]


def test_a_lossy_edge_reaches_every_replica() -> None:
    graph = toy_graph(
        {"s": {"type": "Source", "give": 6}, "d": {"type": "Drain", "replicas": 2}},
        [{"s -> d": {"when_full": "drop_oldest", "capacity": 1}}],
    )
    executor, trace, _ = run(graph, rounds=1)
    assert (trace.lines_of("d"), trace.lines_of("d#1")) == (["4"], ["5"])
    assert executor.irregularities.dropped == 4


def test_a_node_behind_a_lossy_edge_fires_when_it_has_enough_tokens() -> None:
    graph = toy_graph(
        {"s": {"type": "Source", "give": 4}, "g": {"type": "RateChanger", "take": 2}, "d": "Drain"},
        [{"s -> g": {"when_full": "drop_oldest", "capacity": 3}}, "g -> d"],
    )
    executor, trace, _ = run(graph, rounds=2)
    # One of two firings starves, a token waits.
    assert trace.lines_of("g") == ["[1 | 2]", "[5 | 6]"]
    assert trace.lines_of("d") == ["3", "11"]
    assert executor.irregularities.dropped == 3


def test_a_decorated_function_is_a_node() -> None:
    graph = toy_graph(
        {"s": "Source", "t": {"type": "double", "times": 3}, "d": "Drain"}, ["s -> t -> d"]
    )
    assert run(graph, rounds=3)[1].lines_of("d") == ["0", "3", "6"]


def test_a_service_is_called_and_not_fired() -> None:
    graph = toy_graph(
        {"w": "CountingService", "b": "ServiceCaller", "d": "Drain"}, ["b <-> w", "b -> d"]
    )
    assert logged_lines(graph, rounds=3) == ["d: 1", "d: 2", "d: 3"]


def test_replicas_of_a_linked_group_call_their_own_service() -> None:
    graph = toy_graph(
        {"w": "CountingService", "b": {"type": "ServiceCaller", "replicas": 2}, "d": "Drain"},
        ["b <-> w", "b -> d"],
    )
    assert logged_lines(graph, rounds=2) == ["d: 1,1", "d: 2,2"]
