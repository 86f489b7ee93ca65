"""Prioritised draws follow their distribution, and the advanced buffer equals a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowrl.core.batch import Batch
from flowrl.core.state import Clock, Count
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer

LEAST = 1e-5


def rows(values: list[int]) -> Batch:
    reward = np.array(values, np.float32)
    return Batch({"obs": np.stack([reward / 2, reward], 1), "reward": reward})


def chi_square(counts: np.ndarray, chance: np.ndarray) -> float:
    """Return the deviation of chi-square from its mean under independent draws, in standard deviations."""
    expected = chance * counts.sum()
    n = len(counts)
    return float((((counts - expected) ** 2 / expected).sum() - (n - 1)) / (2 * (n - 1)) ** 0.5)


# The probabilities of rows with given priorities, for each kind.
def proportional(priority: np.ndarray, alpha: float) -> np.ndarray:
    return (priority + LEAST) ** alpha / ((priority + LEAST) ** alpha).sum()


def by_rank(priority: np.ndarray, alpha: float) -> np.ndarray:
    rank = np.empty(len(priority))
    rank[np.argsort(-priority, kind="stable")] = np.arange(1, len(priority) + 1)
    return rank**-alpha / (rank**-alpha).sum()


KINDS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "proportional": proportional,
    "rank": by_rank,
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))
ALPHA, HELD, TAKEN, BATCHES = 0.7, 40, 10, 2500


def updated_buffer(
    kind: str, replace: bool, **params: Any
) -> tuple[AdvancedReplayBuffer, np.ndarray]:
    """Make a buffer that has wrapped around, and whose priorities were updated twice; return the priorities."""
    node = AdvancedReplayBuffer(
        size=HELD, batch_size=TAKEN, priority=kind, alpha=ALPHA, replace=replace, seed=7, **params
    )
    node.push(rows([*range(-25, HELD)]))
    rng = np.random.default_rng(1)
    priority = rng.permutation(HELD) + 0.5
    numbers = np.arange(HELD) + 25  # of the held rows
    node.update(rng.random(HELD), numbers)
    node.update(priority, numbers)
    return node, priority


def draw_batches(node: AdvancedReplayBuffer) -> np.ndarray:
    return np.stack([node.sample()["reward"].astype(int) for _ in range(BATCHES)])


@pytest.mark.slow
@every_kind
def test_with_replacement_rows_are_drawn_with_their_probability(kind: str) -> None:
    """Stratified draws are more even than independent draws, so they deviate less."""
    node, priority = updated_buffer(kind, replace=True)
    counts = np.bincount(draw_batches(node).ravel(), minlength=HELD)
    chance = KINDS[kind](priority, ALPHA)
    assert chi_square(counts, chance) < 4
    assert counts == pytest.approx(chance * counts.sum(), rel=0.2)


@every_kind
def test_without_replacement_the_first_row_is_drawn_with_its_probability(kind: str) -> None:
    node, priority = updated_buffer(kind, replace=False)
    found = draw_batches(node)
    counts = np.bincount(found[:, 0], minlength=HELD)
    assert abs(chi_square(counts, KINDS[kind](priority, ALPHA))) < 4
    assert all(len(set(batch)) == TAKEN for batch in found[:100].tolist())


@every_kind
def test_without_replacement_the_second_row_is_drawn_with_the_remaining_probabilities(
    kind: str,
) -> None:
    """P(second is j) = sum over i of P(i) P(j) / (1 - P(i)), i other than j."""
    node, priority = updated_buffer(kind, replace=False)
    chance = KINDS[kind](priority, ALPHA)
    after = chance[:, None] * chance[None, :] / (1 - chance[:, None])
    np.fill_diagonal(after, 0)
    counts = np.bincount(draw_batches(node)[:, 1], minlength=HELD)
    assert abs(chi_square(counts, after.sum(0))) < 4


@every_kind
def test_after_removals_the_other_rows_keep_their_relative_probabilities(kind: str) -> None:
    node, _ = updated_buffer(kind, replace=True, max_staleness_iters=5)
    node.ctx.clock = Clock({"learner": Count(train_iters=6)})
    node.push(rows([*range(100, 110)]))  # they replace the ten oldest rows; the others are too old
    counts = np.bincount(draw_batches(node).ravel() - 100, minlength=10)
    assert node.count == len(counts) == 10
    assert counts == pytest.approx(np.full(10, counts.mean()), rel=0.2) or kind == "rank"
    if kind == "rank":  # equal priorities are ranked by place
        assert chi_square(counts, by_rank(np.ones(10), ALPHA)) < 4


def test_with_alpha_zero_draws_are_uniform() -> None:
    node = AdvancedReplayBuffer(size=HELD, batch_size=TAKEN, alpha=0.0, seed=3)
    node.push(rows([*range(HELD)]))
    node.update(np.arange(HELD) * 100.0, np.arange(HELD))
    counts = np.bincount(draw_batches(node).ravel(), minlength=HELD)
    assert chi_square(counts, np.full(HELD, 1 / HELD)) < 4


def test_each_stratum_gives_one_row_of_a_batch() -> None:
    node = AdvancedReplayBuffer(size=8, batch_size=8, alpha=1.0)
    node.push(rows([*range(8)]))
    for _ in range(20):
        # With equal priorities, each stratum is one row.
        assert sorted(node.sample()["reward"]) == [*range(8)]


def test_any_half_of_a_batch_has_rows_of_all_ages() -> None:
    node = AdvancedReplayBuffer(size=1000, batch_size=64)
    node.push(rows([*range(1000)]))
    for _ in range(20):
        values = node.sample()["reward"]
        assert abs(values[:32].mean() - values[32:].mean()) < 60


def test_the_chi_square_test_detects_a_buffer_that_ignores_alpha() -> None:
    node, priority = updated_buffer("proportional", replace=True)
    counts = np.bincount(draw_batches(node).ravel(), minlength=HELD)
    assert chi_square(counts, proportional(priority, ALPHA - 0.1)) > 4


class AdvancedModel(RuleBasedStateMachine):
    """The model is a dictionary of rows by number: value, priority, use and iteration."""

    @initialize(
        size=st.integers(1, 9),
        kind=st.sampled_from(list(KINDS)),
        replace=st.booleans(),
        max_use=st.none() | st.integers(1, 4),
        staleness=st.none() | st.integers(0, 3),
    )
    def begin(
        self, size: int, kind: str, replace: bool, max_use: int | None, staleness: int | None
    ) -> None:
        self.params: dict[str, Any] = {
            "size": size,
            "batch_size": size,
            "priority": kind,
            "replace": replace and max_use is None,
            "max_use": max_use,
            "max_staleness_iters": staleness,
            "bookkeeping": True,
        }
        self.buffer = AdvancedReplayBuffer(**self.params, seed=size)
        self.model: dict[int, dict[str, float]] = {}
        self.pushed, self.iters, self.highest = 0, 0, 1.0

    @rule(amount=st.integers(0, 9) | st.just(25))
    def push(self, amount: int) -> None:
        size = self.params["size"]
        new = [*range(self.pushed, self.pushed + amount)]
        self.buffer.push(rows(new))
        first = self.buffer.ring.written - min(amount, size)
        for k, value in enumerate(new[amount - min(amount, size) :]):
            self.model[first + k] = {
                "value": value,
                "priority": self.highest,
                "use": 0,
                "iters": self.iters,
            }
        self.pushed += amount
        oldest = self.buffer.ring.written - size
        self.model = {n: row for n, row in self.model.items() if n >= oldest}

    @rule(more=st.integers(1, 3))
    def train(self, more: int) -> None:
        self.iters += more
        self.buffer.ctx.clock = Clock({"learner": Count(train_iters=self.iters)})

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        written = self.buffer.ring.written
        if not written:
            return
        numbers = data.draw(st.lists(st.integers(0, written - 1), unique=True, max_size=6))
        priorities = [float(data.draw(st.integers(0, 9))) for _ in numbers]
        late = self.buffer.counters.late
        self.buffer.update(np.array(priorities), np.array(numbers, np.int64))
        known = [n for n in numbers if n in self.model]
        assert self.buffer.counters.late - late == len(numbers) - len(known)
        for number, priority in zip(numbers, priorities, strict=True):
            if number in self.model:
                self.model[number]["priority"] = priority + LEAST
                self.highest = max(self.highest, priority + LEAST)

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.model = {}

    @rule()
    def save_and_load(self) -> None:
        copy = AdvancedReplayBuffer(**self.params, seed=99)
        copy.load_state_dict(self.buffer.state_dict())
        copy.ctx.clock = self.buffer.ctx.clock
        self.buffer = copy

    @precondition(lambda self: self.model)
    @rule(batch_size=st.integers(1, 9))
    def sample(self, batch_size: int) -> None:
        if self.params["max_staleness_iters"] is not None:
            oldest = self.iters - self.params["max_staleness_iters"]
            self.model = {n: row for n, row in self.model.items() if row["iters"] >= oldest}
        if batch_size > len(self.model):
            with pytest.raises(
                ValueError, match=rf"takes {batch_size} rows, but {len(self.model)} "
            ):
                self.buffer.sample(batch_size)
            return
        batch = self.buffer.sample(batch_size)
        numbers = batch["row_id"].tolist()
        found = [self.model[number] for number in numbers]
        assert batch["reward"].tolist() == [row["value"] for row in found]
        assert batch["use"].tolist() == [row["use"] for row in found]
        assert batch["age_iters"].tolist() == [self.iters - row["iters"] for row in found]
        assert batch["priority"] == pytest.approx([row["priority"] for row in found])
        assert self.params["replace"] or len(set(numbers)) == batch_size
        assert batch["weight"].max() == 1.0
        for number in numbers:
            self.model[number]["use"] += 1
        if self.params["max_use"] is not None:
            most = self.params["max_use"]
            self.model = {n: row for n, row in self.model.items() if row["use"] < most}

    @invariant()
    def the_counts_are_equal(self) -> None:
        assert self.buffer.count == len(self.model)

    @invariant()
    def the_live_rows_are_equal(self) -> None:
        held = self.buffer.ring
        live = np.flatnonzero(held.sampler.live(np.arange(held.size)))
        assert sorted(held.numbers_of(live).tolist()) == sorted(self.model)


QUICK = settings(max_examples=20, stateful_step_count=25, deadline=None)
SLOW = settings(max_examples=200, stateful_step_count=50, deadline=None)  # 10,000 steps

TestAdvancedModel = AdvancedModel.TestCase
TestAdvancedModel.settings = QUICK


@pytest.mark.exhaustive
class TestAdvancedModelForManySteps(AdvancedModel.TestCase):  # type: ignore[misc]
    settings = SLOW
