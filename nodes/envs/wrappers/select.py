"""A wrapper that lets an agent observe only some components, for example to hide velocities."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.wrappers.spaces import LEAF_HELP, find_box, transform_observation
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class Select(Wrapper):
    """Keeps some components of a vector. Without the others, the policy may need a memory."""

    class Config(Wrapper.Config):
        keep: list[int] = param(..., "indices of the components that are observed", min_length=1)
        leaf: str | None = param(None, LEAF_HELP)

    def wrap(self, env: Any) -> Any:
        keep, leaf = list(self.config.keep), self.config.leaf
        box = find_box(env, leaf, "select")
        if len(box.shape) != 1:
            what = f"select: observations of shape {box.shape} are no vectors"
            raise UnsoundError(what, "name a leaf that is one, or leave the wrapper out", "env")
        outside = [index for index in keep if not 0 <= index < box.shape[0]]
        if outside or len(set(keep)) < len(keep):
            what = f"select: of {box.shape[0]} components, keep is {keep}"
            raise UnsoundError(what, f"name some of 0 to {box.shape[0] - 1}, each once", "env")
        kept = type(box)(box.low[keep], box.high[keep], dtype=box.dtype.type)
        return transform_observation(env, leaf, kept, lambda obs: obs[keep])
