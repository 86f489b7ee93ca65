"""The naive replay buffer: its ring, its batches, and demonstrations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.core.state import Clock, Count
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.origin import ORIGIN_SCHEMA

SCHEMA = {"obs": Column("float32", (2,)), "reward": Column("float32")}


def rows(*values: float) -> Batch:
    """Make rows whose columns all contain the same value."""
    reward = np.array(values, np.float32)
    return Batch({"obs": np.stack([reward, reward], 1), "reward": reward})


def held(ring: Ring) -> list[float]:
    return sorted(ring.take(np.arange(ring.row_count))["reward"].tolist())


def buffer(context: Context | None = None, **params: Any) -> NaiveReplayBuffer:
    if context is None:
        return NaiveReplayBuffer(**params)
    return NaiveReplayBuffer(config=NaiveReplayBuffer.Config(**params), context=context)


@pytest.mark.slow
@given(st.integers(1, 9), st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_a_ring_keeps_the_newest_rows(size: int, amounts: list[int]) -> None:
    ring, pushed = Ring(size), []
    for amount in amounts:
        new = [float(len(pushed) + k) for k in range(amount)]
        ring.push(rows(*new).columns)
        pushed += new
        assert held(ring) == pushed[-size:]


def test_a_ring_is_saved_with_the_place_of_its_next_row() -> None:
    ring, copy = Ring(5), Ring(5)
    ring.push(rows(1, 2, 3, 4, 5, 6, 7).columns)
    copy.load_state_dict(ring.state_dict())
    for one in (ring, copy):
        one.push(rows(8, 9).columns)
    assert held(ring) == held(copy) == [5, 6, 7, 8, 9]
    index = np.arange(5)
    assert np.array_equal(ring.take(index)["obs"], copy.take(index)["obs"])


def test_an_empty_ring_can_be_saved_and_loaded() -> None:
    ring = Ring(3)
    ring.push(rows(1).columns)
    ring.load_state_dict(Ring(3).state_dict())
    assert ring.row_count == 0


def test_a_state_too_large_for_a_ring_is_refused() -> None:
    large = Ring(5)
    large.push(rows(1, 2, 3).columns)
    with pytest.raises(ValueError, match="the state holds 3 rows; this buffer's size is 2"):
        Ring(2).load_state_dict(large.state_dict())


def test_rows_with_other_columns_are_refused() -> None:
    node = buffer()
    node.push(rows(1))
    with pytest.raises(ValueError, match="the rows have the columns obs; the buffer holds obs, re"):
        node.push(rows(1).only(["obs"]))


def test_all_columns_of_a_batch_come_from_the_same_rows() -> None:
    node = buffer(batch_size=50)
    node.push(rows(*range(100)))
    batch = node.sample()
    assert len(batch) == 50
    assert np.array_equal(batch["obs"], np.stack([batch["reward"]] * 2, 1))
    assert set(batch["reward"]) <= set(range(100))


def test_every_row_is_drawn_equally_often() -> None:
    node = buffer(size=10, batch_size=10)
    node.push(rows(*range(14)))
    drawn = np.concatenate([node.sample()["reward"] for _ in range(400)]).astype(int)
    counts = np.bincount(drawn, minlength=14)
    assert counts[:4].sum() == 0
    assert counts[4:].min() > 320
    assert counts.sum() == 4000


def test_without_replacement_no_batch_contains_a_row_twice() -> None:
    node = buffer(batch_size=8, updates_per_push=5, replace=False)
    batches = node.fire(rows(*range(9)), None)
    assert [len(set(batch["reward"])) for batch in batches] == [8] * 5
    assert len({tuple(sorted(batch["reward"])) for batch in batches}) > 1


def test_the_batches_of_a_firing_are_views_of_one_gather() -> None:
    node = buffer(batch_size=4, updates_per_push=3)
    batches = node.fire(rows(*range(9)), None)
    bases = {id(batch["obs"].base) for batch in batches}
    assert len(batches) == 3
    assert len(bases) == 1
    assert not any(batch["obs"].flags.writeable for batch in batches)


def test_later_pushes_do_not_change_earlier_batches() -> None:
    node = buffer(size=8, batch_size=8)
    (batch,) = node.fire(rows(*range(8)), None)
    before = batch["reward"].copy()
    node.fire(rows(*[99] * 8), None)
    assert np.array_equal(batch["reward"], before)


def test_without_a_consumer_rows_are_stored_and_no_random_number_is_drawn() -> None:
    quiet = buffer(Context("buffer", consumed_outputs=frozenset()), batch_size=64)
    assert quiet.fire(rows(1, 2), None) == []
    assert quiet.count == 2
    assert quiet.state_dict()["rng"] == Context("buffer").rng("sample").bit_generator.state


@pytest.mark.parametrize("replace", [True, False])
def test_drawing_more_than_is_held_is_refused(replace: bool) -> None:
    node = buffer(batch_size=3, replace=replace)
    message = "NaiveReplayBuffer: a batch takes 3 rows, but 2 are held; push more first"
    with pytest.raises(ValueError, match=message):
        node.fire(rows(1, 2), None)


def test_drawing_before_the_first_push_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch takes 5 rows, but 0 are held"):
        buffer().sample(5)


def test_clear_removes_the_agents_rows_and_keeps_demonstrations() -> None:
    node = buffer(batch_size=4)
    node.push_demos(rows(-1, -2))
    node.push(rows(1, 2, 3, 4))
    node.clear()
    assert node.count == 0
    node.push(rows(5, 6, 7))
    assert set(node.sample()["reward"]) <= {5, 6, 7, -1, -2}


def with_demos(**params: Any) -> NaiveReplayBuffer:
    context = Context("buffer", inputs={"data": SCHEMA, "demos": SCHEMA})
    return buffer(context, **params)


def test_demonstrations_are_the_last_rows_of_each_batch() -> None:
    node = with_demos(batch_size=8, updates_per_push=3, demo_share=0.25)
    batches = node.fire(rows(*range(1, 21)), rows(-1, -2, -3))
    for batch in batches:
        assert batch["is_demo"].tolist() == [False] * 6 + [True] * 2
        assert ((batch["reward"] < 0) == batch["is_demo"]).all()
        assert np.array_equal(batch["obs"][:, 0], batch["reward"])
    assert len(batches) == 3


def test_demonstrations_are_never_evicted() -> None:
    node = with_demos(size=4, batch_size=4, demo_share=0.5)
    node.fire(rows(1, 2, 3, 4), rows(-1, -2))
    for k in range(10):
        (batch,) = node.fire(rows(k, k, k), rows())
        assert set(batch["reward"][2:]) <= {-1, -2}


def test_later_demonstrations_are_added_to_earlier_ones() -> None:
    node = with_demos(batch_size=40, demo_share=0.5)
    node.push(rows(*range(40)))
    node.push_demos(rows(-1))
    node.push_demos(rows(-2))
    assert set(node.sample()["reward"][20:]) == {-1, -2}


def test_newer_demonstrations_replace_the_oldest_beyond_their_size() -> None:
    node = with_demos(batch_size=40, demo_share=0.5, demo_size=3)
    node.push(rows(*range(40)))
    for k in range(1, 6):
        node.push_demos(rows(-k))
    assert set(node.sample()["reward"][20:]) == {-3, -4, -5}
    node.push_demos(rows(-6, -7, -8, -9))
    assert set(node.sample()["reward"][20:]) == {-7, -8, -9}


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_before_the_agents_first_row_batches_are_demonstrations(kind: type[Any]) -> None:
    schema = {**SCHEMA, **ORIGIN_SCHEMA}
    context = Context("buffer", inputs={"data": schema, "demos": SCHEMA, "priorities": None})
    node = kind(config=kind.Config(batch_size=8, updates_per_push=2), context=context)
    for _ in range(2):
        first, second = node.fire(None, rows(-1, -2), None)
        assert first["is_demo"].all()
        assert set(first["reward"]) | set(second["reward"]) == {-1, -2}
        assert set(first["origin/env"]) == {-1}
        if kind is AdvancedReplayBuffer:
            assert first["weight"].tolist() == [1.0] * 8
            node.update(first["reward"] * 0 + 1)
            node.update(first["reward"] * 0 + 1)
    columns = {n: np.zeros(9, c.dtype) for n, c in ORIGIN_SCHEMA.items()}
    more = node.fire(Batch({**rows(*range(9)).columns, **columns}), rows(), None)
    assert set(more[0]) == set(first)
    assert more[0]["is_demo"].sum() == 2


def test_demonstrations_of_a_live_expert_must_be_bounded() -> None:
    graph = {
        "extends": "cartpole_dqn",
        "nodes": {
            "expert_envs": {"type": "env_manager", "count": 2},
            "expert": {
                "type": "sample_collector",
                "n_sample": 32,
                "policy": "random",
                "counts": False,
            },
        },
        "edges": ["expert <-> expert_envs", "expert -> buffer.demos", "learner -> expert"],
    }
    [problem] = flowrl.load(graph).check().problems
    assert "demonstrations that an expert collects during the run would grow for ever" in str(
        problem
    )
    assert "write `demo_size: 10_000`" in str(problem)
    assert flowrl.load(graph, {"buffer.demo_size": 500}).check().ok


def test_a_batch_has_at_least_one_demonstration_and_may_consist_of_them() -> None:
    few, all_ = with_demos(batch_size=8, demo_share=0.01), with_demos(batch_size=8, demo_share=1.0)
    for node, count in ((few, 1), (all_, 8)):
        (batch,) = node.fire(rows(*range(8)), rows(-1))
        assert batch["is_demo"].sum() == count


def test_a_draw_without_demonstrations_is_refused_if_they_are_expected() -> None:
    message = "buffer: a batch takes 16 demonstrations, but 0 are held; provide at least 1"
    with pytest.raises(ValueError, match=message):
        with_demos().fire(rows(*range(64)), rows())


def test_without_replacement_a_batch_needs_as_many_demonstrations_as_it_contains() -> None:
    node = with_demos(batch_size=8, demo_share=0.5, replace=False)
    with pytest.raises(ValueError, match="but 3 are held; provide at least 4"):
        node.fire(rows(*range(8)), rows(-1, -2, -3))
    (batch,) = node.fire(rows(), rows(-4))
    assert sorted(batch["reward"][4:]) == [-4, -3, -2, -1]


def test_the_column_is_demo_exists_only_with_demonstrations() -> None:
    node = buffer(batch_size=2)
    assert "is_demo" not in node.fire(rows(1, 2), None)[0]


@settings(deadline=None)
@given(st.booleans(), st.booleans())
def test_a_loaded_buffer_draws_the_same_batches(replace: bool, demos: bool) -> None:
    make = with_demos if demos else buffer
    params = {"size": 30, "batch_size": 8, "updates_per_push": 2, "replace": replace}
    node, copy = make(**params), make(**params)
    more = rows(-1, -2, -3) if demos else None
    node.fire(rows(*range(40)), more)
    copy.load_state_dict(node.state_dict())
    for a, b in zip(node.fire(rows(50), None), copy.fire(rows(50), None), strict=True):
        assert np.array_equal(a["obs"], b["obs"])
    assert copy.metrics() == node.metrics()


def test_metrics_report_the_age_of_drawn_rows() -> None:
    context = Context("buffer")
    node = buffer(context, size=4, batch_size=4, log_every_pushes=2)
    context.clock = Clock({"learner": Count(train_iters=3)})
    node.fire(rows(1, 2, 3, 4), None)
    assert context.records == []
    context.clock = Clock({"learner": Count(train_iters=10)})
    node.fire(rows(), None)
    _, metrics = context.records
    assert isinstance(metrics, MetricsRecord)
    assert metrics.values == {
        "held_rows": 4,
        "pushed_rows": 4,
        "sampled_rows": 8,
        "removed_rows": 0,
        "age_iters_mean": 7.0,
        "age_iters_min": 7.0,
        "age_iters_max": 7.0,
    }


def describe(known: dict[str, Any], **params: Any) -> Any:
    config = NaiveReplayBuffer.Config(**params)
    return NaiveReplayBuffer.describe(config, Surroundings(known, {}, frozenset({"batches"})))


def test_describe_states_the_columns_memory_and_needs() -> None:
    facts = describe({"data": SCHEMA}, size=100, batch_size=16)
    assert facts.outs == {"batches": SCHEMA}
    assert facts.rows == {"batches": 16}
    assert facts.needs_rows == {"data": (16, "batch_size")}
    assert facts.memory_bytes == 100 * (12 + 4)


def test_with_demonstrations_describe_needs_their_columns_and_adds_is_demo() -> None:
    facts = describe({"data": SCHEMA, "demos": SCHEMA})
    assert facts.needs == {"demos": SCHEMA}
    assert facts.outs["batches"]["is_demo"] == Column("bool")


def test_a_batch_larger_than_the_buffer_is_unsound() -> None:
    with pytest.raises(
        UnsoundError, match="batches of 65 rows are drawn from 64; increase `size`"
    ) as raised:
        describe({"data": SCHEMA}, size=64, batch_size=65)
    assert raised.value.key == "batch_size"


def test_data_that_is_not_a_table_is_unsound() -> None:
    with pytest.raises(UnsoundError, match="not a table"):
        describe({"data": None})
