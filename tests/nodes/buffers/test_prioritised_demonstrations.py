"""Demonstrations that are drawn by priority: alone, together with the agent's rows, and as sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer

AGENT, DEMOS = [1.0, 2.0, 3.0, 4.0], [8.0, 2.0, 6.0]  # priorities
COPIES = 250  # of each of the agent's rows, which share its priority
PORTS: dict[str, Any] = {"data": {}, "demos": {}, "priorities": {}}


def rows(*values: float) -> Batch:
    return Batch({"obs": np.array(values, np.float32)})


def buffer(**params: Any) -> AdvancedReplayBuffer:
    """A buffer with the agent's rows 1 to 4, many times, and the demonstrations -1 to -3, with priorities."""
    known = {"alpha": 1.0, "beta": 0.5, "priority_least": 1e-9, "bookkeeping": True}
    config = AdvancedReplayBuffer.Config(**{**known, **params})
    node = AdvancedReplayBuffer(config=config, context=Context("buffer", inputs=PORTS))
    node.push_demos(rows(-1, -2, -3))
    node.push(rows(*[1, 2, 3, 4] * COPIES))
    node.update(np.array(AGENT * COPIES) / COPIES, np.arange(4 * COPIES))
    node.update(np.array(DEMOS), np.array([-1, -2, -3]))
    return node


def shares(batch: Batch) -> dict[float, float]:
    """How often each row is in a batch."""
    values, counts = np.unique(batch["obs"], return_counts=True)
    return dict(zip(values.tolist(), (counts / len(batch)).tolist(), strict=True))


def test_in_a_common_draw_every_row_is_drawn_by_its_priority() -> None:
    node = buffer(demo_draw="priority", demo_share=0.01)
    batch = Batch.concat(node.draw(40, 1000))
    total = sum(AGENT) + sum(DEMOS)
    expected = {k + 1.0: p / total for k, p in enumerate(AGENT)}
    expected |= {-1.0 - k: p / total for k, p in enumerate(DEMOS)}
    assert shares(batch) == pytest.approx(expected, abs=0.01)
    copies = np.where(batch["is_demo"], 1, COPIES)
    frequency = (4 * COPIES + 3) * np.array([expected[x] for x in batch["obs"].tolist()]) / copies
    weight = frequency**-0.5  # (N P(i))^-beta over the largest; every batch has the rarest row
    np.testing.assert_allclose(batch["weight"], weight / weight.max(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("replace", [True, False])
def test_within_a_given_share_demonstrations_are_drawn_by_their_priority(replace: bool) -> None:
    node = buffer(demo_share=0.5, replace=replace)
    size = 1000 if replace else 2
    batch = Batch.concat(node.draw(20_000 // size, size))
    assert batch["is_demo"].mean() == 0.5
    expected = {k + 1.0: p / sum(AGENT) / 2 for k, p in enumerate(AGENT)}
    expected |= {-1.0 - k: p / sum(DEMOS) / 2 for k, p in enumerate(DEMOS)}
    assert shares(batch) == pytest.approx(expected, abs=0.015)
    if replace:  # a weight is relative to uniform draws from the row's own table
        counts = np.where(batch["is_demo"], 3, 4)
        frequency = counts * np.array([2 * expected[x] for x in batch["obs"].tolist()])
        np.testing.assert_allclose(
            batch["weight"], frequency**-0.5 / (frequency**-0.5).max(), rtol=1e-5
        )


def test_demonstrations_have_a_least_priority_of_their_own() -> None:
    node = buffer(priority_least=0.001, demo_priority_least=1.0, demo_share=0.5)
    batch = node.sample(200)
    assert dict(
        zip(batch["obs"].tolist(), batch["priority"].round(6).tolist(), strict=True)
    ) == pytest.approx(
        {
            **{k + 1.0: p / COPIES + 0.001 for k, p in enumerate(AGENT)},
            **{-1.0 - k: p + 1 for k, p in enumerate(DEMOS)},
        }
    )


def test_the_newest_demonstrations_of_a_live_expert_keep_their_priorities() -> None:
    node = buffer(demo_size=3, demo_share=0.5)
    node.push_demos(rows(-4))
    node.update(np.array([5.0, 5.0]), np.array([-1, -4]))
    assert node.counters.late == 1  # the first one is gone
    batch = node.sample(200)
    demos = batch["is_demo"]
    found = dict(zip(batch["row_id"][demos].tolist(), batch["priority"][demos], strict=True))
    assert found == pytest.approx({-2: 2.0, -3: 6.0, -4: 5.0})
    assert np.array_equal(batch["row_id"][demos], batch["obs"][demos])


@pytest.mark.parametrize("draw", ["fixed", "binomial", "priority"])
def test_a_loaded_buffer_draws_the_same_batches(draw: str) -> None:
    node, copy = (buffer(demo_draw=draw) for _ in range(2))
    node.draw(3, 16)
    copy.load_state_dict(node.state_dict())
    for one in (node, copy):
        one.update(np.arange(16.0))
    a, b = (Batch.concat(one.draw(9, 16)) for one in (node, copy))
    assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("params", "ports", "expected"),
    [
        ({}, {"data", "demos"}, r"draws by the learner's priorities.*learner.priorities ->"),
        ({"priority": "rank"}, set(PORTS), "write `priority: proportional`"),
        ({"replace": False}, set(PORTS), "leave out `replace: false`"),
    ],
)
def test_a_common_draw_without_comparable_priorities_is_refused(
    params: dict[str, Any], ports: set[str], expected: str
) -> None:
    config = AdvancedReplayBuffer.Config(demo_draw="priority", **params)
    with pytest.raises(UnsoundError, match=expected):
        AdvancedReplayBuffer.describe(config, Surroundings({port: {} for port in ports}, {}, set()))


# sequences


def steps(first: int, *lengths: int, memory: bool = True) -> Batch:
    """Episodes of these lengths, whose values grow from `first` on; the memory is that value."""
    obs = np.arange(first, first + sum(lengths), dtype=np.float32)
    last = np.zeros(len(obs), bool)
    last[np.cumsum(lengths, dtype=int) - 1] = True
    return Batch({"obs": obs, "last": last, **({"memory": obs[:, None]} if memory else {})})


def sequences(**params: Any) -> SequenceReplayBuffer:
    known = {"unroll_steps": 4, "burn_in_steps": 1, "memory_columns": ["memory"], "alpha": 1.0}
    schema = {"obs": Column("float32"), "last": Column("bool"), "memory": Column("float32", (1,))}
    config = SequenceReplayBuffer.Config(**{**known, **params})
    context = Context("buffer", inputs={**PORTS, "data": schema})
    return SequenceReplayBuffer(config=config, context=context)


def begins(batch: Batch) -> list[float]:
    found: list[float] = batch["obs"][:, 0].tolist()
    return found


def test_demonstrated_sequences_are_cut_as_those_of_the_agent_and_begin_without_memory() -> None:
    node = sequences(batch_size=40, demo_share=0.5)
    node.push_demos(steps(100, 7, 2, memory=False))
    node.push(steps(0, 7, 2))
    batch = node.sample()
    demo = batch["is_demo"]
    assert demo.tolist() == [False] * 20 + [True] * 20
    assert set(begins(batch)) == {0, 3, 7, 100, 103, 107}
    assert (batch["memory"][demo] == 0).all()
    assert np.array_equal(batch["memory"][~demo][:, 0], batch["obs"][~demo][:, 0])
    short = batch["obs"][:, 0] == 107
    assert batch["obs"][short][0].tolist() == [107, 108, 108, 108]
    assert batch["valid"][short][0].tolist() == [True, True, False, False]
    assert batch["last"][short][0].tolist() == [False, True, True, True]


def test_recorded_memory_of_demonstrations_is_used() -> None:
    node = sequences(batch_size=20, demo_share=0.5)
    node.push_demos(steps(100, 7))
    node.push(steps(0, 7))
    batch = node.sample()
    assert np.array_equal(batch["memory"][:, 0], batch["obs"][:, 0])


@pytest.mark.parametrize("draw", ["fixed", "priority"])
def test_sequences_are_drawn_by_the_priorities_that_the_learner_sends(draw: str) -> None:
    node = sequences(batch_size=6, demo_share=0.5, demo_draw=draw, priority_least=1e-9)
    node.push_demos(steps(100, 7, memory=False))
    node.push(steps(0, 7))
    priorities = {0.0: 1.0, 3.0: 3.0, 100.0: 5.0, 103.0: 15.0}
    for _ in range(20):  # until each was drawn
        batch = node.sample()
        node.update(np.array([priorities[x] for x in begins(batch)]))
    found = Batch.concat(node.draw(200, 100))
    first = np.array(begins(found))
    agent = 0.5 if draw == "fixed" else 4 / 24
    assert (first < 100).mean() == pytest.approx(agent, abs=0.01)
    assert (first == 3).mean() == pytest.approx(agent * 3 / 4, abs=0.01)
    assert (first == 103).mean() == pytest.approx((1 - agent) * 3 / 4, abs=0.01)


def test_before_the_agents_first_step_batches_consist_of_demonstrated_sequences() -> None:
    node = sequences(batch_size=6)
    (batch,) = node.fire(None, steps(100, 9, memory=False), None)
    assert batch["is_demo"].all()
    assert batch["memory"].shape == (6, 1)
    node.update(np.ones((6, 4)))
    node.push(steps(0, 9))
    assert not node.sample()["is_demo"].all()


def test_a_loaded_buffer_draws_the_same_sequences() -> None:
    node, copy = (sequences(batch_size=8, demo_draw="priority", demo_size=12) for _ in range(2))
    for k in range(3):
        node.push_demos(steps(100 + 10 * k, 9, memory=False))
    node.push(steps(0, 9))
    copy.load_state_dict(node.state_dict())
    for one in (node, copy):
        one.push_demos(steps(200, 5, memory=False))
    a, b = (Batch.concat(one.draw(9, 8)) for one in (node, copy))
    assert all(np.array_equal(a[name], b[name]) for name in a)
    held = a["obs"][a["is_demo"]]
    assert held.min() >= 122  # of 32 steps, the newest 12


def test_demonstrated_sequences_are_followed_from_token_to_token() -> None:
    def token(first: int, count: int) -> Batch:
        batch = steps(first, count, memory=False)
        n = np.arange(first, first + count)
        flags = {"terminated": np.zeros(count, bool), "truncated": np.zeros(count, bool)}
        origin = {
            "origin/collector": np.zeros(count, np.int32),
            "origin/env": np.zeros(count, np.int32),
            "origin/step": n,
            "origin/weights": np.zeros(count, np.int64),
        }
        return batch.replace(**flags, **origin)

    node = sequences(batch_size=50)
    node.push_demos(token(100, 3))
    node.push_demos(token(103, 4))
    batch = node.sample()
    assert {tuple(row) for row in batch["obs"].tolist()} == {
        (100, 101, 102, 103),
        (103, 104, 105, 106),
    }


def test_demonstrations_of_other_observations_are_refused(tmp_path: Any) -> None:
    text = "extends: hiddencartpole_r2d2\nnodes: {demos: {type: demos, path: cartpole_demos.npz}}\n"
    (tmp_path / "g.yaml").write_text(text + "edges: [demos -> buffer.demos]", encoding="utf-8")
    demos = flowrl.load("cartpole_dqn_demos").check().graph.nodes["demos"].config.path
    graph = flowrl.load(tmp_path / "g.yaml", {"demos.path": str(demos), "demos.policy": None})
    problems = [problem.what for problem in graph.check().problems]
    assert any("buffer.demos needs the column 'obs' as float32[2]" in what for what in problems)
