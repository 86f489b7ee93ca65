"""DQN: hand-worked targets, schedules, and reproducible bits."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from flowrl.core.batch import Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.configured_policies import policy_for
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.dqn import Dqn
from tests.nodes.learn_modes import (
    CONTINUOUS,
    DISCRETE,
    OBS,
    learn,
    learn_from,
    poison,
    rows,
    same_bits,
    trained,
)

STATES = Column("int64", n=3)  # one-hot: without hidden layers Q is a table


def table_dqn(**params) -> Dqn:
    """Q(s, a) is a bias plus one number for each state and action."""
    given = {"model": Mlp(hidden=[]), "dueling": False, "max_grad_norm": None, **params}
    return Dqn(obs=STATES, action=DISCRETE, **given)


def set_table(network, table: list[list[float]]) -> None:
    """Set the network's Q to this table (states, actions)."""
    with torch.no_grad():
        network.module.q.out.weight.copy_(torch.tensor(table).T)
        network.module.q.out.bias.zero_()


ONLINE = [[1.0, 2.0], [4.0, 3.0], [0.0, 0.0]]
TARGET = [[0.0, 0.0], [10.0, 20.0], [7.0, 5.0]]


def two_rows(**columns) -> Batch:
    """Two transitions: (s 0, a 1, r 1, s 1), and (s 1, a 0, r 5, s 2), which terminates."""
    given = {
        "obs": np.array([0, 1]),
        "action": np.array([1, 0]),
        "reward": np.array([1.0, 5.0], np.float32),
        "next_obs": np.array([1, 2]),
        "discount": np.array([0.5, 0.0], np.float32),
    }
    return Batch({**given, **columns})


def table_learner(**params):
    mode = table_dqn(**params).learn_mode(seed=0)
    set_table(mode.q, ONLINE)
    set_table(mode.q_target, TARGET)
    return mode


@pytest.mark.parametrize(
    ("double", "expected"),
    [
        # 1 + 0.5 * 20, the target's own best; |11 - Q(0, 1) = 2| = 9.  5 + 0; |5 - 4| = 1
        (False, [9.0, 1.0]),
        # the online network prefers action 0 in state 1: 1 + 0.5 * 10; |6 - 2| = 4
        (True, [4.0, 1.0]),
    ],
)
def test_targets_equal_hand_worked_numbers(double: bool, expected: list[float]) -> None:
    learned = learn_from(table_learner(double=double), two_rows())
    np.testing.assert_allclose(learned.priorities, expected)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mse", (16 + 1) / 2), ("huber", ((4 - 0.5) + 0.5) / 2)],
)
def test_losses_equal_hand_worked_numbers(loss: str, expected: float) -> None:
    learned = learn_from(table_learner(loss=loss), two_rows())
    assert float(learned.metrics["loss"]) == pytest.approx(expected)


def test_only_the_values_of_taken_actions_move_towards_their_targets() -> None:
    mode = table_learner(lr=0.1)
    learn_from(mode, two_rows())
    moved = mode.q.module.q.out.weight.detach().T - torch.tensor(ONLINE)
    # the first step of Adam is as long as the learning rate
    torch.testing.assert_close(moved, torch.tensor([[0, 0.1], [0.1, 0], [0, 0]]), atol=1e-6, rtol=0)


def test_the_target_network_gets_no_gradient() -> None:
    mode = table_learner()
    learn_from(mode, two_rows())
    torch.testing.assert_close(mode.q_target.module.q.out.weight.T, torch.tensor(TARGET))


def test_the_weights_of_a_prioritised_buffer_scale_each_rows_loss() -> None:
    weight = np.array([0.0, 2.0], np.float32)
    learned = learn_from(table_learner(loss="mse"), two_rows(weight=weight))
    assert float(learned.metrics["loss"]) == pytest.approx((0 * 16 + 2 * 1) / 2)
    np.testing.assert_allclose(learned.priorities, [4.0, 1.0])  # without the weights


def test_the_target_is_copied_at_its_interval() -> None:
    mode = Dqn(obs=OBS, action=DISCRETE, target={"every_iters": 3}).learn_mode(0)
    first = mode.q_target.params.clone()
    for iteration in range(1, 7):
        learn_from(mode, rows(seed=iteration))
        if iteration < 3:
            assert torch.equal(mode.q_target.params, first)
        assert torch.equal(mode.q_target.params, mode.q.params) == (iteration % 3 == 0)


def test_a_blended_target_moves_a_fraction_in_every_iteration() -> None:
    mode = Dqn(obs=OBS, action=DISCRETE, target={"tau": 0.25}).learn_mode(0)
    before = mode.q_target.params.clone()
    learn_from(mode, rows())
    torch.testing.assert_close(mode.q_target.params, before + 0.25 * (mode.q.params - before))


def test_q_learning_finds_the_values_of_a_chain() -> None:
    """Action 1 leads 0 -> 1 -> 2 -> end, with reward 1 at the end; action 0 ends at once, without a reward."""
    policy = table_dqn(lr=0.05, target={"every_iters": 20}, gamma=0.5)
    mode, grid = policy.learn_mode(0), list(product(range(3), range(2)))
    batch = Batch(
        {
            "obs": np.array([s for s, _ in grid]),
            "action": np.array([a for _, a in grid]),
            "reward": np.array([float((s, a) == (2, 1)) for s, a in grid], np.float32),
            "next_obs": np.array([min(s + 1, 2) for s, _ in grid]),
            "discount": np.array([0.5 * (a == 1 and s < 2) for s, a in grid], np.float32),
        }
    )
    for _ in range(600):
        learn_from(mode, batch)
    q = mode.q(torch.arange(3))["q"].detach()
    expected = torch.tensor([[0, 0.25], [0, 0.5], [0, 1]])
    torch.testing.assert_close(q, expected, atol=0.02, rtol=0)
    act = policy.eval_mode(0)
    act.load(State(mode.weights()))
    np.testing.assert_array_equal(act.forward(np.arange(3))["action"], [1, 1, 1])


@pytest.mark.parametrize("shape", ["exponential", "linear"])
def test_epsilon_decays_from_start_to_end(shape: str) -> None:
    policy = Dqn(obs=OBS, action=DISCRETE, epsilon={"shape": shape, "env_steps": 100})
    found = [policy.command(Count(env_steps=t))["epsilon"] for t in range(0, 2000, 10)]
    assert found[0] == pytest.approx(0.95)
    assert found[-1] == pytest.approx(0.1, abs=1e-6)
    assert found == sorted(found, reverse=True)


def test_the_decays_of_epsilon_equal_their_formulas() -> None:
    given = {"start": 1.0, "end": 0.2, "env_steps": 100}
    line = Dqn(obs=OBS, action=DISCRETE, epsilon={**given, "shape": "linear"})
    curve = Dqn(obs=OBS, action=DISCRETE, epsilon={**given, "shape": "exponential"})
    assert line.command(Count(50))["epsilon"] == pytest.approx(0.6)
    assert curve.command(Count(100))["epsilon"] == pytest.approx(0.2 + 0.8 / math.e)


def test_collecting_explores_according_to_the_command() -> None:
    policy = table_dqn()
    act, weights = policy.collect_mode(seed=0), table_learner().weights()
    obs = np.zeros(2000, np.int64)  # action 1 is best
    act.load(State(weights, {"epsilon": 0.0}))
    assert set(act.forward(obs)["action"]) == {1}
    act.load(State(weights, {"epsilon": 1.0}))
    assert act.forward(obs)["action"].mean() == pytest.approx(0.5, abs=0.05)


def test_actions_have_the_dtype_of_their_column() -> None:
    policy = Dqn(obs=OBS, action=Column("int32", n=2))
    act = policy.collect_mode(0)
    act.load(State(policy.learn_mode(0).weights(), {"epsilon": 0.5}))
    assert act.forward(rows()["obs"])["action"].dtype == np.int32


def test_learning_does_not_depend_on_global_generators() -> None:
    policy = Dqn(obs=OBS, action=DISCRETE, target={"every_iters": 7})
    one, other = trained(policy, poisoned=1), trained(policy, poisoned=2)
    assert same_bits(one.state_dict(), other.state_dict())
    assert not same_bits(one.weights(), policy.learn_mode(7).weights())


@pytest.mark.parametrize("target", [{"every_iters": 7}, {"tau": 0.1}])
def test_a_restored_learn_mode_continues_with_the_same_bits(target: dict[str, float]) -> None:
    policy = Dqn(obs=OBS, action=DISCRETE, target=target)
    whole, half = trained(policy, 20), trained(policy, 10)
    resumed = policy.learn_mode(seed=99)
    resumed.load_state_dict(half.state_dict())
    poison(3)
    learn(resumed, range(10, 20))
    assert same_bits(whole.state_dict(), resumed.state_dict())


def test_a_saved_state_is_a_copy() -> None:
    mode = trained(Dqn(obs=OBS, action=DISCRETE), 3)
    saved, again = mode.state_dict(), mode.state_dict()
    learn(mode, range(5))
    assert same_bits(saved, again)


def test_a_batch_is_not_written_to() -> None:
    batch = rows()
    before = {name: array.tobytes() for name, array in batch.columns.items()}
    learn_from(Dqn(obs=OBS, action=DISCRETE).learn_mode(0), batch)
    assert before == {name: array.tobytes() for name, array in batch.columns.items()}


def test_real_valued_actions_are_refused_with_a_hint() -> None:
    with pytest.raises(UnsoundError, match=r"dqn chooses one of n actions.*try ppo"):
        Dqn(obs=OBS, action=CONTINUOUS)


def test_a_policy_made_by_hand_is_used_as_it_is() -> None:
    policy = Dqn(obs=OBS, action=DISCRETE)
    assert policy_for(policy, OBS, DISCRETE) is policy
    assert set(policy.learn_columns()) == {"obs", "action", "reward", "next_obs", "discount"}
