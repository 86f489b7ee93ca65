"""The queue buffer emits rows in order, each a fixed number of times, and drops none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.batch import Batch, Column
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.nodes.buffers.queue_buffer import QueueBuffer


def rows(*values: int) -> Batch:
    return Batch({"reward": np.array(values, np.int64)})


def values(batch: Batch) -> list[int]:
    return batch["reward"].tolist()


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 6), st.integers(1, 3))
def test_rows_are_emitted_in_the_order_of_their_arrival(
    amounts: list[int], taken: int, uses: int
) -> None:
    node = QueueBuffer(size=1000, batch_size=taken, max_use=uses)
    pushed, emitted = 0, []
    for amount in amounts:
        node.push(rows(*range(pushed, pushed + amount)))
        pushed += amount
        while node.count >= taken:
            batches = [values(node.sample()) for _ in range(uses)]
            assert batches == [batches[0]] * uses
            emitted += batches[0]
    assert emitted == [*range(len(emitted))]
    assert pushed - len(emitted) == node.count < taken


def test_a_firing_takes_a_token_and_emits_batches() -> None:
    node = QueueBuffer(batch_size=2, updates_per_push=4, max_use=2, log_every_pushes=1)
    assert [values(b) for b in node.fire(rows(1, 2, 3, 4))] == [[1, 2], [1, 2], [3, 4], [3, 4]]
    counts = {"held_rows": 0.0, "pushed_rows": 4.0, "sampled_rows": 8.0, "removed_rows": 4.0}
    assert node.ctx.records == [MetricsRecord(counts)]
    node.ctx.consumed_outputs = frozenset()
    assert node.fire(rows(5)) == []
    assert node.count == 1


def test_a_full_queue_refuses_rows_and_drops_nothing() -> None:
    node = QueueBuffer(size=3, batch_size=1)
    node.push(rows(1, 2))
    with pytest.raises(
        ValueError, match="2 rows wait and 2 arrived, which exceeds the size of 3; emit more rows"
    ):
        node.push(rows(3, 4))
    assert [values(node.sample()) for _ in range(2)] == [[1], [2]]


def test_a_batch_larger_than_the_waiting_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch takes 64 rows, but 1 wait; increase the"):
        QueueBuffer().fire(rows(1))


def test_a_loaded_queue_continues_between_two_uses_of_a_batch() -> None:
    node, copy = (QueueBuffer(batch_size=2, max_use=3) for _ in range(2))
    node.push(rows(1, 2, 3, 4, 5))
    node.sample()
    copy.load_state_dict(node.state_dict())
    for one in (node, copy):
        one.push(rows(6))
        assert [values(one.sample()) for _ in range(5)] == [[1, 2], [1, 2], [3, 4], [3, 4], [3, 4]]
    copy.clear()
    assert copy.count == 0


def describe(known: dict[str, Any], **params: Any) -> Any:
    return QueueBuffer.describe(QueueBuffer.Config(**params), Surroundings(known, {}, frozenset()))


def test_describe_states_the_columns_memory_and_needs() -> None:
    schema = {"reward": Column("int64")}
    facts = describe({"data": schema}, size=100, batch_size=16)
    assert facts.outs == {"batches": schema}
    assert (facts.rows, facts.memory_bytes) == ({"batches": 16}, 800)
    with pytest.raises(UnsoundError, match="batches of 64 rows are taken from at most 9"):
        describe({"data": schema}, size=9)


def facts_of(token_rows: int, **params: Any) -> Any:
    inputs = {"data": {"reward": Column("float32")}}
    known = Surroundings(inputs, {}, frozenset(), rows={"data": token_rows})
    return QueueBuffer.describe(QueueBuffer.Config(policy=None, **params), known)


@pytest.mark.parametrize(
    ("arriving", "params", "what"),
    [
        (
            256,
            {"batch_size": 100, "updates_per_push": 2},
            "and 200 leave it .* so it would overflow",
        ),
        (256, {"batch_size": 100, "updates_per_push": 4}, "and 400 leave .* would run out of rows"),
        (
            128,
            {"batch_size": 64, "updates_per_push": 2, "max_use": 2},
            "take `updates_per_push: 4`",
        ),
        (100, {"batch_size": 64}, "take `batch_size: 100` and `updates_per_push: 1`"),
    ],
)
def test_a_queue_that_more_or_fewer_rows_enter_than_leave_is_refused(
    arriving: int, params: dict[str, Any], what: str
) -> None:
    with pytest.raises(UnsoundError, match=what):
        facts_of(arriving, **params)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_the_rows_that_a_queue_needs_at_first_are_just_enough(
    updates: int, uses: int, per_use: int
) -> None:
    size = per_use * uses  # so that a whole number of rows leaves with each token
    arriving = updates * per_use
    facts = facts_of(arriving, batch_size=size, updates_per_push=updates, max_use=uses)
    needed, _ = facts.needs_rows["data"]

    def lasts(first: int) -> bool:
        node = QueueBuffer(batch_size=size, updates_per_push=updates, max_use=uses)
        node.push(rows(*range(first - arriving)) if first > arriving else rows())
        try:
            for _ in range(2 * uses):
                node.fire(rows(*range(min(first, arriving))))
        except ValueError:
            return False
        return True

    assert lasts(needed)
    assert needed == arriving or not lasts(needed - 1)
