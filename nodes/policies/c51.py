"""C51 (Bellemare, Dabney & Munos 2017): the distribution of returns on fixed atoms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, expected_values
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import Head, action_values
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.value_based import ValueBased, ValueBasedLearnMode


class C51(ValueBased):
    """Learns the distribution of each action's return, as probabilities of fixed atoms."""

    masks_head = False

    class Config(ValueBased.Config):
        double: bool = param(
            False, "the online network chooses the next action, the target network evaluates it"
        )
        dueling: bool = param(False, "logits as those of the state plus those of each action")
        atoms: int = param(51, "the number of returns that have a probability", ge=2)
        v_min: float = param(-10.0, "the smallest of these returns; smaller ones count as it")
        v_max: float = param(10.0, "the largest of these returns; larger ones count as it")

    def setup(self) -> None:
        c = self.config
        if c.v_min >= c.v_max:
            what = f"the returns go from {c.v_min:g} to {c.v_max:g}"
            raise UnsoundError(what, "make `v_max` larger than `v_min`", "v_max")
        self.atoms = np.linspace(c.v_min, c.v_max, c.atoms, dtype=np.float32)

    def head(self) -> Head:
        return action_values(self.action_size, self.config.dueling, self.config.atoms)

    def score_steps(self) -> Sequence[ActingStep]:
        return [expected_values("q", self.atoms)]

    class Learn(ValueBasedLearnMode):
        """Moves the distribution of Z(s_t, a_t) towards that of r_t + discount_t * Z_target(s_tp1, a_tp1)."""

        policy: C51

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            atoms = self.tensor(self.policy.atoms)
            with torch.no_grad():
                p_tp1 = self.q_target(b.next_obs)["q"].softmax(-1)  # (B, n, atoms)
                chooser = self.q(b.next_obs)["q"].softmax(-1) if self.config.double else p_tp1
                best = self.best_actions(chooser @ atoms, b.next_obs)
                p_best = losses.chosen_each(p_tp1, best)
                target_t = losses.categorical_projection(atoms, p_best, b.reward, b.discount)
            logp_t = losses.chosen_each(self.q(b.obs)["q"], b.action).log_softmax(-1)
            cross_entropy = -(target_t * logp_t).sum(-1)
            loss = b.weighted_mean(cross_entropy)
            norm = self.q.descend(loss, self.now.lr)
            with torch.no_grad():
                divergence = cross_entropy + torch.special.xlogy(target_t, target_t).sum(-1)
                mean = (logp_t.exp() @ atoms).mean()
            return {
                "loss": loss,
                "q": mean,
                "grad_norm": norm,
                "priority": divergence.clamp_(min=0),
            }
