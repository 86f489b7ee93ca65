"""Recurrent DQN from stored sequences (R2D2: Kapturowski et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.batch import Column
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes import losses
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.value_based import ValueBasedLearnMode

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network


class R2d2(Dqn):
    """Learns action values with a recurrent network; a row of its batches is a sequence.

    A collector outputs single steps with the memory before each, and a `sequence_buffer` cuts
    sequences from them. The first `burn_in_steps` of a sequence only bring the memory up to date.
    """

    reads = ("obs", "next_obs", "action", "reward", "discount", "valid")
    unrolls = "always"

    class Config(Dqn.Config):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default="gru")
        unroll_steps: int = param(20, "steps of a sequence; the same as in the buffer", ge=2)
        burn_in_steps: int = param(
            0, "first steps of a sequence, which only bring the memory up to date", ge=0
        )
        rescale: bool = param(True, "learn h(value), which compresses large values")
        target_steps: int = param(5, "rewards that a target sums within its sequence", ge=1)

    def setup(self) -> None:
        c = self.config
        if c.nstep != 1:
            raise UnsoundError(
                "r2d2 needs rows with one reward", "give `target_steps` instead", "nstep"
            )
        if c.burn_in_steps >= c.unroll_steps:
            what = f"{c.burn_in_steps} of {c.unroll_steps} steps are burn-in, so no step is learned from"
            raise UnsoundError(what, "make `unroll_steps` larger", "unroll_steps")
        if not self.model().memory_columns():
            raise UnsoundError("the model is not recurrent", "take a gru, or dqn", "model")

    @property
    def unroll_steps(self) -> None:
        """None, because collectors output single steps, from which the buffer cuts sequences."""
        return

    def priority_column(self) -> Column:
        return Column("float32", (self.config.unroll_steps,))

    class Learn(ValueBasedLearnMode):
        """Moves the value of each step after the burn-in towards its n-step target."""

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c = self.config
            q = self.action_values(self.q, b)  # (W, T + 1 - burn-in, actions)
            with torch.no_grad():
                q_target = self.action_values(self.q_target, b)
                chooser = q.detach() if c.double else q_target
                v = losses.chosen(q_target, chooser.argmax(2))
            columns = (b.reward, b.discount, b.valid, b.action)
            reward, discount, valid, action = (x[:, c.burn_in_steps :] for x in columns)
            v = losses.restore_value(v) if c.rescale else v
            target = losses.nstep_targets(reward, discount, valid, v, c.target_steps)
            target = losses.rescale_value(target) if c.rescale else target
            q_t = losses.chosen(q[:, :-1], action)
            error = losses.error_loss(c.loss, q_t, target) * valid
            if "weight" in b:
                error = error * b.weight.unsqueeze(1)
            loss = self.mean_where(valid, error)
            norm = self.q.descend(loss, self.now.lr)
            priority = torch.zeros_like(b.reward)
            priority[:, c.burn_in_steps :] = (target - q_t.detach()).abs() * valid
            return {"loss": loss, "q": q_t.mean(), "grad_norm": norm, "priority": priority}

        def action_values(self, net: Network, b: LearnBatch) -> Any:
            """The action values of all steps after the burn-in, and of the last step's next observation."""
            obs, begins = b.joined_obs(), torch.zeros_like(b.valid[:, :1])
            begins = begins.expand(-1, b.valid.shape[1] + 1)  # no episode begins within a sequence
            return net.unroll(obs, getattr(b, MEMORY), begins, self.config.burn_in_steps)["q"]
