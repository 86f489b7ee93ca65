"""Every network goes down the gradient of the loss of its paper.

Metrics show the value of a loss, but not its sign in the step, nor which of its terms have a gradient. Here, each loss
is written out again with its targets as constants, and autograd gives the gradient that the networks must have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flowrl.core.batch import Batch
from flowrl.core.state import Count
from flowrl.nodes import losses
from flowrl.nodes.algorithm import Algorithm
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.networks import Network, TrainableNetwork
from flowrl.nodes.models.numpy_model import acting_fractions
from flowrl.nodes.network_learn_mode import LearnBatch
from tests.nodes.policies.test_corrections import generator_of, ordered_rows, q_of
from tests.nodes.policies.test_every_algorithm import MASKED, REAL, make, random_batch

Losses = dict[str, Tensor]
ALPHA = 0.6  # the temperature of SAC here, which differs from the first one
MSE: dict[str, Any] = {"loss": "mse", "max_grad_norm": None}


class Rows(LearnBatch):
    """A batch as `learn` gets it, and what its algorithm will draw."""

    def __init__(self, policy: Algorithm, mode: Any, batch: Batch) -> None:
        super().__init__(batch, {}, policy.box)
        self.policy, self.generator = policy, generator_of(mode)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the rows (B,), with the weights of a prioritised buffer."""
        found: Tensor = (self.weight * values).mean()
        return found

    def bootstrapped(self, v_tp1: Tensor) -> Tensor:
        """r_t + discount_t v_tp1, of values (B,) or (B, n)."""
        many = v_tp1.dim() - 1
        reward, discount = (x.reshape(-1, *[1] * many) for x in (self.reward, self.discount))
        found: Tensor = (reward + discount * v_tp1).detach()
        return found


def replayed(name: str, **params: Any) -> tuple[Any, Rows, Batch]:
    """A learn mode whose targets and temperature differ from the first ones, and rows with weights."""
    policy = make(name, **params)
    mode, rng = policy.learn_mode(3), np.random.default_rng(9)
    for network in vars(mode).values():
        if isinstance(network, Network):
            network.params.add_(
                torch.from_numpy(rng.normal(0, 0.1, len(network.params)).astype("f4"))
            )
    if hasattr(mode, "log_alpha"):
        mode.log_alpha.params.fill_(math.log(ALPHA))
    batch = random_batch(policy, 50)
    columns = {"weight": rng.uniform(0.2, 2.0, len(batch)).astype(np.float32)}
    if "discount" in batch:
        ends = rng.random(batch["discount"].shape) < 0.3
        columns["discount"] = np.where(ends, 0, 0.9).astype(np.float32)
    if "is_demo" in batch:
        columns["is_demo"] = rng.random(len(batch)) < 0.3
    batch = batch.replace(**columns)
    return mode, Rows(policy, mode, batch), batch


def recent(name: str, **params: Any) -> tuple[Any, Rows, Batch]:
    """A learn mode, and rows of two episodes in their order."""
    policy = make(name, max_grad_norm=None, **params)
    mode, batch = policy.learn_mode(0), ordered_rows(policy)
    return mode, Rows(policy, mode, batch), batch


def gradient_of(loss: Tensor, network: TrainableNetwork) -> Tensor:
    """The gradient of a loss by the parameters of a network, as one vector."""
    parameters = network.parameters
    grads = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([grad.reshape(-1) for grad in grads])


def assert_gradients(mode: Any, batch: Batch, expected: Losses) -> None:
    """Compare the gradients of a train iteration, which changes no weights, with those of the losses."""
    wanted = {name: gradient_of(loss, getattr(mode, name)) for name, loss in expected.items()}
    assert all(gradient.abs().max() > 1e-4 for gradient in wanted.values())
    command = {**mode.policy.command(Count()), "lr": 0.0}
    mode.forward(batch, {**command, "critic_lr": 0.0} if "critic_lr" in command else command)
    for name, gradient in wanted.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            getattr(mode, name).grads, gradient, rtol=1e-3, atol=1e-4 * scale
        )


def squared(b: Rows, q_t: Tensor, target: Tensor) -> Tensor:
    """The squared errors of the critics (B, critics), summed over these."""
    return b.mean((q_t - target.unsqueeze(1)).square().sum(1))


def quantile_loss(z: Tensor, target: Tensor, fractions: Tensor) -> Tensor:
    """sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij) of each row."""
    u = target.unsqueeze(1) - z.unsqueeze(2)
    huber = torch.where(u.abs() < 1, 0.5 * u.square(), u.abs() - 0.5)
    return ((fractions.unsqueeze(-1) - (u < 0).float()).abs() * huber).mean(2).sum(1)


def double_target(mode: Any, b: Rows) -> Tensor:
    best = mode.q(b.next_obs)["q"].argmax(1)
    return b.bootstrapped(losses.chosen(mode.q_target(b.next_obs)["q"], best))


def dqn(mode: Any, b: Rows) -> Losses:
    q_t = losses.chosen(mode.q(b.obs)["q"], b.action)
    return {"q": b.mean((q_t - double_target(mode, b)).square())}


def dqfd(mode: Any, b: Rows) -> Losses:
    q = mode.q(b.obs)["q"]
    raised = q + 0.8 * (1 - torch.eye(4)[b.action])
    margin = raised.amax(1) - losses.chosen(q, b.action)
    return {"q": dqn(mode, b)["q"] + b.mean(margin * b.is_demo)}


def discrete_cql(mode: Any, b: Rows) -> Losses:
    q = mode.q(b.obs)["q"]
    gap = q.exp().sum(1).log() - losses.chosen(q, b.action)
    return {"q": dqn(mode, b)["q"] + 2.0 * b.mean(gap)}


def sql(mode: Any, b: Rows) -> Losses:
    target = b.bootstrapped(0.5 * (mode.q_target(b.next_obs)["q"] / 0.5).exp().sum(1).log())
    return {"q": b.mean((losses.chosen(mode.q(b.obs)["q"], b.action) - target).square())}


def mdqn(mode: Any, b: Rows) -> Losses:
    logp = (mode.q_target(b.obs)["q"] / 0.4).log_softmax(1)
    bonus = 0.9 * (0.4 * losses.chosen(logp, b.action)).clamp(-1, 0)
    v = 0.4 * (mode.q_target(b.next_obs)["q"] / 0.4).exp().sum(1).log()
    target = (bonus + b.bootstrapped(v)).detach()
    return {"q": b.mean((losses.chosen(mode.q(b.obs)["q"], b.action) - target).square())}


def c51(mode: Any, b: Rows) -> Losses:
    atoms = torch.from_numpy(mode.policy.atoms)
    p = mode.q_target(b.next_obs)["q"].softmax(2)
    p_best = losses.chosen_each(p, (p @ atoms).argmax(1))
    target = losses.categorical_projection(atoms, p_best, b.reward, b.discount).detach()
    logp = losses.chosen_each(mode.q(b.obs)["q"], b.action).log_softmax(1)
    return {"q": -b.mean((target * logp).sum(1))}


def qrdqn(mode: Any, b: Rows) -> Losses:
    z = mode.q_target(b.next_obs)["q"]
    target = b.bootstrapped(losses.chosen_each(z, z.mean(2).argmax(1)))
    z_t = losses.chosen_each(mode.q(b.obs)["q"], b.action)
    return {"q": b.mean(quantile_loss(z_t, target, (torch.arange(5) + 0.5) / 5))}


def iqn(mode: Any, b: Rows) -> Losses:
    target_tau, tau = (torch.rand((len(b), 8), generator=b.generator) for _ in range(2))
    fixed = torch.from_numpy(acting_fractions()).unsqueeze(0)
    best = mode.q_target(b.next_obs, tau=fixed)["q"].mean(1).argmax(1)
    z = mode.q_target(b.next_obs, tau=target_tau)["q"].transpose(1, 2)
    z_t = losses.chosen_each(mode.q(b.obs, tau=tau)["q"].transpose(1, 2), b.action)
    return {"q": b.mean(quantile_loss(z_t, b.bootstrapped(losses.chosen_each(z, best)), tau))}


def fqf(mode: Any, b: Rows) -> Losses:
    after, heads = mode.q_target(b.next_obs), mode.q(b.obs)
    best = (after["shares"].unsqueeze(2) * after["q"]).sum(1).argmax(1)
    target = b.bootstrapped(losses.chosen_each(after["q"].transpose(1, 2), best))
    shares = heads["shares"].detach()
    z_t = losses.chosen_each(heads["q"].transpose(1, 2), b.action)
    return {"q": b.mean(quantile_loss(z_t, target, shares.cumsum(1) - shares / 2))}


def r2d2(mode: Any, b: Rows) -> Losses:
    q, q_target = (mode.action_values(net, b) for net in (mode.q, mode.q_target))
    v = losses.chosen(q_target, q.argmax(2))[:, 1:]
    reward, discount, action = (x[:, 1:] for x in (b.reward, b.discount, b.action))  # after burn-in
    target = (reward + discount * v).detach()
    error = (losses.chosen(q[:, :-1], action) - target).square()
    return {"q": (b.weight.unsqueeze(1) * error).mean()}


def drawn(mode: Any, obs: Tensor, b: Rows) -> tuple[Tensor, Tensor]:
    """Actions of SAC's policy and the logarithms of their likelihoods."""
    heads = mode.actor(obs)
    noise = torch.randn(heads["mean"].shape, generator=b.generator)
    return losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)


def temperature_loss(mode: Any, logp: Tensor) -> Tensor:
    """-log alpha (log pi + goal), with a goal of -1 for each of two components."""
    loss: Tensor = -(mode.log_alpha.value * (logp.detach() - 2)).mean()
    return loss


def sac(mode: Any, b: Rows) -> Losses:
    a_tp1, logp_tp1 = drawn(mode, b.next_obs, b)
    target = b.bootstrapped(q_of(mode.critic_target, b.next_obs, a_tp1).amin(1) - ALPHA * logp_tp1)
    a_t, logp_t = drawn(mode, b.obs, b)
    gain = q_of(mode.critic, b.obs, a_t).amin(1) - ALPHA * logp_t
    critic = squared(b, q_of(mode.critic, b.obs, b.unit_action), target)
    return {"critic": critic, "actor": -gain.mean(), "log_alpha": temperature_loss(mode, logp_t)}


def redq(mode: Any, b: Rows) -> Losses:
    a_tp1, logp_tp1 = drawn(mode, b.next_obs, b)
    few = torch.randperm(3, generator=b.generator)[:2]
    q_tp1 = q_of(mode.critic_target, b.next_obs, a_tp1)[:, few].amin(1)
    target = b.bootstrapped(q_tp1 - ALPHA * logp_tp1)
    a_t, logp_t = drawn(mode, b.obs, b)
    gain = q_of(mode.critic, b.obs, a_t).mean(1) - ALPHA * logp_t
    critic = squared(b, q_of(mode.critic, b.obs, b.unit_action), target)
    return {"critic": critic, "actor": -gain.mean(), "log_alpha": temperature_loss(mode, logp_t)}


def tqc(mode: Any, b: Rows) -> Losses:
    a_tp1, logp_tp1 = drawn(mode, b.next_obs, b)
    z = q_of(mode.critic_target, b.next_obs, a_tp1).flatten(1).sort(1).values[:, :6]
    target = b.bootstrapped(z - ALPHA * logp_tp1.unsqueeze(1))
    z_t, tau = q_of(mode.critic, b.obs, b.unit_action), (torch.arange(5) + 0.5) / 5
    error = sum(quantile_loss(z_t[:, k], target, tau) for k in (0, 1)) / 5
    a_t, logp_t = drawn(mode, b.obs, b)
    gain = q_of(mode.critic, b.obs, a_t).mean((1, 2)) - ALPHA * logp_t
    actor, alpha = -gain.mean(), temperature_loss(mode, logp_t)
    return {"critic": b.mean(torch.as_tensor(error)), "actor": actor, "log_alpha": alpha}


def cql(mode: Any, b: Rows) -> Losses:
    a_tp1, logp_tp1 = drawn(mode, b.next_obs, b)
    target = b.bootstrapped(q_of(mode.critic_target, b.next_obs, a_tp1).amin(1) - ALPHA * logp_tp1)
    uniform = 2 * torch.rand((len(b), 4, 2), generator=b.generator) - 1
    here, after = (drawn(mode, obs.unsqueeze(1).repeat(1, 4, 1), b) for obs in (b.obs, b.next_obs))
    action = torch.cat([uniform, here[0], after[0]], 1).detach()
    density = torch.cat([torch.full((len(b), 4), 0.25), here[1].exp(), after[1].exp()], 1).detach()
    many = b.obs.unsqueeze(1).repeat(1, 12, 1)
    sampled = (q_of(mode.critic, many, action).exp() / density.unsqueeze(2)).mean(1).log()
    q_t = q_of(mode.critic, b.obs, b.unit_action)
    critic = squared(b, q_t, target) + 3.0 * b.mean((sampled - q_t).sum(1))
    return {"critic": critic}


def discrete_sac(mode: Any, b: Rows) -> Losses:
    p_tp1 = mode.actor(b.next_obs)["logits"].softmax(1)
    q_tp1 = mode.critic_target(b.next_obs)["q"].amin(1)
    target = b.bootstrapped((p_tp1 * (q_tp1 - ALPHA * p_tp1.log())).sum(1))
    q = mode.critic(b.obs)["q"]  # (B, critics, n)
    q_t = torch.stack([losses.chosen(q[:, k], b.action) for k in (0, 1)], 1)
    p_t = mode.actor(b.obs)["logits"].softmax(1)
    gain = (p_t * (q.detach().amin(1) - ALPHA * p_t.log())).sum(1).mean()
    entropy = -(p_t * p_t.log()).sum(1).mean().detach()
    alpha = mode.log_alpha.value * (entropy - 0.3 * math.log(4))
    return {"critic": squared(b, q_t, target), "actor": -gain, "log_alpha": alpha}


def next_action(mode: Any, b: Rows) -> Tensor:
    """The target actor's actions with noise of deviation 0.2 within 0.5."""
    action: Tensor = mode.actor_target(b.next_obs)["action"].tanh()
    noise = (0.2 * torch.randn(action.shape, generator=b.generator)).clamp(-0.5, 0.5)
    return (action + noise).clamp(-1, 1)


def td3(mode: Any, b: Rows) -> Losses:
    target = b.bootstrapped(q_of(mode.critic_target, b.next_obs, next_action(mode, b)).amin(1))
    a_t = mode.actor(b.obs)["action"].tanh()
    critic = squared(b, q_of(mode.critic, b.obs, b.unit_action), target)
    return {"critic": critic, "actor": -q_of(mode.critic, b.obs, a_t)[:, 0].mean()}


def td3bc(mode: Any, b: Rows) -> Losses:
    a_t = mode.actor(b.obs)["action"].tanh()
    q = q_of(mode.critic, b.obs, a_t)[:, 0]
    near = (a_t - b.unit_action).square().mean()
    return {**td3(mode, b), "actor": -2.5 / q.abs().mean().detach() * q.mean() + near}


def d4pg(mode: Any, b: Rows) -> Losses:
    atoms = torch.from_numpy(mode.policy.atoms)
    a_tp1 = mode.actor_target(b.next_obs)["action"].tanh()
    p = q_of(mode.critic_target, b.next_obs, a_tp1)[:, 0].softmax(1)
    target = losses.categorical_projection(atoms, p, b.reward, b.discount).detach()
    logp = q_of(mode.critic, b.obs, b.unit_action)[:, 0].log_softmax(1)
    a_t = mode.actor(b.obs)["action"].tanh()
    mean = (q_of(mode.critic, b.obs, a_t)[:, 0].softmax(1) * atoms).sum(1)
    return {"critic": -b.mean((target * logp).sum(1)), "actor": -mean.mean()}


def iql(mode: Any, b: Rows) -> Losses:
    q = q_of(mode.critic_target, b.obs, b.action).amin(1).detach()
    error = q - mode.value(b.obs)["v"]
    value = b.mean(torch.where(error < 0, 0.3, 0.7) * error.square())
    logp = losses.chosen(mode.actor(b.obs)["logits"].log_softmax(1), b.action)
    actor = -b.mean((3.0 * error.detach()).exp().clamp(max=100) * logp)
    target = b.bootstrapped(mode.value(b.next_obs)["v"])
    return {
        "value": value,
        "actor": actor,
        "critic": squared(b, q_of(mode.critic, b.obs, b.action), target),
    }


def awac(mode: Any, b: Rows) -> Losses:
    def draw(heads: dict[str, Tensor]) -> Tensor:
        u = torch.rand((len(b), 1), generator=b.generator)
        return (u >= heads["logits"].softmax(1).cumsum(1)[:, :-1]).sum(1)

    q_tp1 = q_of(mode.critic_target, b.next_obs, draw(mode.actor(b.next_obs))).amin(1)
    critic = squared(b, q_of(mode.critic, b.obs, b.action), b.bootstrapped(q_tp1))
    heads = mode.actor(b.obs)
    own = q_of(mode.critic, b.obs, draw(heads)).amin(1)
    advantage = (q_of(mode.critic, b.obs, b.action).amin(1) - own).detach()
    weight = len(b) * advantage.exp() / advantage.exp().sum()
    logp = losses.chosen(heads["logits"].log_softmax(1), b.action)
    return {"critic": critic, "actor": -b.mean(weight * logp)}


def bc(mode: Any, b: Rows) -> Losses:
    p = mode.net(b.obs)["logits"].softmax(1)
    entropy = -(p * p.log()).sum(1).mean()
    return {"net": -b.mean(losses.chosen(p.log(), b.action)) - 0.3 * entropy}


def bc_of_real_actions(mode: Any, b: Rows) -> Losses:
    error = mode.net(b.obs)["action"].tanh() - b.unit_action
    return {"net": b.mean(error.square().mean(1))}


def distillation(mode: Any, b: Rows) -> Losses:
    teacher, logp = (b.scores / 0.5).softmax(1), mode.net(b.obs)["logits"].log_softmax(1)
    return {"net": b.mean((teacher * (teacher.log() - logp)).sum(1))}


FROM_REPLAY: dict[str, tuple[str, dict[str, Any], Callable[[Any, Rows], Losses]]] = {
    "dqn": ("dqn", MSE, dqn),
    "dqfd": ("dqfd", MSE, dqfd),
    "discrete_cql": ("discrete_cql", {**MSE, "conservatism": 2.0}, discrete_cql),
    "sql": ("sql", {**MSE, "alpha": 0.5}, sql),
    "mdqn": ("mdqn", {**MSE, "temperature": 0.4}, mdqn),
    "c51": ("c51", {"max_grad_norm": None}, c51),
    "qrdqn": ("qrdqn", {"max_grad_norm": None, "quantiles": 5}, qrdqn),
    "iqn": ("iqn", {"max_grad_norm": None}, iqn),
    "fqf": ("fqf", {"max_grad_norm": None, "fractions": 4}, fqf),
    "r2d2": ("r2d2", {**MSE, "target_steps": 1, "rescale": False}, r2d2),
    "sac": ("sac", {}, sac),
    "redq": ("redq", {"actor_every_iters": 1}, redq),
    "tqc": ("tqc", {"quantiles": 5}, tqc),
    "cql": ("cql", {"conservatism": 3.0, "samples": 4}, cql),
    "discrete_sac": ("discrete_sac", {}, discrete_sac),
    "td3": ("td3", {}, td3),
    "td3bc": ("td3bc", {}, td3bc),
    "d4pg": ("d4pg", {"critic_lr": 0.02}, d4pg),
    "iql": ("iql", {}, iql),
    "awac": ("awac", {}, awac),
    "bc": ("bc", {"entropy_weight": 0.3}, bc),
    "bc, real actions": ("bc", {"action": REAL}, bc_of_real_actions),
    "distillation": ("distillation", {"temperature": 0.5}, distillation),
}


@pytest.mark.parametrize("case", FROM_REPLAY)
def test_networks_that_learn_from_replay_go_down_their_losses(case: str) -> None:
    name, params, written_out = FROM_REPLAY[case]
    mode, b, batch = replayed(name, **params)
    assert_gradients(mode, batch, written_out(mode, b))


def test_the_fractions_of_fqf_go_down_the_weighted_distance_and_up_the_entropy() -> None:
    mode, b, batch = replayed("fqf", fractions=4, fraction_entropy=0.3)
    heads = mode.q(b.obs)
    shares = heads["shares"]
    tau = shares.cumsum(1)[:, :-1]
    with torch.no_grad():
        z_mid = losses.chosen_each(heads["q"].transpose(1, 2), b.action)
        z = losses.chosen_each(mode.q(b.obs, tau=tau)["q"].transpose(1, 2), b.action)
        slope = 2 * z - z_mid[:, 1:] - z_mid[:, :-1]
    entropy = -(shares * shares.log()).sum(1).mean()
    loss = b.mean((slope * tau).sum(1)) - 0.3 * entropy
    expected = torch.autograd.grad(loss, mode.proposals.parameters)
    found: list[Tensor] = []
    mode.proposals.optimiser.step = lambda grads, lr: found.append(grads.clone())
    mode.forward(batch, mode.policy.command(Count()))
    torch.testing.assert_close(found[0], torch.cat([grad.reshape(-1) for grad in expected]))


def likelihoods(mode: Any, b: Rows) -> tuple[Tensor, Tensor]:
    """The logarithms of the likelihoods of the rows' actions, and the policy's mean entropy."""
    logp = mode.net(b.obs)["logits"].log_softmax(1)
    return losses.chosen(logp, b.action), -(logp.exp() * logp).sum(1).mean()


WEIGHTS = {"value_weight": 0.7, "entropy_weight": 0.3}


def test_a2c_goes_up_the_likelihood_of_advantages_and_the_entropy() -> None:
    mode, b, batch = recent("a2c", **WEIGHTS)
    advantage, target = mode.advantages(b)
    logp, entropy = likelihoods(mode, b)
    value = (mode.net(b.obs)["value"] - target).square().mean()
    loss = -(logp * advantage).mean() + 0.7 * value - 0.3 * entropy
    assert_gradients(mode, batch, {"net": loss})


def test_impala_goes_up_the_likelihood_of_corrected_advantages_and_the_entropy() -> None:
    mode, b, batch = recent("impala", gae_lambda=0.8, **WEIGHTS)
    logp, entropy = likelihoods(mode, b)
    target, advantage = mode.corrected(b, logp.detach() - b.logp)
    value = (mode.net(b.obs)["value"] - target).square().mean()
    loss = -(logp * advantage).mean() + 0.7 * value - 0.3 * entropy
    assert_gradients(mode, batch, {"net": loss})


def test_ppo_goes_up_the_clipped_gain_and_the_entropy() -> None:
    mode, b, batch = recent(
        "ppo", epochs=1, minibatch_size=1000, clip=0.3, dual_clip=1.5, **WEIGHTS
    )
    advantage, target, _ = mode.targets(b)
    logp, entropy = likelihoods(mode, b)
    ratio = (logp - b.logp).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(0.7, 1.3) * advantage)
    gain = torch.where(advantage < 0, torch.max(gain, 1.5 * advantage), gain)
    assert ((advantage < 0) & (ratio > 1.5)).any()
    value = (mode.net(b.obs)["value"] - target).square().mean()
    assert_gradients(mode, batch, {"net": -gain.mean() + 0.7 * value - 0.3 * entropy})


def test_reinforce_goes_up_the_likelihood_of_returns_and_the_entropy() -> None:
    mode, b, batch = recent("reinforce", entropy_weight=0.3, gamma=0.9, normalise_returns=False)
    returns, later = np.zeros(len(batch), np.float32), 0.0
    for t in reversed(range(len(batch))):
        later = batch["reward"][t] + (0.0 if batch["last"][t] else 0.9 * later)
        returns[t] = later
    logp, entropy = likelihoods(mode, b)
    loss = -(logp * torch.from_numpy(returns)).mean() - 0.3 * entropy
    assert_gradients(mode, batch, {"net": loss})


def test_pqn_goes_down_the_squared_errors_of_its_returns() -> None:
    mode, b, batch = recent("pqn", epochs=1, minibatch_size=1000)
    error = losses.chosen(mode.q(b.obs)["q"], b.action) - mode.targets(b)
    assert_gradients(mode, batch, {"q": 0.5 * error.square().mean()})


def test_acer_goes_down_its_three_losses_with_the_weights_of_a_buffer() -> None:
    mode, b, batch = replayed(
        "acer", max_grad_norm=None, ratio_limit=1.2, divergence_slope=1e-3, **WEIGHTS
    )
    heads, average = (mode.unrolled(net, b) for net in (mode.net, mode.net_target))
    logits, q_t = heads["logits"][:, :-1], heads["q"][:, :-1]
    p, logp = logits.softmax(2), logits.log_softmax(2)
    taken = losses.chosen(q_t, b.action)
    with torch.no_grad():
        goal = mode.returns(b, heads["logits"].softmax(2), heads["q"])
        gradient = losses.bias_corrected_gradient(p, b.behaviour, b.action, q_t, goal, 1.2)
        slope = p - average["logits"][:, :-1].softmax(2)  # of KL(average || p) by the logits
        limited = losses.limited_gradient(gradient, slope, 1e-3)
    assert not torch.equal(limited, gradient)
    entropy = -(p * logp).sum(2)
    loss = -(limited * logits).sum(2) + 0.7 * (taken - goal).square() - 0.3 * entropy
    assert_gradients(mode, batch, {"net": (b.weight.unsqueeze(1) * loss).mean()})


def test_the_auxiliary_phase_of_ppg_goes_down_both_errors_and_the_divergence() -> None:
    params = {"auxiliary_every_iters": 100, "auxiliary_epochs": 2, "clone_weight": 2.0}
    mode, b, batch = recent("ppg", minibatch_size=1000, normalise_values=True, **params)
    mode.forward(batch, mode.policy.command(Count()))
    mean, std = mode.return_moments()
    with torch.no_grad():
        old = mode.net(b.obs)["logits"].log_softmax(1)
    mode.net.params.mul_(1.1)  # as after some steps of the phase
    mode.old_heads = lambda _: {"old_logits": old}
    returns = torch.arange(len(batch)) / 10
    target = (returns - mean) / std
    heads, value = mode.net(b.obs), mode.critic(b.obs)["value"]
    logp = heads["logits"].log_softmax(1)
    loss = (
        0.5 * (heads["auxiliary"] - target).square().mean()
        + 2.0 * (old.exp() * (old - logp)).sum(1).mean()
        + 0.5 * (value - target).square().mean()
    )
    nets = (mode.net, mode.critic)
    expected = [gradient_of(loss, net) for net in nets]
    mode.now.lr = 0.0
    for net in nets:
        net.max_grad_norm = None
    mode.learn_auxiliary(LearnBatch(batch.replace(returns=returns.numpy()), {}, None))
    for net, gradient in zip(nets, expected, strict=True):
        torch.testing.assert_close(net.grads, gradient, rtol=1e-3, atol=1e-5)


LEARNING_RATES = [
    "sac",
    "tqc",
    "redq",
    "crossq",
    "cql",
    "discrete_sac",
    "td3",
    "ddpg",
    "d4pg",
    "iql",
    "awac",
]


@pytest.mark.parametrize("name", LEARNING_RATES)
def test_each_learning_rate_moves_its_own_networks(name: str) -> None:
    policy = make(name)
    for still, moving in (("lr", "critic_lr"), ("critic_lr", "lr")):
        mode = policy.learn_mode(0)
        before = {n: getattr(mode, n).params.clone() for n in ("actor", "critic")}
        command = {**policy.command(Count()), still: 0.0, moving: 0.01}
        for seed in range(2):
            mode.forward(random_batch(policy, seed), command)
        moved = {n for n, x in before.items() if not torch.equal(x, getattr(mode, n).params)}
        assert moved == {"critic" if moving == "critic_lr" else "actor"}


def test_the_target_of_c51_is_that_of_an_allowed_action() -> None:
    policy = make("c51", obs=MASKED, model=Mlp(hidden=[32]))
    mode, batch = policy.learn_mode(0), random_batch(policy)
    allowed = np.random.default_rng(3).integers(4, size=len(batch))
    batch = batch.replace(**{"next_obs/action_mask": np.eye(4, dtype=np.int8)[allowed]})
    b, atoms = Rows(policy, mode, batch), torch.from_numpy(policy.atoms)  # type: ignore[attr-defined]
    with torch.no_grad():
        p = losses.chosen_each(mode.q(b.next_obs)["q"].softmax(2), torch.from_numpy(allowed))
        target = losses.categorical_projection(atoms, p, b.reward, b.discount)
        logp = losses.chosen_each(mode.q(b.obs)["q"], b.action).log_softmax(1)
    expected = -(target * logp).sum(1).mean()
    found = mode.forward(batch, policy.command(Count())).metrics["loss"]
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_the_priorities_of_acer_are_the_distances_of_its_values_from_their_targets() -> None:
    mode, b, batch = replayed("acer")
    with torch.no_grad():
        heads = mode.unrolled(mode.net, b)
        goal = mode.returns(b, heads["logits"].softmax(2), heads["q"])
        error = goal - losses.chosen(heads["q"][:, :-1], b.action)
    found = mode.forward(batch, mode.policy.command(Count())).priorities
    np.testing.assert_allclose(found, error.abs(), rtol=1e-4, atol=1e-5)
