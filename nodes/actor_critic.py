"""The base of on-policy algorithms: a distribution of actions and a value, on rows in the order of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes.acting import ActingStep, draw, most_likely
from flowrl.nodes.advantages import (
    ADVANTAGE,
    ESTIMATES,
    RETURN,
    VALUE,
    VALUE_WEIGHTS,
    VALUES,
    AdvantageEstimator,
    chosen_columns,
)
from flowrl.nodes.algorithm import Algorithm, Net, UnrollRule
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.distributions import Distribution, distribution_of
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.returns import gae
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork

DEFAULT_MODEL = {
    "type": "auto",
    "hidden": [64, 64],
    "activation": "tanh",
    "init": "orthogonal",
    "shared": False,
}


class ActorCritic(Algorithm):
    """An algorithm with one network for the distribution of actions and for the value of observations."""

    reads: ClassVar[tuple[str, ...]] = (
        "obs", "next_obs", "reward", "discount", "terminated", "truncated", "last", "logp",
    )  # fmt: skip
    unrolls: ClassVar[UnrollRule] = "recurrent"
    on_policy: ClassVar[bool] = True
    learns_across_rows = True
    value_network: ClassVar[str] = (
        "net"  # the name of the network with the head `value`; "": there is none
    )
    # What is computed from the rewards of a token, by the learner or by the collector: these columns.
    estimates: ClassVar[tuple[str, ...]] = (ADVANTAGE, RETURN)

    class Config(Algorithm.Config):
        model: Any = part(
            "model", "the network of policy and value", shared="model", default=DEFAULT_MODEL
        )
        value_weight: float = param(0.5, "weight of the value's error in the loss", ge=0)
        entropy_weight: Scheduled = scheduled(
            0.01, "weight of the policy's entropy in the loss", ge=0
        )
        unroll_steps: int | None = param(
            None, "steps of the unrolls that a recurrent model learns from", ge=1
        )
        eval_draws: bool = param(
            False,
            "evaluations draw actions like collectors; if false, they take the most likely",
            only_acting=True,
        )

    distribution: Distribution

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._check_estimates()

    def setup(self) -> None:
        self.distribution = distribution_of(self.action)

    def networks(self) -> dict[str, Net]:
        heads = {**self.distribution.heads, "value": ScalarHead()}
        masked = "logits" if "logits" in heads else ""
        return {"net": Net(self.model(), {"obs": self.obs}, heads, masked=masked)}

    def acting_heads(self) -> tuple[str, ...]:
        return tuple(self.distribution.heads)

    def collect_columns(self) -> Schema:
        return {**self.distribution.columns, "logp": Column("float32")}

    def learn_columns(self) -> Schema:
        return {**super().learn_columns(), **self.in_rows(self.distribution.columns)}

    def read_columns(self) -> tuple[str, ...]:
        reads = super().read_columns()
        if not self.collector_estimates:
            return reads
        own = reads if self.learns_from_unrolls else [name for name in reads if name != "last"]
        return chosen_columns(own, self.estimates)

    @property
    def collector_estimates(self) -> bool:
        """Whether collectors compute advantages, and not the learner."""
        return getattr(self.config, "advantages", "learner") == "collector"

    @property
    def needs_order(self) -> bool:
        return super().needs_order and not self.collector_estimates

    @property
    def least_rows(self) -> int:
        """Two, if their advantages are normalised: one alone becomes 0, and the policy would stay as it is."""
        names = () if self.learns_from_unrolls else ("normalise_advantages", "normalise_returns")
        return 2 if any(getattr(self.config, name, False) for name in names) else 1

    def _check_estimates(self) -> None:
        """Refuse values that depend on the noise of layers, which is the learner's own."""
        net = self.nets.get(self.value_network)
        if self.collector_estimates and net and getattr(net.model.config, "noisy", False):
            what = "collectors cannot compute the values of a noisy network, whose noise the learner draws"
            raise UnsoundError(
                what, "give it `advantages: learner`, or leave out `noisy`", "advantages"
            )

    def collect_settings(self) -> dict[str, str]:
        found = super().collect_settings()
        return found | {VALUE_WEIGHTS: "policy.advantages"} if self.collector_estimates else found

    def estimated_columns(self) -> Schema:
        if not self.collector_estimates:
            return {}
        return self.in_rows({name: ESTIMATES[name] for name in self.estimates})

    def estimator(self) -> AdvantageEstimator | None:
        return AdvantageEstimator(self) if self.collector_estimates else None

    def estimate(
        self, r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array
    ) -> tuple[Array, Array]:
        """The advantages and returns of rows (N,) in the order of time, on the weights that acted."""
        advantage = gae(r_t, discount_t, v_t, v_tp1, cut_t, self.config.gae_lambda)
        return advantage, advantage + v_t

    def collect_steps(self) -> Sequence[ActingStep]:
        return [draw(self.distribution)]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [(draw if self.config.eval_draws else most_likely)(self.distribution)]


class ActorCriticLearnMode(NetworkLearnMode):
    """Computes heads and values on rows that are steps, or unrolls of steps for a recurrent network."""

    net: TrainableNetwork
    policy: ActorCritic

    def heads(self, b: LearnBatch) -> Mapping[str, Any]:
        """The network's heads on all steps, shaped as `b.reward`."""
        if not self.config.unroll_steps:
            return self.net(b.obs)
        return self.net.unroll(b.obs, b.memory if MEMORY in b else None, begins_of(b.last))

    @property
    def value_network(self) -> Network:
        """The network with the head `value`."""
        network: Network = getattr(self, self.policy.value_network)
        return network

    def weights(self) -> dict[str, Array]:
        found = super().weights()
        if self.policy.collector_estimates:
            found |= {f"{VALUES}{n}": a for n, a in self.value_weights().items()}
        return found

    def value_weights(self) -> dict[str, Array]:
        """What collectors need in order to compute values."""
        if not self.policy.value_network:
            return {}
        model = self.policy.nets[self.policy.value_network].model
        return self.value_network.weights(lambda name: model.is_acting_parameter((VALUE,), name))

    def values(self, b: LearnBatch) -> tuple[Array, Array, Array]:
        """The values of all observations and next observations (N,), and the cuts (N,), in the order of time.

        A row's next observation is that of the row behind it, except at a cut. There, its value is computed, in a
        recurrent network with the memory after the step.
        """
        cut_t = (b.array("last") | b.array("terminated") | b.array("truncated")).reshape(-1)
        cuts = self.tensor(np.flatnonzero(cut_t))
        with torch.no_grad():
            heads = self.heads(b)
            v_t = heads["value"].flatten()
            v_tp1 = v_t.roll(-1)
            v_tp1[cuts] = self._values_at(b, heads, cuts)
        return to_numpy(v_t), to_numpy(v_tp1), cut_t

    def advantages(self, b: LearnBatch) -> tuple[Any, Any]:
        """The advantages and the targets of the value head, shaped as `b.reward`."""
        if self.policy.collector_estimates:
            return self.tensor(b.array(ADVANTAGE)), self.tensor(b.array(RETURN))
        v_t, v_tp1, cut_t = self.values(b)
        reward, discount = (b.array(name) for name in ("reward", "discount"))
        found = self.policy.estimate(reward.reshape(-1), discount.reshape(-1), v_t, v_tp1, cut_t)
        advantage, target = (x.reshape(reward.shape) for x in found)
        return self.tensor(advantage), self.tensor(target)

    def _values_at(self, b: LearnBatch, heads: Mapping[str, Any], cuts: Any) -> Any:
        """The values of the next observations at cuts, which are indices."""
        from flowrl.nodes.models.networks import map_values

        dims = b.last.dim()
        next_obs = map_values(b.next_obs, lambda x: x.flatten(0, dims - 1)[cuts])
        if MEMORY not in heads:
            return self.value_network(next_obs)["value"]
        memory = heads[MEMORY].flatten(0, 1)[cuts]
        begins = torch.zeros((len(memory), 1), dtype=torch.bool, device=memory.device)
        single_steps = map_values(next_obs, lambda x: x.unsqueeze(1))
        return self.net.unroll(single_steps, memory, begins)["value"].squeeze(1)


def begins_of(last: Any) -> Any:
    """The steps (N, T) at which an episode begins, given those after which one ends, within unrolls."""
    begins = torch.zeros_like(last)
    begins[:, 1:] = last[:, :-1]
    return begins
