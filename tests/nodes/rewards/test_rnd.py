"""Random network distillation: new observations get a bonus, and the bits are reproducible."""

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.nodes.buffers.queue_buffer import QueueBuffer
from flowrl.nodes.rewards.rnd import Rnd
from tests.nodes.learn_modes import DISCRETE, OBS, rows
from tests.nodes.toy_policies import Toy


def bonus(node: Rnd, batch: Batch) -> np.ndarray:
    return (node.fire(batch)["reward"] - batch["reward"]) / node.config.weight


def rows_around(centre: float, n: int = 64, seed: int = 0) -> Batch:
    """Make rows whose next observations are near a point."""
    batch = rows(n, seed)
    return batch.replace(next_obs=(0.1 * batch["next_obs"] + centre).astype(np.float32))


def test_weight_0_changes_nothing() -> None:
    batch = rows()
    np.testing.assert_array_equal(Rnd(weight=0.0).fire(batch)["reward"], batch["reward"])


def test_frequent_observations_get_a_smaller_bonus_than_new_ones() -> None:
    node = Rnd(weight=1.0, updates_per_token=20, seed=2)
    for seed in range(30):
        node.fire(rows_around(1.0, seed=seed))
    known, new = (
        bonus(node, rows_around(1.0, seed=99)).mean(),
        bonus(node, rows_around(-1.0, seed=99)).mean(),
    )
    assert new > 5 * known


def test_the_bonus_has_a_standard_deviation_of_about_1() -> None:
    node = Rnd(weight=1.0, lr=1e-9)  # its errors stay as they are
    found = np.concatenate([bonus(node, rows(256, seed)) for seed in range(20)])
    assert found[-1024:].std() == pytest.approx(1, rel=0.2)


def test_features_with_a_large_scale_do_not_dominate_the_others() -> None:
    scale = np.array([1e4, 1, 1, 1], np.float32)

    def scaled(seed: int, shift: float = 0.0) -> Batch:
        obs = rows(64, seed)["next_obs"] + np.array([0, shift, 0, 0], np.float32)
        return rows(64, seed, next_obs=obs * scale)

    node = Rnd(weight=1.0, updates_per_token=20)
    for seed in range(30):
        node.fire(scaled(seed))
    assert bonus(node, scaled(99, shift=4.0)).mean() > 2 * bonus(node, scaled(99)).mean()


def test_a_huge_observation_gives_a_finite_bonus() -> None:
    node = Rnd(weight=1.0)
    node.fire(rows())
    far = rows(1, next_obs=np.full((1, 4), 1e30, np.float32))
    assert np.isfinite(node.fire(far)["reward"]).all()


@pytest.mark.slow
def test_discrete_observations_are_one_hot() -> None:
    inputs = {"data": {"next_obs": Column("int64", n=3), "reward": Column("float32")}}
    context = Context("rnd", inputs=inputs)
    node = Rnd(config=Rnd.Config(weight=1.0, updates_per_token=30), context=context)
    for _ in range(40):
        node.fire(rows(64, next_obs=np.zeros(64, np.int64)))
    found = bonus(node, rows(64, next_obs=np.arange(64) % 3))
    assert found[1] > 5 * found[0]
    assert found[2] > 5 * found[0]


def test_each_reward_of_a_window_has_its_own_bonus() -> None:
    """Three rewards of 1, gamma 1/2: the window of the first row is 1 + b0 + (1 + b1) / 2 + (1 + b2) / 4."""
    flags = {name: np.zeros(4, bool) for name in ("terminated", "truncated", "last")}
    batch = rows(4, 7, reward=np.ones(4, np.float32), **flags)
    node, policy = Rnd(weight=0.5, seed=1), Toy(obs=OBS, action=DISCRETE, nstep=3, gamma=0.5)
    found = node.fire(batch)
    b = found["reward"] - 1
    assert len(set(b.tolist())) == 4
    buffer = QueueBuffer(policy=policy)
    buffer.push(found)
    expected = [1.75 + b[0] + b[1] / 2 + b[2] / 4, 1.75 + b[1] + b[2] / 2 + b[3] / 4]
    assert buffer.sample(2)["reward"].tolist() == pytest.approx(expected, rel=1e-6)


def test_check_refuses_one_bonus_for_summed_rewards() -> None:
    wrong = {
        "extends": "cartpole_dqn",
        "nodes": {"rnd": {"type": "rnd"}},
        "edges": ["collector -> buffer -> rnd -> learner"],
    }
    (problem,) = flowrl.load(wrong).check().problems
    assert str(problem).endswith(
        "nodes.rnd: rnd changes the reward of each step, but these rows sum 10 rewards each; put it before the "
        "buffer, which sums them"
    )
    assert flowrl.load(wrong, {"policy.nstep": 1}).check().problems == []
    assert flowrl.load("cartpole_dqn_rnd").check().problems == []
