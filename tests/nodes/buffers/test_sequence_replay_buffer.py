"""The sequence replay buffer: bounds of sequences, their contents, and their priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.episodes.sequences import (
    segment_bounds,
    sequence_priorities,
    sequence_windows,
)
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer

SCHEMA = {"obs": Column("float32"), "last": Column("bool"), "memory": Column("float32", (2,))}


def steps(first: int, *lengths: int) -> Batch:
    """Make episodes of these lengths; values increase by 1 from row to row."""
    obs = np.arange(first, first + sum(lengths), dtype=np.float32)
    last = np.zeros(len(obs), bool)
    last[np.cumsum(lengths, dtype=int) - 1] = True
    return Batch({"obs": obs, "last": last, "memory": np.stack([obs, -obs], 1)})


def valid_steps(batch: Batch) -> list[list[int]]:
    return [
        obs[valid].astype(int).tolist()
        for obs, valid in zip(batch["obs"], batch["valid"], strict=True)
    ]


def test_windows_match_an_example() -> None:
    last = np.array([0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0], bool)
    assert [x.tolist() for x in segment_bounds(last)] == [[0, 7, 9], [7, 9, 12]]
    firsts, lengths = sequence_windows(last, steps=3, period=2)
    assert firsts.tolist() == [0, 2, 4, 7, 9]
    assert lengths.tolist() == [3, 3, 3, 2, 3]
    firsts, _ = sequence_windows(last, steps=3, period=3)
    assert firsts.tolist() == [0, 3, 4, 7, 9]  # the last sequence of a segment ends with it
    assert [x.tolist() for x in sequence_windows(np.empty(0, bool), 3, 1)] == [[], []]


@pytest.mark.slow
@given(
    st.lists(st.booleans(), max_size=40).map(lambda x: np.array(x, bool)),
    st.integers(1, 9),
    st.integers(1, 12),
)
def test_windows_cover_every_row_and_cross_no_end_of_an_episode(
    last: np.ndarray, length: int, period: int
) -> None:
    firsts, lengths = sequence_windows(last, length, period)
    covered = np.zeros(len(last), bool)
    for first, count in zip(firsts, lengths, strict=True):
        assert not last[first : first + count - 1].any()
        covered[first : first + count] = True
    assert (np.diff(firsts) > 0).all()
    if period <= length:
        assert covered.all()


def test_the_priority_of_a_sequence_mixes_maximum_and_mean() -> None:
    """0.9 max + 0.1 mean over the valid steps."""
    priorities = np.array([[1.0, 4.0, 1.0], [2.0, 6.0, 99.0]])
    valid = np.array([[True, True, True], [True, True, False]])
    assert sequence_priorities(priorities, valid, 0.9) == pytest.approx([3.8, 5.8])


def test_the_rows_of_a_batch_are_sequences() -> None:
    node = SequenceReplayBuffer(batch_size=40, unroll_steps=4, memory_columns=["memory"])
    node.push(steps(0, 6, 2))
    batch = node.sample()
    assert batch["obs"].shape == batch["valid"].shape == (40, 4)
    assert {tuple(one) for one in valid_steps(batch)} == {(0, 1, 2, 3), (2, 3, 4, 5), (6, 7)}
    assert np.array_equal(batch["memory"], np.stack([batch["obs"][:, 0], -batch["obs"][:, 0]], 1))
    assert batch["last"][:, -1].all()
    short = batch["obs"][:, 0] == 6
    assert batch["obs"][short][0].tolist() == [6, 7, 7, 7]
    assert batch["last"][short][0].tolist() == [False, True, True, True]


def test_by_default_learned_steps_do_not_overlap_and_the_burn_in_does() -> None:
    node = SequenceReplayBuffer(unroll_steps=5, burn_in_steps=2)
    node.push(steps(0, 11))
    assert {one[0] for one in valid_steps(node.sample(50))} == {0, 3, 6}


def buffer_with_priorities(**params: Any) -> SequenceReplayBuffer:
    context = Context("buffer", inputs={"data": SCHEMA, "priorities": {}})
    config = SequenceReplayBuffer.Config(**params)
    return SequenceReplayBuffer(config=config, context=context)


def test_priorities_of_steps_are_combined_to_priorities_of_sequences() -> None:
    node = buffer_with_priorities(
        batch_size=2, unroll_steps=3, burn_in_steps=1, period_steps=3, replace=False
    )
    nothing = [Batch({"priority": np.empty(0, np.float32)})]
    (batch,) = node.fire(steps(0, 3, 2), None, nothing)
    row_of = {int(row[0]): k for k, row in enumerate(batch["obs"])}
    priorities = np.empty((2, 3), np.float32)
    priorities[row_of[0]] = [99, 1, 3]  # the burn-in does not count
    priorities[row_of[3]] = [99, 5, 99]  # nor do invalid steps
    node.fire(steps(10, 1), None, [Batch({"priority": priorities})])
    stored = node.sequences.metadata["priority"]
    assert stored[:2] == pytest.approx([0.9 * 3 + 0.1 * 2, 5.0], abs=1e-4)


def test_priorities_of_sequences_are_used_as_they_are_in_draws() -> None:
    node = SequenceReplayBuffer(batch_size=3, unroll_steps=2, alpha=1.0, replace=False)
    node.push(steps(0, 6))
    first = node.sample()["obs"][:, 0]
    node.update(np.where(first == 2, 1000.0, 0.0))
    assert node.sample(1)["obs"][0, 0] == 2


def test_a_sequence_is_removed_with_its_first_step() -> None:
    node = SequenceReplayBuffer(size=6, batch_size=30, unroll_steps=2)
    node.push(steps(0, 6))
    node.push(steps(6, 1))
    assert {one[0] for one in valid_steps(node.sample())} == {2, 4, 6}
    node.push(steps(7, 9))
    assert {one[0] for one in valid_steps(node.sample())} == {11, 13, 14}


def test_draws_of_too_many_sequences_and_wrong_priorities_are_refused() -> None:
    node = SequenceReplayBuffer(batch_size=2, unroll_steps=2)
    with pytest.raises(ValueError, match="a batch takes 2 sequences, but 0 are held"):
        node.sample()
    node.push(steps(0, 4))
    node.sample()
    with pytest.raises(ValueError, match="the priority of row 1 is nan"):
        node.update(np.array([[1.0, 1.0], [1.0, np.nan]]))
    with pytest.raises(ValueError, match="priorities arrived, but no batch awaits any"):
        node.update(np.ones(2))


def test_describe_states_the_columns_memory_and_needs() -> None:
    def describe(**params: Any) -> Any:
        config = SequenceReplayBuffer.Config(size=100, **params)
        return SequenceReplayBuffer.describe(
            config, Surroundings({"data": SCHEMA}, {}, frozenset())
        )

    facts = describe(unroll_steps=7, memory_columns=["memory"])
    batch = facts.outs["batches"]
    assert batch["obs"] == Column("float32", (7,))
    assert batch["memory"] == Column("float32", (2,))
    assert batch["valid"] == Column("bool", (7,))
    assert facts.needs == {"data": {"last": Column("bool")}}
    with pytest.raises(UnsoundError, match="`burn_in_steps` is 5, but a sequence has only 5 steps"):
        describe(unroll_steps=5, burn_in_steps=5)
    with pytest.raises(UnsoundError, match="the data has no column 'lstm'"):
        describe(memory_columns=["lstm"])


class SequenceModel(RuleBasedStateMachine):
    """The model is a list of sequences of numbers, which are removed with their first number."""

    @initialize(
        size=st.integers(1, 20),
        length=st.integers(1, 5),
        period=st.integers(1, 6),
        replace=st.booleans(),
    )
    def begin(self, size: int, length: int, period: int, replace: bool) -> None:
        self.params: dict[str, Any] = {
            "size": size,
            "unroll_steps": length,
            "period_steps": period,
            "replace": replace,
            "batch_size": 1,
        }
        self.buffer = SequenceReplayBuffer(**self.params)
        self.model: list[list[int]] = []
        self.pushed = 0

    @rule(lengths=st.lists(st.integers(1, 12), max_size=3))
    def push(self, lengths: list[int]) -> None:
        batch = steps(self.pushed, *lengths)
        self.buffer.push(batch)
        length, period = self.params["unroll_steps"], self.params["period_steps"]
        for count in lengths:
            episode = [*range(self.pushed, self.pushed + count)]
            latest = max(0, count - length)
            for start in sorted({*range(0, latest + 1, period), latest}):
                self.model.append(episode[start : start + length])
            self.pushed += count
        oldest = self.pushed - self.params["size"]
        self.model = [one for one in self.model if one[0] >= oldest]

    @rule()
    def save_and_load(self) -> None:
        copy = SequenceReplayBuffer(**self.params, seed=5)
        copy.load_state_dict(self.buffer.state_dict())
        self.buffer = copy

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 6))
    def sample(self, count: int) -> None:
        if not self.params["replace"] and count > len(self.model):
            with pytest.raises(
                ValueError, match=f"takes {count} sequences, but {len(self.model)} are"
            ):
                self.buffer.sample(count)
            return
        found = valid_steps(self.buffer.sample(count))
        assert all(one in self.model for one in found)
        assert self.params["replace"] or len({tuple(one) for one in found}) == count
        self.buffer.update(np.arange(count) * 1.0)

    @invariant()
    def as_many_are_held(self) -> None:
        assert self.buffer.count == len(self.model)


TestSequenceModel = SequenceModel.TestCase
TestSequenceModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.mark.exhaustive
class TestSequenceModelForManySteps(SequenceModel.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
