"""PPO against a loss written out row by row, and reproducible bits."""

import numpy as np
import pytest
import torch

from flowrl.core.batch import Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.losses import clipped_policy_loss, clipped_value_loss
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.ppo import Ppo
from tests.nodes.learn_modes import (
    CONTINUOUS,
    DISCRETE,
    OBS,
    learn,
    learn_from,
    poison,
    rows,
    same_bits,
    tensors,
    trained,
)
from tests.nodes.test_returns import slow_gae


def ppo(action: Column = DISCRETE, **params) -> Ppo:
    return Ppo(obs=OBS, action=action, **params)


def head(mode, name: str, obs: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return mode.net(torch.from_numpy(obs))[name]


def loss_written_out(policy: Ppo, mode, batch) -> torch.Tensor:
    """The loss of the first step over the whole batch, from the papers, row by row."""
    c = policy.config
    v_t = head(mode, "value", batch["obs"]).numpy()
    v_tp1 = head(mode, "value", batch["next_obs"]).numpy()
    for t in range(len(batch) - 1):  # within an episode, v_tp1 is the value of the next row
        if not batch["last"][t]:
            v_tp1[t] = v_t[t + 1]
    columns = batch["reward"], batch["discount"], v_t, v_tp1, batch["last"], c.gae_lambda
    advantage = slow_gae(*columns)
    returns = advantage + v_t
    advantage = (advantage - advantage.mean()) / advantage.std()
    out = mode.net(torch.from_numpy(batch["obs"]))
    total = torch.zeros(())
    for i in range(len(batch)):
        p = torch.softmax(out["logits"][i], 0)
        ratio = p[batch["action"][i]] / float(np.exp(batch["logp"][i]))
        gain = ratio * advantage[i]
        if advantage[i] > 0 and ratio > 1 + c.clip:
            gain = torch.tensor((1 + c.clip) * advantage[i])
        if advantage[i] < 0 and ratio < 1 - c.clip:
            gain = torch.tensor((1 - c.clip) * advantage[i])
        error = (out["value"][i] - returns[i]) ** 2
        entropy = -(p * p.log()).sum()
        total = total - gain + c.value_weight * error - c.entropy_weight * entropy
    return total / len(batch)


def test_the_gradient_equals_that_of_the_loss_written_out() -> None:
    policy = ppo(epochs=1, minibatch_size=1000, max_grad_norm=None)
    mode, reference = policy.learn_mode(3), policy.learn_mode(3)
    rng = np.random.default_rng(1)
    # Some ratios are clipped.
    batch = rows(40, logp=np.log(rng.uniform(0.3, 0.9, 40)).astype(np.float32))
    loss_written_out(policy, reference, batch).backward()
    learn_from(mode, batch, lr=0.0)
    torch.testing.assert_close(mode.net.grads, reference.net.grads, rtol=1e-3, atol=1e-5)
    assert mode.net.grads.abs().max() > 0.01


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.0, 2.0, -2.0),  # within the bounds, the gradient is -A
        (1.3, 2.0, 0.0),  # above the bound, a good action gains no more
        (0.7, 2.0, -2.0),  # below the bound, a good action can still gain
        (0.7, -2.0, 0.0),  # below the bound, a bad action gains no more
        (1.3, -2.0, 2.0),
    ],
)
def test_clipping_stops_gradients_only_if_the_loss_cannot_improve(
    ratio: float, advantage: float, slope: float
) -> None:
    at = torch.tensor([ratio], requires_grad=True)
    clipped_policy_loss(at, torch.tensor([advantage]), 0.2).mean().backward()
    assert at.grad is not None
    assert at.grad.item() == pytest.approx(slope)


def test_a_clipped_value_has_the_larger_error() -> None:
    value, goal, old = torch.tensor([2.0, 2.0]), torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0])
    # clipped to 1.5, errors (1, 2) become max(1, 1.5)^2 and max(2, 1.5)^2
    assert clipped_value_loss(value, goal, old, 0.5).tolist() == pytest.approx([1.5**2, 2**2])
    assert clipped_value_loss(value, goal, old, None).tolist() == pytest.approx([1, 4])


def test_a_truncated_row_bootstraps_and_a_terminated_one_does_not() -> None:
    flags = np.array([True])
    one = {"reward": np.ones(1, np.float32), "last": flags}
    truncated = rows(1, terminated=~flags, truncated=flags, discount=np.full(1, 0.9, "f4"), **one)
    terminated = rows(1, terminated=flags, truncated=~flags, discount=np.zeros(1, "f4"), **one)
    mode = ppo(normalise_advantages=False).learn_mode(0)
    value, value_tp1 = (head(mode, "value", truncated[k]).item() for k in ("obs", "next_obs"))
    assert mode.targets(tensors(truncated))[0].item() == pytest.approx(1 + 0.9 * value_tp1 - value)
    assert mode.targets(tensors(terminated))[0].item() == pytest.approx(1 - value)


def test_the_last_row_of_a_token_bootstraps_even_if_its_episode_continues() -> None:
    no = np.zeros(2, bool)
    last = np.array([False, True])
    batch = rows(2, terminated=no, truncated=no, last=last, discount=np.full(2, 0.9, "f4"))
    mode = ppo(normalise_advantages=False, gae_lambda=0.0).learn_mode(0)
    v_t, v_end = head(mode, "value", batch["obs"]), head(mode, "value", batch["next_obs"][1:])
    expected = batch["reward"] + 0.9 * np.array([v_t[1], v_end[0]]) - v_t.numpy()
    np.testing.assert_allclose(mode.targets(tensors(batch))[0], expected, rtol=1e-5)


@pytest.mark.parametrize("end", ["terminated", "truncated", "last"])
def test_advantages_do_not_pass_the_end_of_an_episode_or_a_segment(end: str) -> None:
    no = np.zeros(2, bool)
    ends = {"terminated": no, "truncated": no, "last": no, end: np.array([True, False])}
    batch = rows(2, discount=np.full(2, 0.9, "f4"), **ends)
    mode = ppo(normalise_advantages=False, gae_lambda=1.0).learn_mode(0)
    v, v_tp1 = (head(mode, "value", batch[name])[0].item() for name in ("obs", "next_obs"))
    found = mode.targets(tensors(batch))[0][0].item()
    assert found == pytest.approx(batch["reward"][0] + 0.9 * v_tp1 - v, rel=1e-5)


def test_the_reported_divergence_is_an_estimate_from_the_ratios() -> None:
    """k3 of Schulman 2020: the mean of ratio - 1 - log ratio."""
    batch = rows(40, logp=np.log(np.linspace(0.3, 0.9, 40)).astype(np.float32))
    mode = ppo(epochs=1, minibatch_size=1000).learn_mode(0)
    logp = head(mode, "logits", batch["obs"]).log_softmax(1).numpy()
    log_ratio = logp[np.arange(40), batch["action"]] - batch["logp"]
    found = float(learn_from(mode, batch, lr=0.0).metrics["kl"])
    assert found == pytest.approx((np.exp(log_ratio) - 1 - log_ratio).mean(), rel=1e-4)


def test_minibatches_of_unrolls_have_their_own_memory() -> None:
    """Two unrolls that differ in their memory alone are told apart in the gradient."""
    policy = ppo(model=Gru(size=4), unroll_steps=2, epochs=1, minibatch_size=1000, lr=0.0)
    no = np.zeros((1, 2), bool)
    one = {n: x.reshape(1, 2, *x.shape[1:]) for n, x in rows(2).columns.items()}
    one |= {"terminated": no, "truncated": no, "last": np.array([[False, True]])}
    grads = []
    for memory in (0.0, 1.0):
        mode = policy.learn_mode(0)
        mode.targets = lambda b: (torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2))
        learn_from(mode, Batch({**one, "memory": np.full((1, 4), memory, np.float32)}))
        grads.append(mode.net.grads.clone())
    assert not torch.allclose(*grads)


def test_normalised_values_only_change_units() -> None:
    mode = ppo(normalise_values=True, normalise_advantages=False).learn_mode(0)
    plain = ppo(normalise_advantages=False).learn_mode(0)
    batch = rows(50)
    advantage, goal, _ = (x.numpy() for x in mode.targets(tensors(batch)))
    expected, returns, _ = (x.numpy() for x in plain.targets(tensors(batch)))
    np.testing.assert_allclose(advantage, expected, rtol=1e-5)  # the moments are still 0 and 1
    np.testing.assert_allclose(goal, (returns - returns.mean()) / returns.std(), atol=1e-5)
    values = head(mode, "value", batch["obs"]).numpy() * returns.std() + returns.mean()
    again, goal, old = (x.numpy() for x in mode.targets(tensors(batch)))
    mean, std = mode.return_moments()
    np.testing.assert_allclose(goal * std + mean, again + values, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(old * std + mean, values, rtol=1e-3, atol=1e-4)


def test_each_epoch_learns_from_every_row_once() -> None:
    mode, seen = ppo(epochs=3, minibatch_size=10).learn_mode(0), []
    step = mode.descend_minibatch
    mode.descend_minibatch = lambda dealt: (seen.append(dealt.obs), step(dealt))[1]
    batch = rows(32)
    learn_from(mode, batch)
    assert [len(obs) for obs in seen] == [10, 10, 10, 2] * 3
    for epoch in range(3):
        got = torch.cat(seen[4 * epoch : 4 * epoch + 4])
        assert sorted(got[:, 0].tolist()) == sorted(batch["obs"][:, 0].tolist())
    assert not torch.equal(seen[0], seen[4])


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_old_and_new_likelihoods_agree_before_learning(action: Column) -> None:
    policy = ppo(action, epochs=1, minibatch_size=1000)
    mode, act = policy.learn_mode(0), policy.collect_mode(1)
    act.load(State(mode.weights(), {}))
    batch = rows(200)
    acted = act.forward(batch["obs"])
    assert set(acted) == set(policy.collect_columns())
    learned = learn_from(mode, batch.replace(**acted))
    assert float(learned.metrics["kl"]) == pytest.approx(0, abs=1e-6)
    assert float(learned.metrics["clipped"]) == 0


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_rewarded_actions_become_more_likely(action: Column) -> None:
    policy = ppo(action, lr=3e-3, gae_lambda=0.0, gamma=0.0)
    mode, act, greedy = policy.learn_mode(0), policy.collect_mode(1), policy.eval_mode(2)
    obs = rows(64)["obs"]
    for _ in range(40):
        act.load(State(mode.weights(), {}))
        acted = act.forward(obs)
        wanted = acted["action"] if action is DISCRETE else -np.abs(acted["unclipped"] - 0.5).sum(1)
        given = {"reward": wanted.astype(np.float32), "discount": np.zeros(64, np.float32)}
        learn_from(mode, rows(64, obs=obs, **acted, **given))
    greedy.load(State(mode.weights(), {}))
    goal = 1.0 if action is DISCRETE else 0.5
    assert np.abs(greedy.forward(obs)["action"] - goal).mean() < 0.2


def test_real_valued_actions_reach_the_env_within_its_bounds() -> None:
    policy = ppo(Column("float32", (2,), low=(-0.1, -0.5), high=(0.1, 0.5)))
    act = policy.collect_mode(0)
    act.load(State(policy.learn_mode(0).weights(), {}))
    acted = act.forward(rows(500)["obs"])
    assert np.abs(acted["action"]).max(0) == pytest.approx([0.1, 0.5])
    assert np.abs(acted["unclipped"]).max() > 1
    assert acted["action"].dtype == np.float32
    assert acted["logp"].shape == (500,)


def test_the_gaussian_entropy_equals_the_formula() -> None:
    policy = ppo(CONTINUOUS)
    out = {"mean": torch.zeros(3, 2), "log_std": torch.tensor([[0.0, 1.0]]).expand(3, 2)}
    b = tensors(Batch({"unclipped": np.zeros((3, 2), np.float32)}))
    _, entropy = policy.distribution.logp_entropy(out, b)
    expected = torch.distributions.Normal(torch.zeros(2), torch.tensor([1.0, np.e])).entropy().sum()
    torch.testing.assert_close(entropy, expected.expand(3).float())


def test_the_learning_rate_decays_to_0_if_configured() -> None:
    policy = ppo(lr={"start": 0.1, "end": 0.0, "env_steps": 100})
    found = [policy.command(Count(env_steps=t))["lr"] for t in (0, 50, 100, 200)]
    assert found == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert ppo(lr=0.1).command(Count(10**6))["lr"] == 0.1


def test_only_acting_weights_are_sent() -> None:
    names = ppo().learn_mode(0).weights()
    assert {name.split(".")[0] for name in names} == {"logits"}
    shared = ppo(model=Mlp(hidden=[8])).learn_mode(0).weights()
    assert {name.split(".")[0] for name in shared} == {"trunk", "logits"}


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"normalise_values": True, "value_clip": 0.2}])
def test_learning_does_not_depend_on_global_generators(params) -> None:
    policy = ppo(epochs=2, minibatch_size=10, **params)
    one, other = (trained(policy, poisoned=p) for p in (1, 2))
    assert same_bits(one.state_dict(), other.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("params", [{}, {"normalise_values": True, "value_clip": 0.2}])
def test_a_restored_learn_mode_continues_with_the_same_bits(params) -> None:
    policy = ppo(epochs=2, minibatch_size=10, **params)
    whole, half = trained(policy, 20), trained(policy, 10)
    resumed = policy.learn_mode(seed=99)
    resumed.load_state_dict(half.state_dict())
    poison(3)
    learn(resumed, range(10, 20))
    assert same_bits(whole.state_dict(), resumed.state_dict())


def test_metrics_are_complete_and_finite() -> None:
    learned = learn_from(ppo().learn_mode(0), rows())
    assert {"policy_loss", "value_loss", "entropy", "kl", "clipped"} <= set(learned.metrics)
    assert all(np.isfinite(float(v)) for v in learned.metrics.values())


def test_whole_numbers_without_bounds_are_refused_with_a_hint() -> None:
    with pytest.raises(UnsoundError, match="no distribution for actions"):
        Ppo(obs=Column("float32", (2,)), action=Column("int64", (2,)))


def test_ppo_is_on_policy() -> None:
    assert Ppo.on_policy
    assert {"logp", "last", "truncated", "next_obs"} <= set(ppo().learn_columns())


def test_an_evaluation_draws_actions_if_configured() -> None:
    obs = np.zeros((50, *OBS.shape), OBS.dtype)
    weights = State(ppo().learn_mode(0).weights())
    found = {}
    for draws in (False, True):
        modes = [ppo(eval_draws=draws).eval_mode(seed) for seed in (1, 1, 2)]
        for mode in modes:
            mode.load(weights)
        found[draws] = [mode.forward(obs)["action"].tolist() for mode in modes]
    assert len(set(found[False][0])) == 1
    assert found[True][0] == found[True][1] != found[True][2]
