"""Gymnasium's spaces as wrappers change them, and functions that work on one leaf of an observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import ObservationWrapper
from gymnasium.spaces import Box, Dict

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError

OBSERVATION = "observation"  # the leaf of what was not nested before

Change = Callable[[Array], Array]


def find_box(env: Any, leaf: str | None, who: str) -> Box:
    """The Box that a wrapper changes: the observation, or one leaf of a Dict."""
    space = env.observation_space
    if leaf is not None:
        if not isinstance(space, Dict) or leaf not in space.spaces:
            raise UnsoundError(
                f"{who}: observations {space} have no '{leaf}'", "name a leaf", "env"
            )
        space = space.spaces[leaf]
    if not isinstance(space, Box):
        hint = "name one with `leaf`" if isinstance(space, Dict) else "leave the wrapper out"
        raise UnsoundError(f"{who}: {space} is not a Box", hint, "env")
    return space


def replace_leaf(space: Any, leaf: str | None, changed: Any) -> Any:
    """The observation space with the changed Box in it."""
    return changed if leaf is None else Dict({**space.spaces, leaf: changed})


def find_image_box(env: Any, leaf: str | None, who: str) -> Box:
    """The Box of images, (H, W) or (H, W, C)."""
    box = find_box(env, leaf, who)
    if len(box.shape) not in (2, 3):
        what = f"{who}: observations of shape {box.shape} are no images (H, W) or (H, W, C)"
        raise UnsoundError(what, "put it before frame_stack", "env")
    return box


def box_of_shape(box: Box, shape: tuple[int, ...]) -> Box:
    """A Box of another shape, with the same bounds where these are one number."""
    return Box(box.low.min(), box.high.max(), shape, box.dtype.type)


def add_leaves(space: Any, more: Mapping[str, Any], who: str) -> Dict:
    """The space with further leaves; what was not a Dict becomes the leaf `observation`."""
    leaves = dict(space.spaces) if isinstance(space, Dict) else {OBSERVATION: space}
    taken = sorted(leaves.keys() & more.keys())
    if taken:
        raise UnsoundError(
            f"{who}: observations have a '{taken[0]}' already", "leave one out", "env"
        )
    return Dict({**leaves, **more})


def add_leaf_values(space: Any, obs: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """An observation of the inner space with further leaves."""
    return {**(obs if isinstance(space, Dict) else {OBSERVATION: obs}), **more}


class ObservationTransformEnv(ObservationWrapper):
    """Changes each observation, or one leaf of it, by a function of nothing else."""

    def __init__(self, env: Any, leaf: str | None, box: Box, change: Change) -> None:
        super().__init__(env)
        self._leaf, self._change = leaf, change
        self.observation_space = replace_leaf(env.observation_space, leaf, box)

    def observation(self, observation: Any) -> Any:
        """The changed one."""
        if self._leaf is None:
            return self._change(np.asarray(observation))
        return {**observation, self._leaf: self._change(np.asarray(observation[self._leaf]))}
