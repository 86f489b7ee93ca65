"""TRPO (Schulman et al. 2015): the largest step along the natural gradient within a limit of the divergence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.actor_critic import DEFAULT_MODEL, ActorCritic, ActorCriticLearnMode
from flowrl.nodes.advantages import AdvantagePlace, advantages_param
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.devices import to_float, to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork


class Trpo(ActorCritic):
    """Improves the policy on its own data, by one step for each token. Its values have a network of their own."""

    unrolls = "never"
    value_network = "critic"
    refused_settings: ClassVar[Mapping[str, str]] = {
        "precision": "bf16 rounds away the divergences that limit its steps",
        "accumulate": "its step of the policy is that of one token",
    }

    class Config(Algorithm.Config):
        model: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part("model", "the network of values", shared="model", default=DEFAULT_MODEL)
        gae_lambda: float = param(
            0.95, "1: advantages sum all rewards; 0: they rely on the next value", ge=0, le=1
        )
        advantages: AdvantagePlace = advantages_param()
        normalise_advantages: bool = param(
            True, "normalise the advantages of a token to mean 0 and standard deviation 1"
        )
        divergence_limit: Scheduled = scheduled(
            0.01, "limit of the mean divergence KL(old || new) of a step", gt=0
        )
        solver_iters: int = param(10, "conjugate gradient iterations", ge=1)
        damping: float = param(0.1, "added to the diagonal of the Fisher matrix", ge=0)
        shrink: float = param(0.8, "factor of the step after each failed trial", gt=0, lt=1)
        trials: int = param(
            10, "steps tried, each smaller, until one improves the policy within the limit", ge=1
        )
        lr: Scheduled = scheduled(1e-3, "learning rate of the values", ge=0)
        optimiser: Any = part("optimiser", "the optimiser of the values", default="adam")
        max_grad_norm: float | None = param(
            None, "longer gradients of the values are scaled down to this norm; null: none", gt=0
        )
        critic_epochs: int = param(10, "times that the values are learned from each row", ge=1)
        minibatch_size: int = param(128, "rows of one gradient step of the values", ge=1)
        eval_draws: bool = param(
            False,
            "evaluations draw actions like collectors; if false, they take the most likely",
            only_acting=True,
        )

    def networks(self) -> dict[str, Net]:
        heads, seen = self.distribution.heads, {"obs": self.obs}
        masked = "logits" if "logits" in heads else ""
        critic = Net(self.model("critic"), seen, {"value": ScalarHead()})
        return {"net": Net(self.model(), seen, heads, masked=masked), "critic": critic}

    class Learn(ActorCriticLearnMode):
        """One natural gradient step of the policy, and gradient steps of the values in several epochs."""

        critic: TrainableNetwork

        def heads(self, b: LearnBatch) -> Any:
            return {**self.net(b.obs), **self.critic(b.obs)}

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c = self.config
            advantage, target = self.advantages(b)
            if c.normalise_advantages:
                advantage = self.tensor(self.normalised(to_numpy(advantage)))
            b.add(advantage=advantage, target=target)
            found = self.improve_policy(b)
            for _ in range(c.critic_epochs):
                order = self.rng.permutation(b.rows_of_group)
                for m in b.minibatches(["obs", "target"], order, c.minibatch_size):
                    value_loss = (self.critic(m.obs)["value"] - m.target).square().mean()
                    self.critic.descend(value_loss, self.now.lr)
            return {**found, "value_loss": value_loss}

        def improve_policy(self, b: LearnBatch) -> dict[str, Any]:
            """Solve F x = g for the Fisher matrix F, and search along x for a step that improves the policy."""
            c, net, limit = self.config, self.net, self.now.divergence_limit
            heads = net(b.obs)
            # Copies, because the head of the deviations is the parameters, which the search changes.
            old = {name: head.detach().clone() for name, head in heads.items()}
            gain, entropy = self.gain(heads, b)
            gradient = self.gradient(gain, retain_graph=True)
            fisher = self.fisher_product(old, heads)
            direction = losses.conjugate_gradient(fisher, gradient, c.solver_iters)
            step = losses.natural_step(direction, fisher(direction), limit)
            begin, share = net.params.clone(), 0.0
            gain = self.mean_of_group(gain.detach())
            with torch.no_grad():
                for trial in range(c.trials):
                    net.params.copy_(begin + c.shrink**trial * step)
                    heads = net(b.obs)
                    divergence = self.policy.distribution.divergence(old, heads).mean()
                    kl = self.mean_of_group(divergence)
                    better = self.mean_of_group(self.gain(heads, b)[0]) > gain
                    if to_float((kl <= limit) & better):
                        share = c.shrink**trial
                        break
                else:
                    net.params.copy_(begin)
                    kl = torch.zeros_like(gain)
            return {"entropy": entropy, "kl": kl, "step_share": share}

        def gain(self, heads: Any, b: LearnBatch) -> tuple[Any, Any]:
            """The mean of ratio * advantage (equation 14), and of the policy's entropy."""
            logp, entropy = self.policy.distribution.logp_entropy(heads, b)
            return ((logp - b.logp).exp() * b.advantage).mean(), entropy.mean()

        def gradient(self, y: Any, **options: bool) -> Any:
            """The gradient of a number, a mean over the rows of the group, by the policy's parameters."""
            return self.mean_of_group(self.own_gradient(y, **options))

        def own_gradient(self, y: Any, **options: bool) -> Any:
            """The gradient of a number by the policy's parameters, as one vector."""
            grads = torch.autograd.grad(y, self.net.parameters, materialize_grads=True, **options)
            return torch.cat([grad.reshape(-1) for grad in grads])

        def fisher_product(self, old: Any, heads: Any) -> Callable[[Any], Any]:
            """The map x -> (F + damping) x: F x is the gradient of (gradient of the mean divergence) · x."""
            divergence = self.policy.distribution.divergence(old, heads).mean()
            slope = self.own_gradient(divergence, create_graph=True)

            def product(x: Any) -> Any:
                return self.gradient(slope @ x, retain_graph=True) + self.config.damping * x

            return product
