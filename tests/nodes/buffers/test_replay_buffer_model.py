"""The naive replay buffer compared with a model in plain Python, and the distribution of its draws."""

from __future__ import annotations

import tempfile
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowrl.core.batch import Batch
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.compressed import CompressedStorage
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.buffers.storage.storage import MemoryStorage, Storage


def rows(values: list[int]) -> Batch:
    """Make rows whose columns all depend on one value, so that mixed-up columns are detected."""
    reward = np.array(values, np.float32)
    obs = np.stack([reward / 2, reward], 1)
    return Batch({"obs": obs, "reward": reward, "next_obs": obs + np.float32([0.5, 1])})


class BufferModel(RuleBasedStateMachine):
    """The model is a deque of numbers for the agent's rows, and a list of negative ones for demonstrations."""

    @initialize(
        size=st.integers(1, 8),
        replace=st.booleans(),
        share=st.floats(0.1, 1.0),
        deduplicate=st.booleans(),
        storage=st.sampled_from(["memory", "compressed", "mapped"]),
    )
    def begin(
        self, size: int, replace: bool, share: float, deduplicate: bool, storage: str
    ) -> None:
        self.params: dict[str, Any] = {
            "size": size,
            "batch_size": size,
            "replace": replace,
            "demo_share": share,
            "store_once": deduplicate,
        }
        self.storage, self.folders = storage, 0
        self.folder = tempfile.TemporaryDirectory()
        self.buffer = self.make(size)
        self.flushed: list[int] = []  # the rows that survive a crash if no others are pushed
        self.agent: deque[int] = deque(maxlen=size)
        self.demos: list[int] = []
        self.pushed = 0

    def make(self, seed: int, existing: str = "error") -> NaiveReplayBuffer:
        """Make a buffer, with `error` in a new folder, and otherwise in the existing one."""
        self.folders += existing == "error"
        storages: dict[str, Storage] = {
            "memory": MemoryStorage(),
            "compressed": CompressedStorage(least_row_bytes=1),
            "mapped": MappedStorage(
                path=f"{self.folder.name}/{self.folders}", on_existing=existing
            ),
        }
        return NaiveReplayBuffer(**self.params, seed=seed, storage=storages[self.storage])

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.buffer.close()
            self.folder.cleanup()

    @rule(amount=st.integers(0, 9) | st.just(30))
    def push_rows(self, amount: int) -> None:
        self.push(amount)

    def push(self, amount: int) -> None:
        new = list(range(self.pushed + 1, self.pushed + 1 + amount))
        self.pushed += amount
        self.agent += new
        self.buffer.push(rows(new))

    @rule(amount=st.integers(1, 4))
    def push_demos(self, amount: int) -> None:
        new = [-1 - len(self.demos) - k for k in range(amount)]
        self.demos += new
        self.buffer.push_demos(rows(new))

    @rule()
    def clear(self) -> None:
        self.agent.clear()
        self.flushed = []
        self.buffer.clear()

    @rule()
    def flush(self) -> None:
        self.buffer.flush()
        self.flushed = list(self.agent)

    @precondition(lambda self: self.storage == "mapped" and self.pushed)
    @rule(crashed=st.booleans())
    def reopen(self, crashed: bool) -> None:
        """Close or crash the buffer. After a crash, flushed rows remain unless they may have been overwritten."""
        if crashed:
            size, after = self.params["size"], [n for n in self.agent if n not in self.flushed]
            self.buffer.ring.storage.close()
        else:
            self.buffer.close()
        self.buffer = self.make(7, "reuse")
        for demo in self.demos:  # demonstrations are not in the files
            self.buffer.push_demos(rows([demo]))
        if crashed:
            held = self.buffer.rows()["reward"].astype(int).tolist() if self.buffer.count else []
            survivors = [n for n in self.flushed if n in self.agent]
            released = 1 if after and len(self.flushed) + len(after) > size else 0
            assert held in (survivors, survivors[released:], [])
            self.agent = deque(held, maxlen=size)
        self.flushed = list(self.agent)

    @rule()
    def save_and_load(self) -> None:
        copy = self.make(99)
        copy.load_state_dict(self.buffer.state_dict())
        self.buffer.close()
        self.buffer = copy
        self.flushed = list(self.agent)
        self.push(2)  # the next rows must replace the oldest ones, wherever they are

    @precondition(lambda self: self.agent)
    @rule(batch_size=st.integers(1, 20))
    def sample(self, batch_size: int) -> None:
        replace = self.params["replace"]
        demo_rows = max(1, round(batch_size * self.params["demo_share"])) if self.demos else 0
        agent_rows = batch_size - demo_rows
        too_few = agent_rows > len(self.agent) or (not replace and demo_rows > len(self.demos))
        if too_few:
            with pytest.raises(
                ValueError, match=r"a batch takes \d+ (rows|demonstrations), but \d+ "
            ):
                self.buffer.sample(batch_size)
            return
        batch = self.buffer.sample(batch_size)
        drawn = [int(value) for value in batch["reward"]]
        assert len(drawn) == batch_size
        assert set(drawn[:agent_rows]) <= set(self.agent)
        assert set(drawn[agent_rows:]) <= set(self.demos)
        assert replace or len(set(drawn)) == batch_size
        for name in ("obs", "next_obs"):
            assert np.array_equal(batch[name], rows(drawn)[name])
        assert ("is_demo" in batch) == bool(self.demos)

    @invariant()
    def as_many_are_held(self) -> None:
        assert self.buffer.count == len(self.agent)

    @invariant()
    def exactly_the_newest_are_held(self) -> None:
        held = self.buffer.rows()["reward"].tolist() if self.pushed else []
        assert held == list(self.agent)


TestBufferModel = BufferModel.TestCase
TestBufferModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@pytest.mark.exhaustive
def test_the_buffer_equals_its_model_for_ten_thousand_steps() -> None:
    long = settings(max_examples=400, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(BufferModel, settings=long)


def deviation(counts: np.ndarray, variance: float) -> float:
    """Return the deviation of chi-square from its mean under uniform draws, in standard deviations.

    Counts that sum to a constant have n - 1 degrees of freedom, so chi-square has the mean n - 1 and the variance
    2 (n - 1). Draws that are too even are as wrong as draws that are too uneven.
    """
    n = counts.size
    chi2 = ((counts - counts.mean()) ** 2).sum() / variance * (n - 1) / n
    return float((chi2 - (n - 1)) / (2 * (n - 1)) ** 0.5)


HELD, TAKEN, BATCHES = 40, 10, 3000


def draws(replace: bool, order: int = 1) -> np.ndarray:
    """Draw the rows of many batches (BATCHES, TAKEN) from a ring that has wrapped around."""
    node = NaiveReplayBuffer(size=HELD, batch_size=TAKEN, replace=replace, seed=order)
    node.push(rows([*range(-17, HELD)]))
    return np.stack([node.sample()["reward"].astype(int) for _ in range(BATCHES)])


def test_draws_with_replacement_are_independent_and_uniform() -> None:
    counts = np.bincount(draws(replace=True).ravel(), minlength=HELD)
    assert len(counts) == HELD  # no overwritten row is drawn
    assert abs(deviation(counts, variance=BATCHES * TAKEN * (1 / HELD) * (1 - 1 / HELD))) < 4


def test_draws_without_replacement_contain_every_row_equally_often() -> None:
    share = TAKEN / HELD
    counts = np.bincount(draws(replace=False).ravel(), minlength=HELD)
    assert abs(deviation(counts, variance=BATCHES * share * (1 - share))) < 4


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("place", [0, TAKEN - 1])
def test_every_index_of_a_batch_contains_every_row_equally_often(replace: bool, place: int) -> None:
    counts = np.bincount(draws(replace, order=2)[:, place], minlength=HELD)
    assert abs(deviation(counts, variance=BATCHES * (1 / HELD) * (1 - 1 / HELD))) < 4


def test_with_replacement_the_rows_of_a_batch_are_independent() -> None:
    """The quarters of the ring that the first two rows come from form each pair equally often."""
    first, second = draws(replace=True, order=3)[:, :2].T * 4 // HELD
    counts = np.bincount(first * 4 + second, minlength=16)
    assert abs(deviation(counts, variance=BATCHES * (1 / 16) * (15 / 16))) < 4


def test_the_chi_square_test_detects_a_buffer_that_prefers_new_rows() -> None:
    """Ten percent more weight on a quarter of the rows is detected."""
    weights = np.ones(HELD)
    weights[-HELD // 4 :] = 1.1
    rng = np.random.default_rng(0)
    drawn = rng.choice(HELD, BATCHES * TAKEN, p=weights / weights.sum())
    counts = np.bincount(drawn, minlength=HELD)
    assert deviation(counts, variance=BATCHES * TAKEN * (1 / HELD) * (1 - 1 / HELD)) > 4
