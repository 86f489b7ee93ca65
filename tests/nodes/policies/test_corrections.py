"""The targets of algorithms: each correction is in them. Learning runs do not prove this; some pass without.

Each test computes its target again, by the formula of the paper, from the outputs of the networks. It fails if a
term is left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flowrl.core.batch import Array, Batch
from flowrl.core.state import Count, State
from flowrl.nodes import losses
from flowrl.nodes.algorithm import Algorithm
from flowrl.nodes.configured_parts import configured_part
from flowrl.nodes.models.numpy_model import acting_fractions
from flowrl.nodes.models.torch_layers import has_noise
from flowrl.nodes.network_learn_mode import LearnBatch
from tests.nodes.learn_modes import tensors as tensors_by_name
from tests.nodes.policies.test_every_algorithm import ALGORITHMS, DISCRETE, OBS, make, random_batch
from tests.nodes.test_losses import slow_projection, slow_quantile_huber

GAMMA = 0.9
FROM_REPLAY = [  # crossq has no targets, see its own tests
    *("dqn", "c51", "qrdqn", "iqn", "fqf", "rainbow", "sql", "mdqn", "r2d2", "acer"),
    *("ddpg", "td3", "d4pg", "sac", "tqc", "redq", "discrete_sac"),
    *("td3bc", "iql", "awac", "cql", "discrete_cql", "dqfd"),
]


def learner(name: str, **params: Any) -> tuple[Algorithm, Any, Batch]:
    """A learn mode whose targets differ from its networks, and rows of which some terminate."""
    given = {"target": {"every_iters": 1000}, **params}
    policy = make(name, **given)
    mode = policy.learn_mode(3)
    for seed in range(10):
        mode.forward(random_batch(policy, seed), policy.command(Count()))
    batch = random_batch(policy, 50)
    rng = np.random.default_rng(5)
    discount = (GAMMA * (rng.random(batch["discount"].shape) < 0.7)).astype(np.float32)
    return policy, mode, batch.replace(discount=discount)


def tensors(batch: Batch, *names: str) -> list[Tensor]:
    return [torch.from_numpy(batch[name].copy()) for name in names]


def learned(policy: Algorithm, mode: Any, batch: Batch) -> tuple[dict[str, float], Array]:
    result = mode.forward(batch, policy.command(Count()))
    assert result.priorities is not None
    return {k: float(v) for k, v in result.metrics.items()}, result.priorities


def generator_of(mode: Any) -> torch.Generator:
    """A generator that draws what the learn mode will draw."""
    generator = torch.Generator()
    generator.set_state(mode.generator.get_state())
    return generator


@pytest.mark.parametrize("name", ["c51", "rainbow"])
@pytest.mark.parametrize("double", [False, True])
def test_the_categorical_loss_is_the_cross_entropy_to_the_projected_target(
    name: str, double: bool
) -> None:
    from flowrl.nodes.models.mlp import Mlp

    policy, mode, batch = learner(name, double=double, model=Mlp(hidden=[32]))
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    atoms = policy.atoms.tolist()  # type: ignore[attr-defined]
    with torch.no_grad():
        p_target = mode.q_target(next_obs)["q"].softmax(-1)
        chooser = mode.q(next_obs)["q"].softmax(-1) if double else p_target
        best = (chooser @ torch.tensor(atoms)).argmax(1)
        logp = mode.q(obs)["q"].log_softmax(-1)
    # Priorities are divergences, which are 0 for a perfect prediction.
    expected, divergences = [], []
    for row in range(len(batch)):
        p = p_target[row, best[row]].tolist()
        goal = slow_projection(atoms, p, reward[row].item(), discount[row].item())
        expected.append(
            -sum(g * x for g, x in zip(goal, logp[row, action[row]].tolist(), strict=True))
        )
        divergences.append(expected[-1] + sum(g * math.log(g) for g in goal if g > 0))
    metrics, priorities = learned(policy, mode, batch)
    assert metrics["loss"] == pytest.approx(np.mean(expected), rel=1e-4)
    np.testing.assert_allclose(priorities, divergences, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_the_quantile_loss_is_that_to_the_target_of_the_best_action(double: bool) -> None:
    policy, mode, batch = learner("qrdqn", double=double, quantiles=5)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        z_target = mode.q_target(next_obs)["q"]
        best = (mode.q(next_obs)["q"] if double else z_target).mean(2).argmax(1)
        z = mode.q(obs)["q"]
    fractions = (torch.arange(5) + 0.5) / 5
    expected = [
        slow_quantile_huber(
            z[row, action[row]],
            reward[row] + discount[row] * z_target[row, best[row]],
            fractions,
            1.0,
        )
        for row in range(len(batch))
    ]
    errors = [
        (reward[k] + discount[k] * z_target[k, best[k]].mean() - z[k, action[k]].mean()).abs()
        for k in range(len(batch))
    ]
    metrics, priorities = learned(policy, mode, batch)
    assert metrics["loss"] == pytest.approx(np.mean(expected), rel=1e-4)
    np.testing.assert_allclose(priorities, errors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_iqn_learns_at_drawn_fractions_the_target_of_the_best_action(double: bool) -> None:
    policy, mode, batch = learner("iqn", double=double, fractions=3, target_fractions=4)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    rows, generator = len(batch), generator_of(mode)
    target_tau = torch.rand((rows, 4), generator=generator)
    tau = torch.rand((rows, 3), generator=generator)
    fixed = torch.from_numpy(acting_fractions()).expand(rows, -1)
    with torch.no_grad():
        best = [net(next_obs, tau=fixed)["q"].mean(1).argmax(1) for net in (mode.q, mode.q_target)]
        z_next = mode.q_target(next_obs, tau=target_tau)["q"]  # (B, 4, actions)
        z = mode.q(obs, tau=tau)["q"]
    assert not torch.equal(*best)
    chosen = best[0 if double else 1]
    goals = [reward[k] + discount[k] * z_next[k, :, chosen[k]] for k in range(rows)]
    pairs = [(z[k, :, action[k]], goals[k], tau[k]) for k in range(rows)]
    metrics, priorities = learned(policy, mode, batch)
    expected = np.mean([slow_quantile_huber(*pair, 1.0) for pair in pairs])
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)
    errors = [abs(float(goal.mean() - z_t.mean())) for z_t, goal, _ in pairs]
    np.testing.assert_allclose(priorities, errors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_fqf_learns_at_the_middle_of_proposed_intervals(double: bool) -> None:
    policy, mode, batch = learner("fqf", double=double, fractions=4, lr=0.02)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        online, target, heads = mode.q(next_obs), mode.q_target(next_obs), mode.q(obs)
    means = [(found["shares"].unsqueeze(2) * found["q"]).sum(1) for found in (online, target)]
    best = [mean.argmax(1) for mean in means]
    assert not torch.equal(*best)
    chosen, tau = best[0 if double else 1], heads["shares"].cumsum(1) - heads["shares"] / 2
    expected = [
        slow_quantile_huber(
            heads["q"][k, :, action[k]],
            reward[k] + discount[k] * target["q"][k, :, chosen[k]],
            tau[k],
            1.0,
        )
        for k in range(len(batch))
    ]
    rows = torch.arange(len(batch))
    # The mean of the target's quantiles.
    goal = reward + discount * target["q"][rows, :, chosen].mean(1)
    q = means[0].new_tensor([float(heads["shares"][k] @ heads["q"][k, :, action[k]]) for k in rows])
    metrics, priorities = learned(policy, mode, batch)
    assert metrics["loss"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert metrics["q"] == pytest.approx(q.mean().item(), rel=1e-4)
    np.testing.assert_allclose(priorities, (goal - q).abs(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_r2d2_bootstraps_with_the_target_networks_value_of_the_best_action(double: bool) -> None:
    policy, mode, batch = learner("r2d2", double=double, rescale=True, loss="mse", target_steps=1)
    valid = batch["valid"].copy()
    valid[0, 2:] = False
    batch = batch.replace(valid=valid)
    columns: Any = tensors_by_name(batch)
    with torch.no_grad():
        q, q_target = (mode.action_values(net, columns) for net in (mode.q, mode.q_target))
    best = q.argmax(2), q_target.argmax(2)
    assert not torch.equal(*best)
    v = losses.restore_value(losses.chosen(q_target, best[0 if double else 1]))
    burn_in = policy.config.burn_in_steps
    action, reward, discount, valid_t = (
        getattr(columns, name)[:, burn_in:] for name in ("action", "reward", "discount", "valid")
    )
    target = losses.rescale_value(reward + discount * v[:, 1:])
    error = (losses.chosen(q[:, :-1], action) - target) * valid_t
    metrics, priorities = learned(policy, mode, batch)
    expected = error.square().sum() / valid_t.sum()
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    np.testing.assert_allclose(priorities[:, burn_in:], error.abs(), rtol=1e-4, atol=1e-5)


def test_soft_q_learning_bootstraps_with_the_soft_value() -> None:
    policy, mode, batch = learner("sql", alpha=0.5, loss="mse")
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        v = 0.5 * (mode.q_target(next_obs)["q"] / 0.5).exp().sum(1).log()
        error = reward + discount * v - losses.chosen(mode.q(obs)["q"], action)
        logp = (mode.q(obs)["q"] / 0.5).log_softmax(1)
    metrics, priorities = learned(policy, mode, batch)
    np.testing.assert_allclose(priorities, error.abs(), rtol=1e-4, atol=1e-5)
    assert metrics["entropy"] == pytest.approx(-(logp.exp() * logp).sum(1).mean().item(), rel=1e-4)


def test_munchausen_adds_the_clipped_log_policy_of_the_target_network() -> None:
    policy, mode, batch = learner("mdqn", temperature=0.4, least_bonus=-0.6)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        logp = (mode.q_target(obs)["q"] / 0.4).log_softmax(1)
        q_next = mode.q_target(next_obs)["q"]
        p_next = (q_next / 0.4).softmax(1)
        v = (p_next * (q_next - 0.4 * p_next.log())).sum(1)  # equation 1
        bonus = (0.4 * losses.chosen(logp, action)).clamp(-0.6, 0)
        error = reward + 0.9 * bonus + discount * v - losses.chosen(mode.q(obs)["q"], action)
    assert (bonus == -0.6).any()  # the limit is reached
    assert (bonus > -0.6).any()
    _, priorities = learned(policy, mode, batch)
    np.testing.assert_allclose(priorities, error.abs(), rtol=1e-4, atol=1e-5)


def q_of(network: Any, obs: Tensor, action: Tensor) -> Tensor:
    found: Tensor = network(obs=obs, action=action)["q"]
    return found


def unit(policy: Algorithm, action: Tensor) -> Tensor:
    low, high = (torch.tensor(bound) for bound in (policy.action.low, policy.action.high))
    scaled: Tensor = 2 * (action - low) / (high - low) - 1
    return scaled


def test_sac_takes_the_smaller_critic_and_subtracts_the_entropy_term() -> None:
    policy, mode, batch = learner("sac", alpha=0.7, learn_alpha=False)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        heads = mode.actor(next_obs)
        noise = torch.randn(heads["mean"].shape, generator=generator_of(mode))
        a_next, logp = losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)
        q_next = q_of(mode.critic_target, next_obs, a_next)
        target = reward + discount * (torch.min(q_next[:, 0], q_next[:, 1]) - 0.7 * logp)
        q = q_of(mode.critic, obs, unit(policy, action))
    metrics, priorities = learned(policy, mode, batch)
    expected = ((q[:, 0] - target) ** 2 + (q[:, 1] - target) ** 2).mean()
    assert metrics["critic_loss"] == pytest.approx(expected.item(), rel=1e-4)
    np.testing.assert_allclose(priorities, (target - q.mean(1)).abs(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("goal", "rises"), [(10.0, True), (-10.0, False)])
def test_the_temperature_rises_while_the_entropy_is_below_its_goal(
    goal: float, rises: bool
) -> None:
    policy, mode, batch = learner("sac", entropy_goal=goal)
    before = mode.log_alpha.value.item()
    learned(policy, mode, batch)
    assert (mode.log_alpha.value.item() > before) == rises


def test_the_actor_of_sac_increases_value_and_entropy() -> None:
    policy, mode, batch = learner("sac", alpha=0.7, learn_alpha=False, critic_lr=1e-9)
    [obs] = tensors(batch, "obs")
    generator = generator_of(mode)
    shape = mode.actor(obs)["mean"].shape
    torch.randn(shape, generator=generator)  # for the targets
    noise = torch.randn(shape, generator=generator)
    with torch.no_grad():
        heads = mode.actor(obs)
        a, logp = losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)
        q = q_of(mode.critic, obs, a)
    metrics, _ = learned(policy, mode, batch)
    expected = (0.7 * logp - torch.min(q[:, 0], q[:, 1])).mean().item()
    assert metrics["actor_loss"] == pytest.approx(expected, rel=1e-3)
    assert metrics["entropy"] == pytest.approx(-logp.mean().item(), rel=1e-4)


def test_td3_smooths_target_actions_and_takes_the_smaller_critic() -> None:
    policy, mode, batch = learner("td3", smoothing=0.5, smoothing_limit=0.3)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        a_next = mode.actor_target(next_obs)["action"].tanh()
        noise = 0.5 * torch.randn(a_next.shape, generator=generator_of(mode))
        q_next = q_of(mode.critic_target, next_obs, (a_next + noise.clamp(-0.3, 0.3)).clamp(-1, 1))
        target = reward + discount * torch.min(q_next[:, 0], q_next[:, 1])
        q = q_of(mode.critic, obs, unit(policy, action))
    assert (noise.abs() > 0.3).any()
    metrics, priorities = learned(policy, mode, batch)
    expected = ((q - target.unsqueeze(1)) ** 2).sum(1).mean()
    assert metrics["critic_loss"] == pytest.approx(expected.item(), rel=1e-4)
    np.testing.assert_allclose(priorities, (target - q.mean(1)).abs(), rtol=1e-4, atol=1e-5)


def test_the_actor_of_td3_learns_in_every_second_iteration() -> None:
    policy, mode, _ = learner("td3")
    moved = []
    for seed in range(4):
        before = mode.actor.params.clone()
        learned(policy, mode, random_batch(policy, seed))
        moved.append(not torch.equal(before, mode.actor.params))
    assert moved == [True, False, True, False]


def test_ddpg_bootstraps_with_the_target_actors_own_action() -> None:
    policy, mode, batch = learner("ddpg")
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        a_next = mode.actor_target(next_obs)["action"].tanh()
        target = reward + discount * q_of(mode.critic_target, next_obs, a_next)[:, 0]
        error = target - q_of(mode.critic, obs, unit(policy, action))[:, 0]
    _, priorities = learned(policy, mode, batch)
    np.testing.assert_allclose(priorities, error.abs(), rtol=1e-4, atol=1e-5)


def test_d4pg_learns_the_projected_distribution_of_the_target_actors_action() -> None:
    policy, mode, batch = learner("d4pg", atoms=11, critic_lr=0.02)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    atoms = policy.atoms.tolist()  # type: ignore[attr-defined]
    with torch.no_grad():
        a_next = mode.actor_target(next_obs)["action"].tanh()
        p = q_of(mode.critic_target, next_obs, a_next)[:, 0].softmax(1)
        logp = q_of(mode.critic, obs, unit(policy, action))[:, 0].log_softmax(1)
    expected, divergences = [], []
    for row in range(len(batch)):
        goal = slow_projection(atoms, p[row].tolist(), reward[row].item(), discount[row].item())
        expected.append(-sum(g * x for g, x in zip(goal, logp[row].tolist(), strict=True)))
        divergences.append(expected[-1] + sum(g * math.log(g) for g in goal if g > 0))
    metrics, priorities = learned(policy, mode, batch)
    assert metrics["critic_loss"] == pytest.approx(np.mean(expected), rel=1e-4)
    np.testing.assert_allclose(priorities, divergences, rtol=1e-3, atol=1e-5)


def test_tqc_drops_the_largest_of_the_joint_quantiles() -> None:
    policy, mode, batch = learner("tqc", quantiles=5, dropped=2, alpha=0.7, learn_alpha=False)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        heads = mode.actor(next_obs)
        noise = torch.randn(heads["mean"].shape, generator=generator_of(mode))
        a_next, logp = losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)
        z_next = q_of(mode.critic_target, next_obs, a_next)  # (B, 2, 5)
        z = q_of(mode.critic, obs, unit(policy, action))
    fractions = (torch.arange(5) + 0.5) / 5
    expected, errors = [], []
    for row in range(len(batch)):
        kept = sorted(z_next[row].flatten().tolist())[: 2 * 5 - 2 * 2]
        goal = reward[row] + discount[row] * (torch.tensor(kept) - 0.7 * logp[row])
        expected.append(
            sum(slow_quantile_huber(z[row, k], goal, fractions, 1.0) for k in (0, 1)) / 5
        )
        errors.append(abs(float(goal.mean() - z[row].mean())))
    metrics, priorities = learned(policy, mode, batch)
    assert metrics["critic_loss"] == pytest.approx(np.mean(expected), rel=1e-4)
    np.testing.assert_allclose(priorities, errors, rtol=1e-4, atol=1e-5)


def test_redq_takes_the_smallest_of_a_random_few_critics() -> None:
    policy, mode, batch = learner(
        "redq", critics=4, target_critics=2, alpha=0.7, learn_alpha=False, actor_every_iters=1000
    )
    next_obs, reward, discount = tensors(batch, "next_obs", "reward", "discount")
    obs, action = tensors(batch, "obs", "action")
    generator = generator_of(mode)
    with torch.no_grad():
        heads = mode.actor(next_obs)
        noise = torch.randn(heads["mean"].shape, generator=generator)
        a_next, logp = losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)
        few = torch.randperm(4, generator=generator)[:2]
        q_next = q_of(mode.critic_target, next_obs, a_next)[:, few].min(1).values
        target = reward + discount * (q_next - 0.7 * logp)
        q = q_of(mode.critic, obs, unit(policy, action))
    _, priorities = learned(policy, mode, batch)
    np.testing.assert_allclose(priorities, (target - q.mean(1)).abs(), rtol=1e-4, atol=1e-5)


def test_discrete_sac_sums_over_actions_exactly() -> None:
    policy, mode, batch = learner("discrete_sac", alpha=0.7, learn_alpha=False)
    obs, next_obs, action, reward, discount = tensors(
        batch, "obs", "next_obs", "action", "reward", "discount"
    )
    with torch.no_grad():
        p = mode.actor(next_obs)["logits"].softmax(1)
        q_next = mode.critic_target(next_obs)["q"]
        smaller = torch.min(q_next[:, 0], q_next[:, 1])
        v = sum(p[:, a] * (smaller[:, a] - 0.7 * p[:, a].log()) for a in range(DISCRETE.n or 0))
        target = reward + discount * v
        q = torch.stack([losses.chosen(mode.critic(obs)["q"][:, k], action) for k in (0, 1)], 1)
    metrics, priorities = learned(policy, mode, batch)
    expected = ((q - target.unsqueeze(1)) ** 2).sum(1).mean().item()
    assert metrics["critic_loss"] == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(priorities, (target - q.mean(1)).abs(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FROM_REPLAY)
def test_the_weights_of_a_prioritised_buffer_scale_the_loss(name: str) -> None:
    policy, mode, batch = learner(name)
    if "is_demo" in batch:
        batch = batch.replace(is_demo=np.ones(len(batch), bool))
    other = policy.learn_mode(0)
    other.load_state_dict(mode.state_dict())
    plain, _ = learned(policy, mode, batch)
    halved, _ = learned(policy, other, batch.replace(weight=np.full(len(batch), 0.5, np.float32)))
    weighted = {"critic_loss", "value_loss", "loss", *(["actor_loss"] if name == "iql" else [])}
    assert weighted & plain.keys()
    for key in weighted & plain.keys():
        assert halved[key] == pytest.approx(plain[key] / 2, rel=1e-5)


def ordered_rows(policy: Algorithm) -> Batch:
    """Rows of one env in the order of time: an episode that terminates, and one that is cut."""
    batch = random_batch(policy, 7)
    n = len(batch)
    last, terminated = np.zeros(n, bool), np.zeros(n, bool)
    terminated[10] = True
    last[[10, n - 1]] = True
    discount = np.where(terminated, 0, GAMMA).astype(np.float32)
    next_obs = np.roll(batch["obs"], -1, 0)
    next_obs[last] += 1
    columns = {"last": last, "terminated": terminated, "discount": discount, "next_obs": next_obs}
    known = {k: v for k, v in columns.items() if k in batch}
    logp = np.log(np.random.default_rng(1).uniform(0.1, 0.6, n)).astype(np.float32)
    return batch.replace(**known, **({"logp": logp} if "logp" in batch else {}))


def values(mode: Any, batch: Batch) -> tuple[Array, Array]:
    obs, next_obs = tensors(batch, "obs", "next_obs")
    with torch.no_grad():
        return mode.net(obs)["value"].numpy(), mode.net(next_obs)["value"].numpy()


def test_impala_learns_from_the_targets_of_vtrace() -> None:
    from flowrl.nodes.returns import vtrace

    policy = make("impala", rho_limit=0.8, c_limit=0.6)
    mode, batch = policy.learn_mode(0), ordered_rows(policy)
    obs, action = tensors(batch, "obs", "action")
    with torch.no_grad():
        logp = losses.chosen(mode.net(obs)["logits"].log_softmax(1), action).numpy()
    ratio = np.exp(logp - batch["logp"])
    assert (ratio > 0.8).any()
    v, v_tp1 = values(mode, batch)
    target, advantage = vtrace(
        ratio,
        batch["reward"],
        batch["discount"],
        v,
        v_tp1,
        batch["last"],
        rho_limit=0.8,
        c_limit=0.6,
    )
    metrics = mode.forward(batch, policy.command(Count())).metrics
    assert float(metrics["value_loss"]) == pytest.approx(np.square(v - target).mean(), rel=1e-4)
    assert float(metrics["policy_loss"]) == pytest.approx(-(logp * advantage).mean(), rel=1e-3)


def test_a2c_learns_from_generalised_advantages() -> None:
    from flowrl.nodes.returns import gae

    policy = make("a2c", gae_lambda=0.8)
    mode, batch = policy.learn_mode(0), ordered_rows(policy)
    obs, action = tensors(batch, "obs", "action")
    with torch.no_grad():
        logp = losses.chosen(mode.net(obs)["logits"].log_softmax(1), action).numpy()
    v, v_tp1 = values(mode, batch)
    advantage = gae(batch["reward"], batch["discount"], v, v_tp1, batch["last"], 0.8)
    metrics = mode.forward(batch, policy.command(Count())).metrics
    assert float(metrics["policy_loss"]) == pytest.approx(-(logp * advantage).mean(), rel=1e-3)
    assert float(metrics["value_loss"]) == pytest.approx(np.square(advantage).mean(), rel=1e-4)


def test_pqn_learns_from_lambda_returns_of_the_best_next_values() -> None:
    policy = make("pqn", q_lambda=0.6, epochs=1, minibatch_size=1000)
    mode, batch = policy.learn_mode(0), ordered_rows(policy)
    obs, next_obs, action = tensors(batch, "obs", "next_obs", "action")
    with torch.no_grad():
        best = mode.q(next_obs)["q"].max(1).values.numpy()
        q = losses.chosen(mode.q(obs)["q"], action).numpy()
    target, later = np.zeros(len(batch)), 0.0
    for t in reversed(range(len(batch))):
        rest = best[t] if batch["last"][t] else 0.4 * best[t] + 0.6 * later
        target[t] = later = batch["reward"][t] + batch["discount"][t] * rest
    metrics = mode.forward(batch, policy.command(Count())).metrics
    assert float(metrics["loss"]) == pytest.approx(0.5 * np.square(q - target).mean(), rel=1e-4)


def test_an_end_of_an_episode_cuts_the_returns_of_pqn_however_it_is_marked() -> None:
    policy = make("pqn", q_lambda=0.6)
    mode, batch = policy.learn_mode(0), ordered_rows(policy)
    middle, never = np.arange(len(batch)) == 20, np.zeros(len(batch), bool)
    found = []
    for name in ("last", "terminated", "truncated", ""):
        ends = {n: middle if n == name else never for n in ("last", "terminated", "truncated")}
        found.append(mode.targets(LearnBatch(batch.replace(**ends), {}, None)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


def test_reinforce_weights_likelihoods_by_normalised_returns() -> None:
    policy = make("reinforce", gamma=GAMMA)
    mode, batch = policy.learn_mode(0), ordered_rows(policy)
    obs, action = tensors(batch, "obs", "action")
    with torch.no_grad():
        logp = losses.chosen(mode.net(obs)["logits"].log_softmax(1), action).numpy()
    returns, later = np.zeros(len(batch)), 0.0
    for t in reversed(range(len(batch))):
        later = batch["reward"][t] + (0.0 if batch["last"][t] else GAMMA * later)
        returns[t] = later
    weight = (returns - returns.mean()) / returns.std()
    metrics = mode.forward(batch, policy.command(Count())).metrics
    assert float(metrics["policy_loss"]) == pytest.approx(-(logp * weight).mean(), rel=1e-3)


def test_behavioural_cloning_maximises_the_likelihood_of_the_actions() -> None:
    policy = make("bc", action=DISCRETE)
    mode, batch = policy.learn_mode(0), random_batch(policy)
    obs, action = tensors(batch, "obs", "action")
    with torch.no_grad():
        logp = losses.chosen(mode.net(obs)["logits"].log_softmax(1), action)
    metrics = mode.forward(batch, policy.command(Count())).metrics
    assert float(metrics["loss"]) == pytest.approx(-logp.mean().item(), rel=1e-5)
    assert math.isfinite(float(metrics["grad_norm"]))


def test_pqn_has_the_same_targets_in_every_epoch_and_deals_rows_anew() -> None:
    policy = make("pqn", epochs=2, minibatch_size=16)
    mode, batch = policy.learn_mode(0), ordered_rows(policy)
    expected, seen = mode.targets(LearnBatch(batch, {}, None)), []
    mode.targets = lambda b: expected if not seen else pytest.fail("computed again")

    def recorded(b: LearnBatch, *args: Any) -> Any:
        for m in minibatches(b, *args):
            seen.append(m.obs)
            yield m

    minibatches, LearnBatch.minibatches = LearnBatch.minibatches, recorded  # type: ignore[method-assign]
    try:
        mode.forward(batch, policy.command(Count()))
    finally:
        LearnBatch.minibatches = minibatches  # type: ignore[method-assign]
    one, other = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert not torch.equal(one, other)
    assert not torch.equal(one, torch.from_numpy(batch["obs"]))
    assert sorted(one.tolist()) == sorted(other.tolist()) == sorted(batch["obs"].tolist())


def acted(policy: Algorithm, mode: Any, obs: Array, evaluate: bool) -> Array:
    act = policy.eval_mode(0) if evaluate else policy.collect_mode(0)
    act.load(State(mode.weights(), policy.command(Count(env_steps=10**9))))
    found: Array = act.forward(obs)["action"]
    return found


@pytest.mark.parametrize("name", ["c51", "qrdqn", "iqn", "fqf"])
def test_the_action_with_the_largest_mean_return_is_taken(name: str) -> None:
    policy, mode, batch = learner(name, lr=0.02)
    [obs] = tensors(batch, "obs")
    with torch.no_grad():
        if name == "iqn":
            means = mode.q(obs, tau=torch.from_numpy(acting_fractions()).unsqueeze(0))["q"].mean(1)
        elif name == "fqf":
            heads = mode.q(obs)
            means = (heads["shares"].unsqueeze(2) * heads["q"]).sum(1)
        else:
            q = mode.q(obs)["q"]
            means = q.softmax(2) @ torch.from_numpy(policy.atoms) if name == "c51" else q.mean(2)  # type: ignore[attr-defined]
    found = acted(policy, mode, batch["obs"], evaluate=True)
    np.testing.assert_array_equal(found, means.argmax(1))
    assert len(set(found.tolist())) > 1


@pytest.mark.parametrize(
    "name", ["sac", "tqc", "redq", "crossq", "cql", "td3", "ddpg", "d4pg", "td3bc"]
)
def test_real_valued_actions_explore_when_collecting_and_not_in_evaluations(name: str) -> None:
    policy = make(name)
    mode, obs = policy.learn_mode(0), np.ones((100, 3), np.float32)
    assert acted(policy, mode, obs, evaluate=False).std(0).min() > 0.01
    assert acted(policy, mode, obs, evaluate=True).std(0).max() < 1e-4


@pytest.mark.parametrize("name", FROM_REPLAY)
def test_every_target_network_follows_its_network(name: str) -> None:
    policy = make(name, target={"tau": 0.25})
    mode = policy.learn_mode(0)
    targets = [n for n in vars(mode) if n.endswith("_target")]
    before = {n: getattr(mode, n).params.clone() for n in targets}
    mode.forward(random_batch(policy), policy.command(Count()))
    assert targets
    for n, old in before.items():
        new = getattr(mode, n.removesuffix("_target")).params
        torch.testing.assert_close(getattr(mode, n).params, old + 0.25 * (new - old))


def test_the_defaults_are_those_of_the_papers() -> None:
    rainbow, d4pg, ddpg, td3 = (ALGORITHMS[n].Config() for n in ("rainbow", "d4pg", "ddpg", "td3"))
    redq, crossq = (ALGORITHMS[n].Config() for n in ("redq", "crossq"))
    values: list[tuple[Any, dict[str, Any]]] = [
        (rainbow, {"nstep": 3, "double": True, "dueling": True, "epsilon": 0.0}),
        (d4pg, {"nstep": 5, "critics": 1, "smoothing": 0.0}),
        (ddpg, {"critics": 1, "smoothing": 0.0, "actor_every_iters": 1}),
        (td3, {"critics": 2, "smoothing": 0.2, "smoothing_limit": 0.5, "actor_every_iters": 2}),
        (redq, {"critics": 10, "target_critics": 2, "actor_every_iters": 20}),
        (crossq, {"critics": 2, "actor_every_iters": 3}),
    ]
    for config, expected in values:
        assert {n: getattr(config, n) for n in expected} == expected
    assert configured_part(crossq, "optimiser").config.beta1 == 0.5
    noisy = ALGORITHMS["rainbow"](obs=OBS, action=DISCRETE).learn_mode(0).q.module
    assert has_noise(noisy)


@pytest.mark.parametrize(
    ("name", "expected"), [("redq", [0, 0, 1, 0, 0, 1]), ("crossq", [1, 0, 0, 1, 0, 0])]
)
def test_the_actor_learns_in_every_third_iteration(name: str, expected: list[int]) -> None:
    policy = make(name, actor_every_iters=3)
    mode, moved = policy.learn_mode(0), []
    for seed in range(6):
        before = mode.actor.params.clone()
        mode.forward(random_batch(policy, seed), policy.command(Count()))
        moved.append(int(not torch.equal(before, mode.actor.params)))
    assert moved == expected
