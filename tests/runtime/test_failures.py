"""Nodes that fail, or give what they did not promise: who is named, and that all are closed."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from flowrl.core.errors import NodeError
from tests.toys.running import Trace, engine_of, run, tree
from tests.toys.toy_nodes import Fails, Well


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    Fails.closed.clear()
    yield
    assert Well.made == []  # whatever happened, every service was closed


def failing(**config: Any) -> dict[str, Any]:
    return tree({"c": "Source", "f": {"type": "Fails", **config}}, ["c -> f"])


def test_a_failure_names_node_firing_round_and_first_cause() -> None:
    with pytest.raises(NodeError) as raised:
        run(failing(firing=2), rounds=9)
    error = raised.value
    assert str(error) == "node 'f', firing 2 (round 2): ZeroDivisionError: no more"
    assert (error.node, error.doing) == ("f", "firing 2 (round 2)")
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.__cause__.__traceback__ is not None


def test_a_failing_replica_is_named() -> None:
    whole = tree(
        {
            "c": "Source",
            "b": {"type": "Bucket", "replicas": 2, "spills": [0]},
            "w": "Well",
            "d": "Drain",
        },
        ["b <-> w", "b -> d"],
    )
    del whole["nodes"]["c"]
    with pytest.raises(NodeError, match=re.escape("node 'b', firing 2 (round 2): RuntimeError")):
        run(whole, rounds=9)


def test_a_failure_in_the_warm_up_says_so() -> None:
    whole = {**failing(firing=1), "warmup": [{"edges": ["c -> f"], "rounds": 2}]}
    with pytest.raises(NodeError, match=re.escape("firing 1 (warm-up 1, round 1): ZeroDivision")):
        run(whole, rounds=1)


def test_a_failure_of_a_paced_node_is_its_own() -> None:
    whole = tree(
        {"c": "Source", "l": "Learner", "e": "Judge", "f": {"type": "Fails", "firing": 1}},
        ["c -> l", {"l.weights -> e": {"every": 2}}, "e -> f"],
    )
    with pytest.raises(NodeError, match=re.escape("node 'f', firing 1 (round 3): ZeroDivision")):
        run(whole, rounds=9)


def test_a_learner_that_cannot_tell_its_weights_is_named_and_not_who_asked() -> None:
    whole = tree({"c": "Source", "l": "Broken"}, ["c -> l", "l.weights -> c.weights"])
    words = re.escape("node 'l', giving its state 'weights': LookupError: weights are lost")
    with pytest.raises(NodeError, match=words):
        run(whole, rounds=1)
    whole = tree(
        {"c": "Source", "l": "Broken", "e": "Judge"}, ["c -> l", {"l.weights -> e": {"every": 1}}]
    )
    with pytest.raises(NodeError, match=words):
        run(whole, rounds=1)


def test_a_node_that_exits_has_failed() -> None:
    with pytest.raises(NodeError, match=r"firing 1 .*SystemExit: 0"):
        run(failing(firing=1, leaving=True), rounds=9)


def test_a_node_that_cannot_take_a_phases_settings_is_named() -> None:
    whole = tree(
        {"c": {"type": "Stubborn"}, "d": "Drain"},
        ["c -> d"],
        warmup=[{"edges": ["c -> d"], "rounds": 1, "set": {"c.mode": "odd"}}],
    )
    words = "node 'c', taking the settings mode: NotImplementedError: Stubborn does not define"
    with pytest.raises(NodeError, match=words):
        run(whole, rounds=1)


def test_a_sink_that_fails_is_not_taken_for_a_node() -> None:
    class Full(Trace):
        def record(self, instance: object, record: object) -> None:
            raise BrokenPipeError("nobody reads")

    executor, _ = engine_of(failing(), rounds=1)
    executor.sink = Full()
    with pytest.raises(BrokenPipeError):
        executor.run()
    executor.close()


# closing


def test_every_node_is_closed_after_a_failure() -> None:
    whole = failing(firing=0)
    with pytest.raises(NodeError):
        run(whole, rounds=1)
    assert Fails.closed == ["f"]


def test_what_was_made_is_closed_when_a_later_node_cannot_be_made() -> None:
    whole = tree(
        {
            **{"w": "Well", "b": "Bucket", "a": {"type": "Fails", "replicas": 2}},
            **{"f": {"type": "Fails", "making": True}},
        },
        ["b <-> w", "b -> a", "b -> f"],
    )
    with pytest.raises(NodeError, match="node 'f', being made: RuntimeError: cannot be made"):
        engine_of(whole)
    assert Fails.closed == ["a", "a#1"]


def test_what_was_made_is_closed_when_an_initial_token_cannot_be_made() -> None:
    whole = tree(
        {"c": "Source", "f": "Fails", "b": "NoBeginning", "l": "Learner"},
        ["c -> f -> b -> l", "l.priorities -> b.priorities"],
    )
    words = "node 'b', making the initial tokens of 'priorities': ZeroDivisionError"
    with pytest.raises(NodeError, match=words):
        engine_of(whole)
    assert Fails.closed == ["f"]


def test_closing_goes_on_when_a_node_cannot_be_closed_and_tells_it() -> None:
    whole = tree(
        {"c": "Source", "f": {"type": "Fails", "closing": True, "replicas": 2}, "g": "Fails"},
        ["c -> f", "c -> g"],
    )
    executor, _ = engine_of(whole)
    executor.close()
    errors = [str(error) for error in executor.instances.close_errors]
    assert errors == [f"node '{key}', closing: OSError: cannot be closed" for key in ("f", "f#1")]
    assert Fails.closed == ["f", "f#1", "g"]


# what a firing gives


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ("too little", "ValueError: output 'out' lacks the column 'x' (float32[3]); it has n"),
        ("too much", "ValueError: output 'out': column 'y' (float64) was not declared"),
        ("dtype", "ValueError: output 'out': column 'x' is float64[3], declared is float32[3]"),
        ("shape", "ValueError: output 'out': column 'x' is float32[4], declared is float32[3]"),
        ("none", "TypeError: output 'out': fire returned nothing; expected a Batch, as declared"),
    ],
)
def test_a_table_that_is_not_as_declared_is_told_at_the_first_token(
    gives: str, message: str
) -> None:
    whole = tree(
        {"c": "Source", "x": {"type": "Liar", "gives": gives}, "d": "Drain"}, ["c -> x -> d"]
    )
    with pytest.raises(NodeError) as raised:
        run(whole, rounds=1)
    assert str(raised.value).startswith(f"node 'x', firing 0 (round 0): {message}")


def test_a_table_that_is_as_declared_passes() -> None:
    whole = tree({"c": "Source", "x": "Liar", "d": "Drain"}, ["c -> x -> d"])
    assert run(whole, rounds=3)[1].of("d") == ["0,1"] * 3


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
def test_outputs_that_are_missing_or_too_few_are_told(gives: str, message: str) -> None:
    whole = tree(
        {"c": "Source", "u": {"type": "Uneven", "gives": gives}, "a": "Drain", "b": "Drain"},
        ["c -> u", "u.one -> a", "u.two -> b"],
    )
    with pytest.raises(NodeError, match=re.escape(message)) as raised:
        run(whole, rounds=1)
    assert raised.value.node == "u"


def test_too_few_tokens_are_told_in_later_firings_too() -> None:
    whole = tree({"c": "Tired", "d": "Drain"}, ["c -> d"])
    words = "node 'c', firing 3 (round 3): ValueError: output 'data': fire returned 1 tokens; its rate is 2"
    with pytest.raises(NodeError, match=re.escape(words)):
        run(whole, rounds=9)


def test_tables_that_cannot_be_joined_name_who_takes_them() -> None:
    whole = tree({"c": {"type": "Fickle", "replicas": 2}, "d": "Drain"}, ["c -> d"])
    words = "node 'd', firing 2 (round 2): ValueError: columns differ: ['m'] and ['n']"
    with pytest.raises(NodeError, match=re.escape(words)):
        run(whole, rounds=9)


# failures that the graph allows


def spilling(spills: list[int], on_failure: str = "restart", **more: Any) -> dict[str, Any]:
    bucket = {"type": "Bucket", "spills": spills, "on_failure": on_failure, **more}
    return tree({"w": "Well", "b": bucket, "d": "Drain"}, ["b <-> w", "b -> d"])


def test_restart_fires_again_with_a_fresh_node_and_a_fresh_service() -> None:
    executor, trace, cut = run(spilling([0]), rounds=5)
    assert trace.of("d") == ["1", "2", "1", "2", "3"]
    told = "node 'b', firing 2 (round 2): RuntimeError: spilt draw 3"
    assert trace.of("b") == [told]  # what the failed firing told itself is forgotten
    assert (executor.irregularities.restarts, executor.irregularities.failures) == (1, [told])
    assert executor.irregularities.lines() == ["1 firings were retried with a fresh node", told]
    assert cut.counts.env_steps == 5  # and so is what it counted


def test_restart_draws_other_numbers_than_those_that_failed() -> None:
    executor, _, _ = run(spilling([0]), rounds=3)
    bucket = executor.instances.by_node["b"][0].ctx
    first = engine_of(spilling([]))[0]
    first.close()
    assert bucket.seed_for("x") != first.instances.by_node["b"][0].ctx.seed_for("x")


def test_restart_gives_the_tokens_back() -> None:
    whole = tree(
        {"c": "Source", "m": {"type": "Moody", "on_failure": "restart"}, "d": "Drain"},
        ["c -> m -> d"],
    )
    executor, trace, _ = run(whole, rounds=3)
    assert trace.of("d") == ["0", "1", "2"]
    assert executor.irregularities.restarts == 1


def test_restart_gives_up_after_some_retries() -> None:
    whole = tree(
        {"c": "Source", "f": {"type": "Fails", "firing": 0, "on_failure": "restart"}}, ["c -> f"]
    )
    executor, trace = engine_of(whole, rounds=9)
    with pytest.raises(NodeError, match=re.escape("node 'f', firing 0 (round 0)")):
        executor.run()
    executor.close()
    assert executor.irregularities.restarts == 3
    assert len(trace.of("f")) == 4
    assert Fails.closed == ["f"] * 4


def test_restart_works_in_every_phase_and_counts_each_failure_once() -> None:
    whole = tree(
        {"c": "Source", "m": {"type": "Moody", "on_failure": "restart"}, "d": "Drain"},
        ["c -> m -> d"],
        warmup=[{"edges": ["c -> m"], "rounds": 1}],
    )
    executor, trace, _ = run(whole, rounds=3)
    assert trace.of("d") == ["1", "2", "3"]
    assert executor.irregularities.restarts == 1


def test_ignore_passes_the_firing_over() -> None:
    whole = tree(
        {"c": "Source", "f": {"type": "Fails", "firing": 1, "on_failure": "ignore"}, "d": "Drain"},
        ["c -> f", "c -> d"],
    )
    executor, trace, cut = run(whole, rounds=3)
    told = "node 'f', firing 1 (round 1): ZeroDivisionError: no more"
    assert (executor.irregularities.ignored, executor.irregularities.failures) == (1, [told])
    assert executor.irregularities.lines() == ["1 firings failed and were ignored", told]
    assert trace.of("f") == [told]
    assert executor.instances.by_node["f"][0].fired == cut.rounds == 3


def test_another_nodes_failure_is_not_passed_over() -> None:
    whole = tree(
        {"c": {"type": "Source", "on_failure": "restart"}, "l": "Broken"},
        ["c -> l", "l.weights -> c.weights"],
    )
    with pytest.raises(NodeError, match="node 'l', giving its state"):
        run(whole, rounds=1)
