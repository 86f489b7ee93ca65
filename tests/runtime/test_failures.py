"""Nodes that fail or return wrong results: the error names the node, and all nodes are closed."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from flowrl.core.errors import NodeError
from tests.toys.toy_nodes import CountingService, FailingNode
from tests.toys.toy_runs import Trace, make_executor, run, toy_graph


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    FailingNode.closed.clear()
    yield
    assert CountingService.open_ids == []  # every service is closed after every test


def failing_graph(**config: Any) -> dict[str, Any]:
    return toy_graph({"c": "Source", "f": {"type": "FailingNode", **config}}, ["c -> f"])


def test_a_failure_names_node_firing_round_and_first_cause() -> None:
    with pytest.raises(NodeError) as raised:
        run(failing_graph(firing=2), rounds=9)
    error = raised.value
    assert str(error) == "node 'f', firing 2 (round 2): ZeroDivisionError: no more"
    assert (error.node, error.doing) == ("f", "firing 2 (round 2)")
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.__cause__.__traceback__ is not None


def test_a_failing_replica_is_named() -> None:
    whole = toy_graph(
        {
            "c": "Source",
            "b": {"type": "ServiceCaller", "replicas": 2, "fails_after": [0]},
            "w": "CountingService",
            "d": "Drain",
        },
        ["b <-> w", "b -> d"],
    )
    del whole["nodes"]["c"]
    with pytest.raises(NodeError, match=re.escape("node 'b', firing 2 (round 2): RuntimeError")):
        run(whole, rounds=9)


def test_a_failure_in_the_warm_up_says_so() -> None:
    whole = {**failing_graph(firing=1), "warmup": [{"edges": ["c -> f"], "rounds": 2}]}
    with pytest.raises(NodeError, match=re.escape("firing 1 (warm-up 1, round 1): ZeroDivision")):
        run(whole, rounds=1)


def test_a_failure_of_a_paced_node_is_its_own() -> None:
    whole = toy_graph(
        {
            "c": "Source",
            "l": "Learner",
            "e": "Evaluator",
            "f": {"type": "FailingNode", "firing": 1},
        },
        ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> f"],
    )
    with pytest.raises(NodeError, match=re.escape("node 'f', firing 1 (round 3): ZeroDivision")):
        run(whole, rounds=9)


def test_a_learner_that_fails_to_return_its_state_is_named_and_not_its_reader() -> None:
    whole = toy_graph(
        {"c": "Source", "l": "LearnerWithoutState"}, ["c -> l", "l.weights -> c.weights"]
    )
    words = re.escape("node 'l', giving its state 'weights': LookupError: weights are lost")
    with pytest.raises(NodeError, match=words):
        run(whole, rounds=1)
    whole = toy_graph(
        {"c": "Source", "l": "LearnerWithoutState", "e": "Evaluator"},
        ["c -> l", {"l.weights -> e": {"every": 1}}],
    )
    with pytest.raises(NodeError, match=words):
        run(whole, rounds=1)


def test_a_node_that_exits_has_failed() -> None:
    with pytest.raises(NodeError, match=r"firing 1 .*SystemExit: 0"):
        run(failing_graph(firing=1, leaving=True), rounds=9)


def test_a_node_that_cannot_be_reconfigured_is_named() -> None:
    whole = toy_graph(
        {"c": {"type": "NotReconfigurable"}, "d": "Drain"},
        ["c -> d"],
        warmup=[{"edges": ["c -> d"], "rounds": 1, "set": {"c.mode": "odd"}}],
    )
    words = (
        "node 'c', taking the settings mode: NotImplementedError: NotReconfigurable does not define"
    )
    with pytest.raises(NodeError, match=words):
        run(whole, rounds=1)


def test_an_error_of_the_record_sink_is_not_reported_as_a_nodes() -> None:
    class Full(Trace):
        def record(self, instance: object, record: object) -> None:
            raise BrokenPipeError("no reader")

    executor, _ = make_executor(failing_graph(), rounds=1)
    executor.sink = Full()
    with pytest.raises(BrokenPipeError):
        executor.run()
    executor.close()


# closing


def test_every_node_is_closed_after_a_failure() -> None:
    whole = failing_graph(firing=0)
    with pytest.raises(NodeError):
        run(whole, rounds=1)
    assert FailingNode.closed == ["f"]


def test_nodes_are_closed_when_a_later_node_cannot_be_made() -> None:
    whole = toy_graph(
        {
            **{
                "w": "CountingService",
                "b": "ServiceCaller",
                "a": {"type": "FailingNode", "replicas": 2},
            },
            **{"f": {"type": "FailingNode", "making": True}},
        },
        ["b <-> w", "b -> a", "b -> f"],
    )
    with pytest.raises(NodeError, match="node 'f', being made: RuntimeError: cannot be made"):
        make_executor(whole)
    assert FailingNode.closed == ["a", "a#1"]


def test_nodes_are_closed_when_an_initial_token_cannot_be_made() -> None:
    whole = toy_graph(
        {"c": "Source", "f": "FailingNode", "b": "BufferWithoutInitialTokens", "l": "Learner"},
        ["c -> f -> b -> l", "l.priorities -> b.priorities"],
    )
    words = "node 'b', making the initial tokens of 'priorities': ZeroDivisionError"
    with pytest.raises(NodeError, match=words):
        make_executor(whole)
    assert FailingNode.closed == ["f"]


def test_all_nodes_are_closed_even_if_one_fails_to_close() -> None:
    whole = toy_graph(
        {
            "c": "Source",
            "f": {"type": "FailingNode", "closing": True, "replicas": 2},
            "g": "FailingNode",
        },
        ["c -> f", "c -> g"],
    )
    executor, _ = make_executor(whole)
    executor.close()
    errors = [str(error) for error in executor.instances.close_errors]
    assert errors == [f"node '{key}', closing: OSError: cannot be closed" for key in ("f", "f#1")]
    assert FailingNode.closed == ["f", "f#1", "g"]


# the result of a firing


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (
            "too little",
            "InvalidResultError: output 'out' lacks the column 'x' (float32[3]); it has n",
        ),
        ("too much", "InvalidResultError: output 'out': column 'y' (float64) was not declared"),
        (
            "dtype",
            "InvalidResultError: output 'out': column 'x' is float64[3], declared is float32[3]",
        ),
        (
            "shape",
            "InvalidResultError: output 'out': column 'x' is float32[4], declared is float32[3]",
        ),
        (
            "none",
            "InvalidResultError: output 'out': fire returned nothing; expected a Batch, as declared",
        ),
    ],
)
def test_a_table_that_differs_from_its_declaration_is_reported_at_the_first_token(
    gives: str, message: str
) -> None:
    whole = toy_graph(
        {"c": "Source", "x": {"type": "WrongColumns", "gives": gives}, "d": "Drain"},
        ["c -> x -> d"],
    )
    with pytest.raises(NodeError) as raised:
        run(whole, rounds=1)
    assert str(raised.value).startswith(f"node 'x', firing 0 (round 0): {message}")


def test_a_table_as_declared_is_accepted() -> None:
    whole = toy_graph({"c": "Source", "x": "WrongColumns", "d": "Drain"}, ["c -> x -> d"])
    assert run(whole, rounds=3)[1].lines_of("d") == ["0,1"] * 3


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (
            "nothing",
            "fire returned nothing; a node with several outputs returns a mapping of them (one, two)",
        ),
        ("missing", "fire did not return the output 'two'; it returned one"),
        ("unknown", "fire returned 'three'; the outputs are one, two"),
        ("too few", "output 'two': fire returned 1 tokens; its rate is 2 per firing"),
        ("no list", "output 'two': fire returned Batch; expected a list of 2 tokens"),
    ],
)
def test_missing_outputs_and_tokens_are_reported(gives: str, message: str) -> None:
    whole = toy_graph(
        {"c": "Source", "u": {"type": "TwoOutputs", "gives": gives}, "a": "Drain", "b": "Drain"},
        ["c -> u", "u.one -> a", "u.two -> b"],
    )
    with pytest.raises(NodeError, match=re.escape(message)) as raised:
        run(whole, rounds=1)
    assert raised.value.node == "u"


def test_too_few_tokens_are_reported_in_later_firings() -> None:
    whole = toy_graph({"c": "TooFewTokens", "d": "Drain"}, ["c -> d"])
    words = "node 'c', firing 3 (round 3): InvalidResultError: output 'data': fire returned 1 tokens; its rate is 2"
    with pytest.raises(NodeError, match=re.escape(words)):
        run(whole, rounds=9)


def test_tables_that_cannot_be_concatenated_are_reported_for_their_consumer() -> None:
    whole = toy_graph({"c": {"type": "ChangingColumns", "replicas": 2}, "d": "Drain"}, ["c -> d"])
    words = "node 'd', firing 2 (round 2): ValueError: columns differ: ['m'] and ['n']"
    with pytest.raises(NodeError, match=re.escape(words)):
        run(whole, rounds=9)


# failures that the graph allows


def failing_calls(restarts: list[int], on_failure: str = "restart", **more: Any) -> dict[str, Any]:
    caller = {"type": "ServiceCaller", "fails_after": restarts, "on_failure": on_failure, **more}
    return toy_graph({"w": "CountingService", "b": caller, "d": "Drain"}, ["b <-> w", "b -> d"])


def test_restart_retries_with_a_new_node_and_a_new_service() -> None:
    executor, trace, cut = run(failing_calls([0]), rounds=5)
    assert trace.lines_of("d") == ["1", "2", "1", "2", "3"]
    message = "node 'b', firing 2 (round 2): RuntimeError: failed in call 3"
    assert trace.lines_of("b") == [message]  # the failed firing's own lines are discarded
    assert (executor.irregularities.restarts, executor.irregularities.failures) == (1, [message])
    assert executor.irregularities.lines() == ["1 firings were retried with a fresh node", message]
    assert cut.counts.env_steps == 5  # and so are its counts


def test_restart_draws_other_random_numbers() -> None:
    executor, _, _ = run(failing_calls([0]), rounds=3)
    context = executor.instances.by_node["b"][0].ctx
    first = make_executor(failing_calls([]))[0]
    first.close()
    assert context.seed_for("x") != first.instances.by_node["b"][0].ctx.seed_for("x")


def test_restart_retries_with_the_same_tokens() -> None:
    whole = toy_graph(
        {"c": "Source", "m": {"type": "FailsOnce", "on_failure": "restart"}, "d": "Drain"},
        ["c -> m -> d"],
    )
    executor, trace, _ = run(whole, rounds=3)
    assert trace.lines_of("d") == ["0", "1", "2"]
    assert executor.irregularities.restarts == 1


def test_restart_gives_up_after_some_retries() -> None:
    whole = toy_graph(
        {"c": "Source", "f": {"type": "FailingNode", "firing": 0, "on_failure": "restart"}},
        ["c -> f"],
    )
    executor, trace = make_executor(whole, rounds=9)
    with pytest.raises(NodeError, match=re.escape("node 'f', firing 0 (round 0)")):
        executor.run()
    executor.close()
    assert executor.irregularities.restarts == 3
    assert len(trace.lines_of("f")) == 4
    assert FailingNode.closed == ["f"] * 4


def test_restart_works_in_every_phase_and_counts_each_failure_once() -> None:
    whole = toy_graph(
        {"c": "Source", "m": {"type": "FailsOnce", "on_failure": "restart"}, "d": "Drain"},
        ["c -> m -> d"],
        warmup=[{"edges": ["c -> m"], "rounds": 1}],
    )
    executor, trace, _ = run(whole, rounds=3)
    assert trace.lines_of("d") == ["1", "2", "3"]
    assert executor.irregularities.restarts == 1


def test_ignore_skips_the_failed_firing() -> None:
    whole = toy_graph(
        {
            "c": "Source",
            "f": {"type": "FailingNode", "firing": 1, "on_failure": "ignore"},
            "d": "Drain",
        },
        ["c -> f", "c -> d"],
    )
    executor, trace, cut = run(whole, rounds=3)
    message = "node 'f', firing 1 (round 1): ZeroDivisionError: no more"
    assert (executor.irregularities.ignored, executor.irregularities.failures) == (1, [message])
    assert executor.irregularities.lines() == ["1 firings failed and were ignored", message]
    assert trace.lines_of("f") == [message]
    assert executor.instances.by_node["f"][0].fired == cut.rounds == 3


def test_the_failure_of_another_node_is_not_handled() -> None:
    whole = toy_graph(
        {"c": {"type": "Source", "on_failure": "restart"}, "l": "LearnerWithoutState"},
        ["c -> l", "l.weights -> c.weights"],
    )
    with pytest.raises(NodeError, match="node 'l', giving its state"):
        run(whole, rounds=1)
