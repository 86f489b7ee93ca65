"""Spaces of wrapped envs, and wrappers that change one leaf of an observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError

if TYPE_CHECKING:
    from gymnasium.spaces import Box, Dict

OBSERVATION = "observation"  # the leaf of an observation that was not nested before
LEAF_HELP = "the leaf of a Dict observation to change; default: the whole observation"

ObsFunction = Callable[[Array], Array]


def find_box(env: Any, leaf: str | None, wrapper: str) -> Box:
    """The Box that a wrapper changes: the observation, or one leaf of a Dict."""
    from gymnasium.spaces import Box, Dict

    space = env.observation_space
    if leaf is not None:
        if not isinstance(space, Dict) or leaf not in space.spaces:
            raise UnsoundError(
                f"{wrapper}: observations {space} have no '{leaf}'", "name one of its leaves", "env"
            )
        space = space.spaces[leaf]
    if not isinstance(space, Box):
        hint = "name one with `leaf`" if isinstance(space, Dict) else "leave the wrapper out"
        raise UnsoundError(f"{wrapper}: {space} is not a Box", hint, "env")
    return space


def find_image_box(env: Any, leaf: str | None, wrapper: str) -> Box:
    """The Box of images, (H, W) or (H, W, C)."""
    box = find_box(env, leaf, wrapper)
    if len(box.shape) not in (2, 3):
        what = f"{wrapper}: observations of shape {box.shape} are no images (H, W) or (H, W, C)"
        raise UnsoundError(what, "put it before frame_stack", "env")
    return box


def replace_leaf(space: Any, leaf: str | None, box: Any) -> Any:
    """The observation space with this Box as the leaf, or as the whole observation (None)."""
    from gymnasium.spaces import Dict

    return box if leaf is None else Dict({**space.spaces, leaf: box})


def box_of_shape(box: Box, shape: tuple[int, ...]) -> Box:
    """A Box of another shape, between the least and the greatest bound of this one."""
    return type(box)(box.low.min(), box.high.max(), shape, box.dtype.type)


def add_leaves(space: Any, more: Mapping[str, Any], wrapper: str) -> Dict:
    """The space with further leaves; an observation that was not a Dict becomes the leaf `observation`."""
    from gymnasium.spaces import Dict

    leaves = dict(space.spaces) if isinstance(space, Dict) else {OBSERVATION: space}
    duplicates = sorted(leaves.keys() & more.keys())
    if duplicates:
        raise UnsoundError(
            f"{wrapper}: observations have a '{duplicates[0]}' already", "leave one out", "env"
        )
    return Dict({**leaves, **more})


def is_dict_space(space: Any) -> bool:
    from gymnasium.spaces import Dict

    return isinstance(space, Dict)


def add_leaf_values(obs: Any, more: Mapping[str, Any], is_dict: bool) -> dict[str, Any]:
    """An observation, of a Dict space or not, with the values of further leaves."""
    return {**(obs if is_dict else {OBSERVATION: obs}), **more}


def transform_observation(env: Any, leaf: str | None, box: Box, function: ObsFunction) -> Any:
    """Wrap the env so that `function` is applied to each observation, or to one leaf of it; `box` is the result's."""
    from gymnasium.wrappers import TransformObservation

    def transform(obs: Any) -> Any:
        if leaf is None:
            return function(np.asarray(obs))
        return {**obs, leaf: function(np.asarray(obs[leaf]))}

    return TransformObservation(env, transform, replace_leaf(env.observation_space, leaf, box))
