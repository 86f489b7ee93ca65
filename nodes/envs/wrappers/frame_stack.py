"""The newest frames as one observation."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes.envs.wrappers.images import LEAF
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class FrameStack(Wrapper):
    """Observations (…) become (n, …), the oldest first; an episode begins with n times its first.

    The column says so (`frames`), and a buffer can keep each frame once: see docs/envs.md.
    """

    class Config(Wrapper.Config):
        n: int = param(4, "frames that are seen at once", ge=1)
        leaf: str | None = param(None, LEAF)

    def wrap(self, env: Any) -> Any:
        """The env with stacked observations."""
        from flowrl.nodes.envs.wrapped.frame_stack import FrameStackEnv

        return FrameStackEnv(env, self.config.n, self.config.leaf)
