"""The base of algorithms that learn a value of what all agents do, and decompose it into values of each agent.

Each agent takes the action of the highest value of its own, Q_i(o_i, a_i). A subclass mixes the values of all agents to
Q_tot, such that these actions together have the highest Q_tot, and only Q_tot is learned from rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, epsilon_greedy, greedy
from flowrl.nodes.actor_critic import begins_of
from flowrl.nodes.algorithm import ROW_COLUMNS, Net, UnrollRule
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import ScalarHead, action_values
from flowrl.nodes.models.model import Model
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.multi_agent import ALIVE, MultiAgent, MultiAgentLearnMode
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.observations import ObsColumns
from flowrl.nodes.returns import q_lambda
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network, TrainableNetwork

ENDS = ("last", "terminated", "truncated")  # the columns that say where episodes end within unrolls


class ValueDecomposition(MultiAgent):
    """An algorithm with a network `q` of the values of each agent's actions, which a subclass mixes."""

    actions, other_algorithms = "discrete", "an algorithm for real-valued actions of several agents"
    acting_network = "q"
    unrolls: ClassVar[UnrollRule] = "possible"

    class Config(MultiAgent.Config):
        model: Any = part(
            "model",
            "the network of Q(o, ·), which all agents share",
            shared="model",
            default="auto",
        )
        nstep: int = param(
            1, "rewards that are summed before the target bootstraps, in single rows", ge=1
        )
        unroll_steps: int | None = param(
            None, "steps of the unrolls that are learned from; null: single rows", ge=1
        )
        td_lambda: float = param(
            0.0, "in unrolls, 0: targets bootstrap after one step; 1: at the end", ge=0, le=1
        )
        double: bool = param(
            True, "the online network chooses the next actions, the target network evaluates them"
        )
        dueling: bool = param(False, "Q as a value plus each action's advantage")
        loss: Literal["huber", "mse"] = param("mse", "loss of the temporal-difference error")
        lr: Scheduled = scheduled(5e-4, "learning rate", gt=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        target: TargetRule = follows("how the target networks follow", every_iters=200)
        epsilon: Scheduled = scheduled(
            {"start": 1.0, "end": 0.05, "env_steps": 50_000},
            "share of random actions of each agent when collecting",
            ge=0,
            le=1,
        )

    def setup(self) -> None:
        c = self.config
        if c.unroll_steps is None and c.td_lambda:
            what = "`td_lambda` is for unrolls, and the rows are single steps"
            raise UnsoundError(what, "give `unroll_steps`, or `nstep` instead", "td_lambda")
        if c.unroll_steps is not None and c.nstep != 1:
            what = "`nstep` sums rewards of single rows, and the rows are unrolls"
            raise UnsoundError(what, "give `td_lambda` instead", "nstep")

    def networks(self) -> dict[str, Net]:
        return {"q": self.value_net(self.model()), **self.mixing_networks()}

    def value_net(self, model: Model) -> Net:
        """A network of the values of one agent's actions, with its target network."""
        heads = {"q": action_values(self.action_size, self.config.dueling)}
        return Net(model, {"obs": self.own_obs}, heads, target=self.config.target, masked="q")

    def mixing_networks(self) -> dict[str, Net]:
        """The networks that mix the values of all agents, by name."""
        return {}

    def mixing_net(self, model: Model, **more: Column) -> Net:
        """A network from `values` of all agents, the `state` and more inputs to one value, with its target network."""
        values = Column("float32", (self.agents.count,))
        inputs: dict[str, ObsColumns] = {"values": values, "state": self.agents.state, **more}
        return Net(model, inputs, {"total": ScalarHead()}, target=self.config.target)

    def learn_columns(self) -> Schema:
        found = super().learn_columns()
        if self.learns_from_unrolls:
            return {**found, **self.in_rows({name: ROW_COLUMNS[name] for name in ENDS})}
        return found

    def collect_steps(self) -> Sequence[ActingStep]:
        return [epsilon_greedy("q")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [greedy("q")]


class ValueDecompositionLearnMode(MultiAgentLearnMode):
    """Moves Q_tot(s_t, a_t) towards r_t + discount_t Q_tot(s_tp1, a_tp1), with the best actions of each agent."""

    q: TrainableNetwork
    q_target: Network
    policy: ValueDecomposition

    def mix(self, q: Tensor, action: Tensor, obs: Mapping[str, Tensor], target: bool) -> Tensor:
        """Q_tot (…) of the actions (…, N), given the values (…, N, n) of all actions of each agent."""
        raise NotImplementedError(f"{type(self).__name__} does not define mix")

    def mixers(self) -> list[TrainableNetwork]:
        """The networks that learn together with `q`."""
        return [getattr(self, name) for name in self.policy.nets if name != "q"]

    def learn(self, b: LearnBatch) -> dict[str, Any]:
        heads, q_tp1 = self.values(self.q, b)
        target = self.targets(b, q_tp1)
        total = self.mix(heads["q"], b.action, b.obs, target=False)
        loss = self.mean_loss(b, self.error_loss(total, target))
        further = self.further_losses(heads, b)
        norm = self.q.descend(sum(further.values(), loss), self.now.lr, self.mixers())
        return {"loss": loss, **further, "grad_norm": norm, **self.found(total, target)}

    def further_losses(self, heads: Mapping[str, Tensor], b: LearnBatch) -> dict[str, Tensor]:
        """Losses beside that of Q_tot, by name, given the heads of `q`."""
        return {}

    def found(self, total: Tensor, target: Tensor) -> dict[str, Any]:
        """The metrics of values, and the priorities of the rows."""
        error = (target - total.detach()).abs()
        priority = error.mean(1) if error.dim() > 1 else error
        return {"q": total.mean(), "priority": priority}

    def error_loss(self, total: Tensor, target: Tensor) -> Tensor:
        """The loss of each step."""
        return losses.error_loss(self.config.loss, total, target)

    def mean_loss(self, b: LearnBatch, loss: Tensor) -> Tensor:
        """The mean of the losses of steps (B,) or (B, T)."""
        mean: Tensor = b.weighted_mean(loss.mean(1) if loss.dim() > 1 else loss)
        return mean

    def targets(self, b: LearnBatch, q_tp1: Tensor) -> Tensor:
        """What Q_tot is moved towards, given the online values of all next actions."""
        with torch.no_grad():
            _, target_tp1 = self.values(self.q_target, b)
            chooser = q_tp1 if self.config.double else target_tp1
            v_tp1 = self.mix(target_tp1, chooser.argmax(-1), b.next_obs, target=True)
        return self.bootstrapped(b, v_tp1)

    def bootstrapped(self, b: LearnBatch, v_tp1: Tensor) -> Tensor:
        """The targets, given the values of the next steps: after one step, or Peng's Q(lambda) in unrolls."""
        if not (self.config.unroll_steps and self.config.td_lambda):
            one_step: Tensor = b.reward + b.discount * v_tp1
            return one_step
        reward, discount = (b.array(name).reshape(-1) for name in ("reward", "discount"))
        v = to_numpy(v_tp1).reshape(-1)
        found = q_lambda(reward, discount, v, cuts(b).reshape(-1), self.config.td_lambda)
        targets: Tensor = self.tensor(found.reshape(b.array("reward").shape))
        return targets

    def values(self, network: Network, b: LearnBatch) -> tuple[dict[str, Tensor], Tensor]:
        """The heads of each agent, such as `q` (…, N, n), and the values of the next step, without a gradient."""
        if not network.recurrent:
            with torch.no_grad():
                q_tp1 = network(self.own(b.next_obs))["q"]
            return network(self.own(b.obs)), q_tp1
        heads = self.unroll(network, b.obs, b.memory, begins_of(b.last))
        with torch.no_grad():
            q_tp1 = heads["q"].detach().roll(-1, 1)
            at = self.tensor(np.flatnonzero(cuts(b)))
            obs = {leaf: x.flatten(0, 1)[at].unsqueeze(1) for leaf, x in b.next_obs.items()}
            memory, goes_on = heads[MEMORY].flatten(0, 1)[at], torch.zeros_like(obs[ALIVE][..., 0])
            after = self.unroll(network, obs, memory, goes_on.bool())["q"].squeeze(1)
            q_tp1.flatten(0, 1)[at] = after
        return heads, q_tp1


def cuts(b: LearnBatch) -> Array:
    """The steps (B, T) of unrolls after which another episode or unroll begins."""
    found: Array = b.array("last") | b.array("terminated") | b.array("truncated")
    return found
