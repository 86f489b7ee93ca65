"""QPLEX (Wang et al. 2021): the value of what all agents do from values and advantages, without further limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.batch import Column
from flowrl.core.config import param
from flowrl.nodes.algorithm import Net
from flowrl.nodes.lazy import functional
from flowrl.nodes.losses import chosen
from flowrl.nodes.models.mixers import DuelingMixer
from flowrl.nodes.value_decomposition import ValueDecomposition, ValueDecompositionLearnMode

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class Qplex(ValueDecomposition):
    """Learns Q_tot = sum_i V_i + sum_i lambda_i(s, a) A_i, which is highest where each A_i is 0, and otherwise free."""

    class Config(ValueDecomposition.Config):
        mixing_heads: int = param(4, "attention heads of the weights of advantages", ge=1)
        hyper_width: int = param(64, "hidden width of the networks that give the weights", ge=1)

    def mixing_networks(self) -> dict[str, Net]:
        c, agents = self.config, self.agents
        mixer = DuelingMixer(heads=c.mixing_heads, hyper_width=c.hyper_width)
        each = Column("float32", (agents.count,))
        actions = Column("float32", (agents.count * self.action_size,))
        return {"mixer": self.mixing_net(mixer, best=each, acts=each, actions=actions)}

    class Learn(ValueDecompositionLearnMode):
        """Mixes the values of the taken actions and of the best ones."""

        mixer: TrainableNetwork
        mixer_target: Network

        def mix(self, q: Any, action: Any, obs: Any, target: bool) -> Any:
            mixer = self.mixer_target if target else self.mixer
            acts = self.alive(obs)
            actions = functional.one_hot(action, q.shape[-1]) * acts.unsqueeze(-1)
            return mixer(
                values=chosen(q, action),
                state=self.state_of(obs),
                best=q.amax(-1),
                acts=acts,
                actions=actions.flatten(-2),
            )["total"]
