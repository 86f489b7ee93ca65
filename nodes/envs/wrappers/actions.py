"""Actions on their way to the env: sticky, repeated, scaled."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class StickyActions(Wrapper):
    """Now and then the env gets the last action again (Machado et al. 2018, section 5.2)."""

    of_agents = False

    class Config(Wrapper.Config):
        probability: float = param(0.25, "that the last action is taken again", ge=0, lt=1)

    def wrap(self, env: Any) -> Any:
        """The env, less obedient."""
        from flowrl.nodes.envs.wrapped.actions import StickyActionsEnv

        return StickyActionsEnv(env, self.config.probability)


class ActionRepeat(Wrapper):
    """Each action is taken several times; rewards are summed."""

    of_agents = False

    class Config(Wrapper.Config):
        n: int = param(4, "steps of the env in one of the agent", ge=1)
        brightest: bool = param(
            False, "observe the maximum of the last two frames: old consoles draw by turns"
        )

    def wrap(self, env: Any) -> Any:
        """The env in longer steps."""
        from flowrl.nodes.envs.wrapped.actions import ActionRepeatEnv

        return ActionRepeatEnv(env, self.config.n, self.config.brightest)


class ActionScale(Wrapper):
    """Real-valued actions count from -1 to 1, whatever the env's own bounds are."""

    def wrap(self, env: Any) -> Any:
        """The env with such actions."""
        from flowrl.nodes.envs.wrapped.actions import scale_actions

        return scale_actions(env)
