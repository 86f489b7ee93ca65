"""A model one of whose heads obeys the mask of allowed actions that is observed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.node import UnsoundError
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.models.model import Heads, InferenceModel, Model
from flowrl.nodes.observations import NestedColumns, ObsColumns

if TYPE_CHECKING:
    from torch.nn import Module

FORBIDDEN = -1e8  # exp of it is 0, and 0 times it is 0: infinity would make that nothing


def has_mask(obs: ObsColumns, scores: int) -> bool:
    """Whether a mask is observed; it must have a number for each of the scores."""
    if not isinstance(obs, NestedColumns) or ACTION_MASK not in obs.columns:
        return False
    found = obs.columns[ACTION_MASK]
    if found.shape != (scores,):
        what = f"'{ACTION_MASK}' is {found}, and the actions have {scores} scores"
        raise UnsoundError(what, "observe a number for each, 0 where it is not allowed", "env")
    return True


def with_action_mask(model: Model, obs: ObsColumns, head: str, heads: Heads) -> Model:
    """The model; if a mask is observed, what is not allowed is FORBIDDEN in this head."""
    model.check_obs(obs)
    n = getattr(heads.get(head), "n", 0)
    return MaskedModel(model, head) if head in heads and has_mask(obs, n) else model


class MaskedModel(Model):
    """The inner model's network, with its own names of parameters."""

    def __init__(self, model: Model, head: str) -> None:
        super().__init__()
        self.model, self.head = model, head

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        module, head = self.model.network(obs, heads), self.head

        def obey(module: Module, given: tuple[Any, ...], found: dict[str, Any]) -> dict[str, Any]:
            return {**found, head: found[head].masked_fill(given[0][ACTION_MASK] == 0, FORBIDDEN)}

        module.register_forward_hook(obey)
        return module

    def inference_model(
        self, obs: ObsColumns, heads: Heads, wanted: Collection[str]
    ) -> InferenceModel:
        inner = self.model.inference_model(obs, heads, wanted)
        return MaskedInference(inner, self.head) if self.head in wanted else inner

    def memory_columns(self) -> Schema:
        return self.model.memory_columns()

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return self.model.imported_modules(learn)

    def is_acting_parameter(self, wanted: Collection[str], name: str) -> bool:
        return self.model.is_acting_parameter(wanted, name)


class MaskedInference:
    """Acts with the inner model."""

    def __init__(self, inner: InferenceModel, head: str) -> None:
        self.inner, self.head = inner, head

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.inner.load(arrays)

    def __call__(self, obs: Array, *memory: Any) -> dict[str, Array]:
        heads = self.inner(obs, *memory)
        scores = np.where(obs[ACTION_MASK] == 0, np.float32(FORBIDDEN), heads[self.head])
        return {**heads, self.head: scores}
