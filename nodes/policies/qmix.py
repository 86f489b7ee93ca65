"""QMIX (Rashid et al. 2018): the value of what all agents do is a monotonic function of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import param
from flowrl.nodes.algorithm import Net
from flowrl.nodes.losses import chosen
from flowrl.nodes.models.mixers import MonotonicMixer
from flowrl.nodes.value_decomposition import ValueDecomposition, ValueDecompositionLearnMode

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class Qmix(ValueDecomposition):
    """Learns Q_tot(s, a) = f_s(Q_1, …, Q_N), where f increases with each Q_i and its weights depend on the state."""

    class Config(ValueDecomposition.Config):
        mixing_width: int = param(32, "width of the mixing network", ge=1)
        hyper_width: int = param(
            64,
            "hidden width of the networks that give its weights; 0: they have no hidden layer",
            ge=0,
        )

    def mixing_networks(self) -> dict[str, Net]:
        c = self.config
        mixer = MonotonicMixer(width=c.mixing_width, hyper_width=c.hyper_width)
        return {"mixer": self.mixing_net(mixer)}

    class Learn(ValueDecompositionLearnMode):
        """Mixes the values of the agents that act; those of others are 0."""

        mixer: TrainableNetwork
        mixer_target: Network

        def mix(self, q: Any, action: Any, obs: Any, target: bool) -> Any:
            mixer = self.mixer_target if target else self.mixer
            values = chosen(q, action) * self.alive(obs)
            return mixer(values=values, state=self.state_of(obs))["total"]
