"""A model of an agent's values in two parts: what it could do alone, and what others add to it (CollaQ)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.nodes.devices import CPU
from flowrl.nodes.models.heads import Heads
from flowrl.nodes.models.model import InferenceModel, Model
from flowrl.nodes.observations import ObsColumns

if TYPE_CHECKING:
    from torch.nn import Module

ALONE, TOGETHER = "alone", "together"  # the parts, and the prefixes of their parameters
EXCESS = "excess"  # the head of what the second part adds where there is nobody else


class CollaborativeModel(Model):
    """Q(o) = Q_alone(o with zeros in the place of others) + Q_together(o), by two networks of the same form."""

    def __init__(self, model: Model, leaf: str, own: Array) -> None:
        """`own` (F,) is 1 for the entries of the leaf that do not tell about others, and 0 for the rest."""
        super().__init__()
        self.model, self.leaf, self.own = model, leaf, own.astype(np.float32)

    def for_obs(self, obs: ObsColumns) -> Model:
        return CollaborativeModel(self.model.for_obs(obs), self.leaf, self.own)

    def check_obs(self, obs: ObsColumns) -> None:
        self.model.check_obs(obs)

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_collaborative import TorchCollaborative

        values = {"q": heads["q"]}
        alone, together = (self.model.network(obs, values) for _ in (ALONE, TOGETHER))
        return TorchCollaborative(alone, together, self.leaf, self.own, EXCESS in heads)

    def inference_model(
        self,
        obs: ObsColumns,
        heads: Heads,
        wanted: Collection[str],
        rng: np.random.Generator | None = None,
        device: str = CPU,
    ) -> InferenceModel:
        if device != CPU or self.acts_in_torch(obs, heads):
            needed = {name: heads[name] for name in wanted}
            return super().inference_model(obs, needed, wanted, rng, device)
        parts = {
            name: self.model.inference_model(obs, heads, wanted, rng) for name in (ALONE, TOGETHER)
        }
        return NumpyCollaborative(parts, self.leaf, self.own)

    def memory_columns(self) -> Schema:
        return self.model.memory_columns()

    def keeps_batch_statistics(self, obs: ObsColumns) -> bool:
        return self.model.keeps_batch_statistics(obs)

    def acts_in_torch(self, obs: ObsColumns, heads: Heads) -> bool:
        return self.model.acts_in_torch(obs, heads)

    def is_acting_parameter(self, wanted: Sequence[str], name: str) -> bool:
        return self.model.is_acting_parameter(wanted, name.partition(".")[2])


class NumpyCollaborative:
    """Acts by both parts in numpy."""

    def __init__(self, parts: Mapping[str, InferenceModel], leaf: str, own: Array) -> None:
        self.parts, self.leaf, self.own = parts, leaf, own

    def load(self, arrays: Mapping[str, Array]) -> None:
        for part, model in self.parts.items():
            named = {n.partition("."): a for n, a in arrays.items()}
            model.load({name: a for (owner, _, name), a in named.items() if owner == part})

    def __call__(self, obs: Array, memory: Array | None = None) -> dict[str, Array]:
        alone: Any = obs.copy()
        alone[self.leaf] *= self.own
        return {"q": self.parts[ALONE](alone)["q"] + self.parts[TOGETHER](obs)["q"]}
