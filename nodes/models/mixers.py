"""Models that mix the values of agents to one value of what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.nodes.models.heads import Heads
from flowrl.nodes.models.model import Model
from flowrl.nodes.observations import ObsColumns, leaf_columns

if TYPE_CHECKING:
    from torch.nn import Module


class MonotonicMixer(Model):
    """A network from the values (N,) of agents to one, whose weights are positive and depend on the state."""

    class Config(BaseConfig):
        width: int = param(32, "width of the hidden layer", ge=1)
        hyper_width: int = param(64, "hidden width of the networks that give the weights", ge=0)

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_mixers import TorchMonotonicMixer

        agents, state = _sizes(obs)
        return TorchMonotonicMixer(agents, state, self.config.width, self.config.hyper_width)


class DuelingMixer(Model):
    """A network from the values and advantages (N,) of agents to one value, with positive weights of advantages."""

    class Config(BaseConfig):
        heads: int = param(4, "attention heads of the weights of advantages", ge=1)
        hyper_width: int = param(64, "hidden width of the networks that give the weights", ge=1)

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_mixers import TorchDuelingMixer

        agents, state = _sizes(obs)
        [actions] = leaf_columns(obs)["actions"].shape
        return TorchDuelingMixer(agents, state, actions, self.config.heads, self.config.hyper_width)


def _sizes(obs: Any) -> tuple[int, int]:
    """The number of agents, and that of the state's features."""
    columns = leaf_columns(obs)
    [agents], [state] = columns["values"].shape, columns["state"].shape
    return agents, state
