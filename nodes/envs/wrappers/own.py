"""Any wrapper with gymnasium's interface, by its import path."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes.envs.entry_points import import_entry_point
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class ImportedWrapper(Wrapper):
    """Gymnasium's wrappers, or a class or function of one's own: called with the env."""

    class Config(Wrapper.Config):
        id: str = param(
            ..., "such as gymnasium.wrappers:RescaleAction", pattern=r"^[\w.]+:[A-Za-z_]\w*$"
        )
        kwargs: dict[str, Any] = param({}, "its arguments after the env")

    def wrap(self, env: Any) -> Any:
        """The env, as the class or function makes it."""
        return import_entry_point(self.config.id)(env, **self.config.kwargs)
