"""Masks one head of a model by the observed action mask."""

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

FORBIDDEN = -1e8  # exp(-1e8) is 0, and so is 0 * -1e8; with -inf this product would be NaN


def has_mask(obs: ObsColumns, scores: int) -> bool:
    """Whether the observations have an action mask; raise if it does not fit the number of scores."""
    if not isinstance(obs, NestedColumns) or ACTION_MASK not in obs.columns:
        return False
    mask = obs.columns[ACTION_MASK]
    if mask.shape != (scores,):
        what = f"'{ACTION_MASK}' is {mask}, and the actions have {scores} scores"
        hint = "the mask must have one number for each score, which is 0 for a forbidden action"
        raise UnsoundError(what, hint, "env")
    return True


def with_action_mask(model: Model, obs: ObsColumns, head: str, heads: Heads) -> Model:
    """Check that the model fits the observations; if they have an action mask, mask `head` by it."""
    model.check_obs(obs)
    n = getattr(heads.get(head), "n", 0)
    return MaskedModel(model, head) if head in heads and has_mask(obs, n) else model


class MaskedModel(Model):
    """Wraps a model, and gives forbidden actions the score `FORBIDDEN`. Parameters keep their names."""

    def __init__(self, model: Model, head: str) -> None:
        super().__init__()
        self.model, self.head = model, head

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        module, head = self.model.network(obs, heads), self.head

        def mask(module: Module, args: tuple[Any, ...], heads: dict[str, Any]) -> dict[str, Any]:
            forbidden = args[0][ACTION_MASK] == 0
            return {**heads, head: heads[head].masked_fill(forbidden, FORBIDDEN)}

        module.register_forward_hook(mask)
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
    """Wraps an inference model, and masks one head."""

    def __init__(self, inner: InferenceModel, head: str) -> None:
        self.inner, self.head = inner, head

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.inner.load(arrays)

    def __call__(self, obs: Array, *memory: Any) -> dict[str, Array]:
        heads = self.inner(obs, *memory)
        scores = np.where(obs[ACTION_MASK] == 0, np.float32(FORBIDDEN), heads[self.head])
        return {**heads, self.head: scores}
