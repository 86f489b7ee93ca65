"""Clocks, and the seeds, counts and records of a context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.context import Context, instance_key
from flowrl.core.records import SOURCE_COLUMNS, CheckpointRecord, MetricsRecord, VerdictRecord
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State

# A node's counts never fall, so any two counts of one node are ordered in all three numbers.
counts = st.integers(0, 9).map(lambda fired: Count(10 * fired, fired // 2, fired // 3))
clocks = st.builds(Clock, st.dictionaries(st.sampled_from("abcd"), counts, max_size=4))


def equal(*found: Clock) -> bool:
    return all(dict(clock.counts) == dict(found[0].counts) for clock in found)


# clocks


@given(clocks, clocks, clocks)
def test_merging_clocks_does_not_depend_on_the_order(a: Clock, b: Clock, c: Clock) -> None:
    assert equal(a.merge(b), b.merge(a))
    assert equal(a.merge(b).merge(c), a.merge(b.merge(c)))


@given(clocks, clocks)
def test_merging_a_clock_again_changes_nothing(a: Clock, b: Clock) -> None:
    merged = a.merge(b)
    assert equal(merged, merged.merge(a), merged.merge(b), b.merge(merged))
    assert equal(a, a.merge(a), a.merge(EMPTY_CLOCK), EMPTY_CLOCK.merge(a))


@given(clocks, clocks)
def test_a_merged_clock_has_the_larger_count_of_each_node(a: Clock, b: Clock) -> None:
    merged = a.merge(b).counts
    assert set(merged) == set(a.counts) | set(b.counts)
    for node, count in merged.items():
        given = [clock.counts.get(node, Count()) for clock in (a, b)]
        assert count == Count(*map(max, *given))


@given(clocks)
def test_the_total_is_the_sum_over_nodes(clock: Clock) -> None:
    columns = zip(*clock.counts.values(), strict=True) if clock.counts else [(0,)] * 3
    assert tuple(clock.total) == tuple(sum(column) for column in columns)


def test_the_total_of_an_empty_clock_is_zero() -> None:
    assert EMPTY_CLOCK.total == Count(0, 0, 0)


def test_a_diamond_counts_a_collector_once_and_two_collectors_twice() -> None:
    seen = EMPTY_CLOCK.add("c", env_steps=10)
    left, right = seen.add("left"), seen.add("right", train_iters=1)
    assert left.merge(right).total == Count(10, 0, 1)
    assert seen.merge(EMPTY_CLOCK.add("c#1", env_steps=10)).total == Count(20, 0, 0)


@given(clocks)
def test_adding_changes_one_node_and_not_the_clock_itself(clock: Clock) -> None:
    before = dict(clock.counts)
    after = clock.add("a", env_steps=2, episodes=3, train_iters=4)
    old = before.get("a", Count())
    assert after.counts["a"] == (old[0] + 2, old[1] + 3, old[2] + 4)
    assert {k: v for k, v in after.counts.items() if k != "a"} == {
        k: v for k, v in before.items() if k != "a"
    }
    assert dict(clock.counts) == before


# seeds


def test_every_node_replica_purpose_and_run_has_a_seed_of_its_own() -> None:
    contexts = [
        Context(name, replica, seed, restarts=restarts)
        for name in ("c", "c1", "c/1")
        for replica in (0, 1, 11)
        for seed in (0, 1, 2**63 - 1)
        for restarts in (0, 1)
    ]
    seeds = [ctx.seed_for(purpose) for ctx in contexts for purpose in ("collect", "learn")]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_are_the_same_in_every_process_and_version() -> None:
    """Runs of older versions are repeated by these numbers."""
    assert Context("learner", seed=3).seed_for("learn") == 6066498396107224397
    assert Context("c", 1, 3).seed_for("collect") == 6966895956985926781


def test_the_streams_of_two_purposes_are_independent() -> None:
    ctx = Context("c", seed=5)
    a, b, again = (ctx.rng(purpose).random(1000) for purpose in ("a", "b", "a"))
    assert np.array_equal(a, again)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1


def test_a_seed_does_not_depend_on_earlier_calls() -> None:
    ctx = Context("c")
    first = ctx.seed_for("x")
    ctx.rng("x").random(100)
    assert ctx.seed_for("x") == first


# counts and records


def test_counts_of_a_firing_add_up_and_are_taken_once() -> None:
    ctx = Context("c")
    assert ctx.take_count() is None
    ctx.count(env_steps=3)
    ctx.count(env_steps=4, episodes=1)
    assert ctx.has_pending
    assert ctx.take_count() == Count(7, 1, 0)
    assert ctx.take_count() is None


def test_records_are_kept_in_order() -> None:
    ctx, state = Context("c"), State({})
    ctx.log("a line")
    ctx.metrics({"x": np.float32(0.5), "flag": True})
    ctx.save_checkpoint("best", state, eval_return=1.0)
    ctx.verdict("enough")
    line, metrics, keep, verdict = ctx.records
    assert line == "a line"
    assert metrics == MetricsRecord({"x": 0.5, "flag": 1.0})
    assert {type(value) for value in metrics.values.values()} == {float}
    assert keep == CheckpointRecord("best", {"": state}, {"eval_return": 1.0})
    assert verdict == VerdictRecord("enough")
    assert ctx.has_pending


@pytest.mark.parametrize("name", SOURCE_COLUMNS)
def test_a_metric_cannot_have_the_name_of_a_source_column(name: str) -> None:
    ctx = Context("c")
    with pytest.raises(ValueError, match=f"a metric cannot be named '{name}'"):
        ctx.metrics({"loss": 1.0, name: 2.0})
    assert ctx.records == []


def test_every_output_is_consumed_by_default() -> None:
    assert Context("c").is_consumed("data")
    some = Context("c", consumed_outputs=frozenset({"data"}))
    assert (some.is_consumed("data"), some.is_consumed("priorities")) == (True, False)


def test_the_first_replica_has_the_nodes_own_name() -> None:
    assert (instance_key("c", 0), instance_key("c", 2)) == ("c", "c#2")
    assert Context("c", 2).key == "c#2"


def test_a_class_that_says_that_it_gives_no_verdict_cannot_give_one() -> None:
    with pytest.raises(RuntimeError, match=r"'n' gives a verdict, and its class says `may_end_run"):
        Context("n", may_end_run=False).verdict("enough")
