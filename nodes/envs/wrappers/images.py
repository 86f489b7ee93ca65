"""Images: gray, smaller, stacked."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes.envs.wrappers.wrapper import Wrapper

LEAF = "leaf of a Dict of observations that is changed; default: the observation"


class Gray(Wrapper):
    """Colour images (H, W, 3) become gray ones (H, W)."""

    class Config(Wrapper.Config):
        leaf: str | None = param(None, LEAF)

    def wrap(self, env: Any) -> Any:
        """The env with gray images; those that are gray already stay."""
        from flowrl.nodes.envs.wrapped.images import make_gray

        return make_gray(env, self.config.leaf)


class Resize(Wrapper):
    """Images (H, W) or (H, W, C) become smaller: each pixel is the mean of the area it stands for."""

    class Config(Wrapper.Config):
        height: int = param(84, "rows of pixels", ge=1)
        width: int = param(84, "columns of pixels", ge=1)
        leaf: str | None = param(None, LEAF)

    def wrap(self, env: Any) -> Any:
        """The env with images of the given size."""
        from flowrl.nodes.envs.wrapped.images import make_resized

        return make_resized(env, (self.config.height, self.config.width), self.config.leaf)
