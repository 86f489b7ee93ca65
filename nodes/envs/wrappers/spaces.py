"""Spaces of wrapped envs, and wrappers that change one leaf of an observation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError
from flowrl.nodes.observations import SEPARATOR

if TYPE_CHECKING:
    from gymnasium.spaces import Box, Dict

OBSERVATION = "observation"  # the leaf of an observation that was not nested before
LEAF_HELP = (
    "the leaf of a Dict observation to change, such as robot/pos; default: the whole observation"
)

ObsFunction = Callable[[Array], Array]


def find_box(env: Any, leaf: str | None, wrapper: str) -> Box:
    """The Box that a wrapper changes: the observation, or one leaf of a Dict."""
    from gymnasium.spaces import Box, Dict

    space = env.observation_space
    boxes = list(_box_leaves(space))
    hint = f"name one with `leaf`: {', '.join(boxes)}" if boxes else "leave the wrapper out"
    for key in _keys(leaf):
        if not isinstance(space, Dict) or key not in space.spaces:
            what = f"{wrapper}: observations {env.observation_space} have no '{leaf}'"
            is_dict = isinstance(env.observation_space, Dict)
            raise UnsoundError(what, hint if is_dict else "leave out `leaf`", "env")
        space = space.spaces[key]
    if not isinstance(space, Box):
        raise UnsoundError(f"{wrapper}: {space} is not a Box", hint, "env")
    return space


def _keys(leaf: str | None) -> list[str]:
    return [] if leaf is None else leaf.split(SEPARATOR)


def _box_leaves(space: Any, path: str = "") -> Iterator[str]:
    """The leaves of a Dict, and of the Dicts in it, that are a Box."""
    from gymnasium.spaces import Box, Dict

    for key, inner in space.spaces.items() if isinstance(space, Dict) else ():
        if isinstance(inner, Box):
            yield f"{path}{key}"
        yield from _box_leaves(inner, f"{path}{key}{SEPARATOR}")


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

    if leaf is None:
        return box
    key, _, inner = leaf.partition(SEPARATOR)
    return Dict({**space.spaces, key: replace_leaf(space.spaces[key], inner or None, box)})


def read_leaf(obs: Any, leaf: str | None) -> Array:
    """The value of this leaf of an observation, or the whole observation (None)."""
    for key in _keys(leaf):
        obs = obs[key]
    return np.asarray(obs)


def write_leaf(obs: Any, leaf: str | None, value: Array) -> Any:
    """A copy of the observation with this value of the leaf, or of the whole observation (None)."""
    if leaf is None:
        return value
    key, _, inner = leaf.partition(SEPARATOR)
    return {**obs, key: write_leaf(obs[key], inner or None, value)}


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
        return write_leaf(obs, leaf, function(read_leaf(obs, leaf)))

    return TransformObservation(env, transform, replace_leaf(env.observation_space, leaf, box))
