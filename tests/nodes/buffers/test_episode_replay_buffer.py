"""The episode replay buffer: episodes are stored and evicted as a whole, and drawn whole or in parts."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowrl.core.batch import Batch, Column
from flowrl.core.facts import Surroundings
from flowrl.core.records import MetricsRecord
from flowrl.nodes.buffers.episode_replay_buffer import EpisodeReplayBuffer


def episodes(*spans: tuple[int, int], truncated: bool = False) -> Batch:
    """Make episodes, given by their first value and their length; values increase by 1 from row to row."""
    value = np.concatenate([np.empty(0, int), *(np.arange(a, a + n) for a, n in spans)])
    last = np.zeros(len(value), bool)
    last[np.cumsum([n for _, n in spans], dtype=int) - 1] = True
    ends = {"terminated": last & (not truncated), "truncated": last & truncated}
    return Batch({"obs": value.astype(np.float32), "last": last, **ends})


def values_by_episode(batch: Batch) -> list[list[int]]:
    count = int(batch["episode"].max()) + 1
    return [batch["obs"][batch["episode"] == k].astype(int).tolist() for k in range(count)]


def test_a_batch_contains_whole_episodes_one_after_another() -> None:
    node = EpisodeReplayBuffer(batch_size=5)
    node.push(episodes((0, 3), (10, 1), (20, 6)))
    batch = node.sample()
    assert len(values_by_episode(batch)) == 5
    assert all(one in ([0, 1, 2], [10], [*range(20, 26)]) for one in values_by_episode(batch))
    assert batch["last"].sum() == 5
    assert (np.diff(batch["episode"]) >= 0).all()


def test_episodes_are_drawn_equally_often_regardless_of_length() -> None:
    node = EpisodeReplayBuffer(batch_size=300)
    node.push(episodes((0, 1), (10, 50), (100, 5)))
    counts = np.unique([one[0] for one in values_by_episode(node.sample())], return_counts=True)[1]
    assert counts.min() > 70


def test_without_replacement_no_batch_contains_an_episode_twice() -> None:
    node = EpisodeReplayBuffer(batch_size=3, replace=False)
    node.push(episodes((0, 2), (10, 2), (20, 2), truncated=True))
    assert sorted(one[0] for one in values_by_episode(node.sample())) == [0, 10, 20]
    with pytest.raises(ValueError, match="a batch takes 4 episodes, but 3 are held"):
        node.sample(4)


def test_parts_stay_within_their_episode_and_begin_at_any_row() -> None:
    node = EpisodeReplayBuffer(batch_size=400, part_steps=3)
    node.push(episodes((0, 5), (10, 2)))
    batch = node.sample()
    found = values_by_episode(batch)
    assert {tuple(one) for one in found} == {(0, 1, 2), (1, 2, 3), (2, 3, 4), (10, 11)}
    assert batch["last"].sum() == 400  # the row after a part is not its successor


def test_an_episode_is_evicted_as_a_whole() -> None:
    node = EpisodeReplayBuffer(size=6, batch_size=20)
    node.push(episodes((0, 3), (10, 3)))
    node.push(episodes((20, 1)))
    assert node.count == 2
    assert {one[0] for one in values_by_episode(node.sample())} == {10, 20}


def test_an_incomplete_episode_is_refused() -> None:
    cut = episodes((0, 3), (10, 2)).replace(terminated=np.array([0, 0, 1, 0, 0], bool))
    with pytest.raises(
        ValueError, match="the episode that begins at row 3 is incomplete; push who"
    ):
        EpisodeReplayBuffer().push(cut)


def test_an_episode_longer_than_the_buffer_is_refused() -> None:
    with pytest.raises(
        ValueError, match="an episode has 7 rows, but the size is 6; increase `size`"
    ):
        EpisodeReplayBuffer(size=6).push(episodes((0, 7)))


def test_drawing_before_the_first_push_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch takes 8 episodes, but 0 are held"):
        EpisodeReplayBuffer().sample()


def test_describe_states_the_columns_memory_and_needs() -> None:
    schema = {k: Column("bool") for k in ("last", "terminated", "truncated")}
    known = Surroundings({"data": schema}, {}, frozenset())
    facts = EpisodeReplayBuffer.describe(EpisodeReplayBuffer.Config(size=100), known)
    assert facts.outs == {"batches": {**schema, "episode": Column("int64")}}
    assert facts.needs == {"data": schema}
    assert facts.memory_bytes == 300


def test_a_firing_emits_batches_and_metrics() -> None:
    node = EpisodeReplayBuffer(batch_size=2, updates_per_push=3, log_every_pushes=1)
    assert len(node.fire(episodes((0, 3), (5, 1)))) == 3
    _, metrics = node.ctx.records
    assert isinstance(metrics, MetricsRecord)
    assert metrics.values["sampled_episodes"] == 6
    assert metrics.values["length_mean"] == 2


class EpisodeModel(RuleBasedStateMachine):
    """Compares the buffer with a deque of lists."""

    @initialize(size=st.integers(8, 20), part=st.none() | st.integers(1, 6), replace=st.booleans())
    def begin(self, size: int, part: int | None, replace: bool) -> None:
        self.params: dict[str, Any] = {"size": size, "part_steps": part, "replace": replace}
        self.buffer = EpisodeReplayBuffer(**self.params)
        self.model: deque[list[int]] = deque()
        self.made = 0

    @rule(lengths=st.lists(st.integers(1, 8), max_size=5))
    def push(self, lengths: list[int]) -> None:
        spans = []
        for length in lengths:
            spans.append((self.made, length))
            self.model.append([*range(self.made, self.made + length)])
            self.made += length
        self.buffer.push(episodes(*spans))
        while sum(map(len, self.model)) > self.params["size"]:
            self.model.popleft()

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.model.clear()

    @rule()
    def save_and_load(self) -> None:
        copy = EpisodeReplayBuffer(**self.params, seed=9)
        copy.load_state_dict(self.buffer.state_dict())
        self.buffer = copy

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 4))
    def sample(self, count: int) -> None:
        if not self.params["replace"] and count > len(self.model):
            with pytest.raises(ValueError, match=f"takes {count} episodes"):
                self.buffer.sample(count)
            return
        found = values_by_episode(self.buffer.sample(count))
        steps = self.params["part_steps"]
        for one in found:
            (whole,) = [e for e in self.model if one[0] in e]
            at = whole.index(one[0])
            assert one == whole[at : at + (steps or len(whole))]
            assert len(one) == min(len(whole), steps or len(whole))
        assert self.params["replace"] or len({tuple(one) for one in found}) == count

    @invariant()
    def as_many_are_held(self) -> None:
        assert self.buffer.count == len(self.model)


TestEpisodeModel = EpisodeModel.TestCase
TestEpisodeModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.mark.exhaustive
class TestEpisodeModelForManySteps(EpisodeModel.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
