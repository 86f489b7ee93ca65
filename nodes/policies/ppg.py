"""PPG (Cobbe et al. 2021): PPO, and an auxiliary phase that teaches values to the policy's network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes.algorithm import Net
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.observations import SEPARATOR
from flowrl.nodes.policies.ppo import Ppo

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork

VALUES_MODEL = {"type": "auto", "hidden": [64, 64], "activation": "tanh", "init": "orthogonal"}


class Ppg(Ppo):
    """PPO with a network of its own for values; the policy's network learns them, too, in a phase between."""

    unrolls = "never"
    value_network = "critic"

    class Config(Ppo.Config):
        model: Any = part(
            "model", "the network of the policy", shared="model", default=VALUES_MODEL
        )
        critic: Any = part("model", "the network of values", shared="model", default=VALUES_MODEL)
        epochs: int = param(1, "times that each row is learned from in the policy phase", ge=1)
        auxiliary_every_iters: int = param(
            32, "train iterations from one auxiliary phase to the next, which uses their rows", ge=1
        )
        auxiliary_epochs: int = param(
            6, "times that each row is learned from in the auxiliary phase", ge=1
        )
        clone_weight: float = param(
            1.0, "weight of the divergence that keeps the policy as it was in this phase", ge=0
        )

    def setup(self) -> None:
        super().setup()
        if self.config.unroll_steps is not None:
            what = "ppg learns from single steps"
            raise UnsoundError(what, "leave out `unroll_steps`, or take ppo", "unroll_steps")
        if not getattr(self.model().for_obs(self.obs), "shares_trunk", True):
            what = "the auxiliary phase has no effect on the policy: no layer is shared with the values"
            raise UnsoundError(what, "leave out `shared: false`", "model")

    def networks(self) -> dict[str, Net]:
        heads, seen = {**self.distribution.heads, "auxiliary": ScalarHead()}, {"obs": self.obs}
        masked = "logits" if "logits" in heads else ""
        critic = Net(self.model("critic"), seen, {"value": ScalarHead()})
        return {"net": Net(self.model(), seen, heads, masked=masked), "critic": critic}

    class Learn(Ppo.Learn):
        """Policy phases of PPO; after every so many of them, an auxiliary phase on the rows of all."""

        critic: TrainableNetwork
        policy: Ppg

        def begin(self) -> None:
            super().begin()
            self.rows = StoredRows()

        def heads(self, b: LearnBatch) -> Any:
            return {**self.net(b.obs), **self.critic(b.obs)}

        def step(self, loss: Any) -> Any:
            return self.net.descend(loss, self.now.lr, also=[self.critic])

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            found = super().learn(b)
            mean, std = self.return_moments()
            returns = to_numpy(b.target) * std + mean
            places = self.rows.rows_of_group + b.places
            columns = {**select_obs(b), "returns": returns, "place": places}
            self.rows.add(columns, b.rows_of_group)
            if (self.iters + 1) % self.config.auxiliary_every_iters == 0:
                rows = self.rows.take()
                found |= self.learn_auxiliary(
                    LearnBatch(rows, {}, None, self.compute, rows["place"])
                )
            return found

        def learn_auxiliary(self, b: LearnBatch) -> dict[str, Any]:
            """Algorithm 1: descend 1/2 (V_aux - G)^2 + beta KL(old || new) for the policy, and 1/2 (V - G)^2."""
            c, distribution = self.config, self.policy.distribution
            mean, std = self.return_moments()
            old = self.old_heads(b)
            b.add(target=(b.returns - mean) / std, **old)
            for _ in range(c.auxiliary_epochs):
                order = self.rng.permutation(b.rows_of_group)
                for m in b.minibatches(["obs", "target", *old], order, c.minibatch_size):
                    heads = self.heads(m)
                    before = {name: getattr(m, f"old_{name}") for name in distribution.heads}
                    kl = distribution.divergence(before, heads).mean()
                    auxiliary = 0.5 * (heads["auxiliary"] - m.target).square().mean()
                    value = 0.5 * (heads["value"] - m.target).square().mean()
                    self.step(auxiliary + c.clone_weight * kl + value)
            return {"auxiliary_loss": auxiliary, "clone_kl": kl}

        def old_heads(self, b: LearnBatch) -> dict[str, Any]:
            """The parameters of the policy's distribution before the phase, by name behind `old_`."""
            with torch.no_grad():
                pieces = [self.net(m.obs) for m in b.pieces(["obs"], self.config.minibatch_size)]
            names = self.policy.distribution.heads
            return {f"old_{n}": torch.cat([heads[n] for heads in pieces]) for n in names}


def select_obs(b: LearnBatch) -> dict[str, Array]:
    """The columns of the observations, which are several if they are nested."""
    prefix, columns = "obs" + SEPARATOR, b.batch
    assert columns is not None
    return {n: columns[n] for n in columns if n == "obs" or n.startswith(prefix)}


class StoredRows:
    """Columns of rows, kept from several tokens until they are taken."""

    def __init__(self) -> None:
        self.tokens: list[dict[str, Array]] = []
        self.rows_of_group = 0  # of all learners of the group, if there are several

    def add(self, columns: Mapping[str, Array], rows_of_group: int) -> None:
        """Add a copy of a token's columns. The group has so many rows in this token."""
        self.tokens.append({name: np.array(column) for name, column in columns.items()})
        self.rows_of_group += rows_of_group

    def take(self) -> Batch:
        """Remove all rows, and return them in their order."""
        tokens, self.tokens, self.rows_of_group = self.tokens, [], 0
        return Batch({name: np.concatenate([t[name] for t in tokens]) for name in tokens[0]})

    def state_dict(self) -> dict[str, Any]:
        return {
            "tokens": [dict(token) for token in self.tokens],
            "rows_of_group": self.rows_of_group,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tokens = [{n: np.array(x) for n, x in token.items()} for token in state["tokens"]]
        self.rows_of_group = int(state["rows_of_group"])
