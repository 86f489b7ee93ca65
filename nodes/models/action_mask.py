"""Action masks: observations with a leaf `action_mask` say which actions are allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.observations import NestedColumns, ObsColumns

if TYPE_CHECKING:
    from torch import Tensor

FORBIDDEN = -1e8  # exp(-1e8) is 0, and so is 0 * -1e8; with -inf this product would be NaN


def mask_leaf(obs: ObsColumns | None) -> str | None:
    """The leaf of observations that is the action mask; None if there is none."""
    return ACTION_MASK if isinstance(obs, NestedColumns) and ACTION_MASK in obs.columns else None


def has_mask(obs: ObsColumns, scores: int) -> bool:
    """Whether the observations have an action mask; raise if it does not fit the number of scores."""
    if not isinstance(obs, NestedColumns) or mask_leaf(obs) is None:
        return False
    mask = obs.columns[ACTION_MASK]
    if mask.shape != (scores,):
        what = f"'{ACTION_MASK}' is {mask}, and the actions have {scores} scores"
        hint = "the mask must have one number for each score, which is 0 for a forbidden action"
        raise UnsoundError(what, hint, "env")
    return True


def mask_scores(scores: Array, obs: Array, each: bool = False) -> Array:
    """Give forbidden actions the score `FORBIDDEN`, when acting.

    Actions are the last axis of the scores, or with `each`, several numbers for each action, the last but one.
    """
    forbidden = (obs[ACTION_MASK] == 0).reshape(_aligned(scores.ndim, len(scores), each))
    masked: Array = np.where(forbidden, np.float32(FORBIDDEN), scores)
    return masked


def mask_tensor(scores: Tensor, mask: Tensor, each: bool = False) -> Tensor:
    """Give forbidden actions the score `FORBIDDEN`, when learning, by a mask (B, n)."""
    forbidden = (mask == 0).view(_aligned(scores.dim(), scores.shape[0], each))
    return scores.masked_fill(forbidden, FORBIDDEN)


def _aligned(dims: int, rows: int, each: bool) -> tuple[int, ...]:
    """The shape in which a mask (B, n) has its actions along the axis of those of the scores."""
    after = int(each)
    return (rows, *[1] * (dims - 2 - after), -1, *[1] * after)
