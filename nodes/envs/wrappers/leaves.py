"""More leaves of the observation: what was done and got last, and what may be done."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class Previous(Wrapper):
    """The last action and reward are observed: leaves `last_action` and `last_reward`.

    An episode begins with zeros. What was not a Dict becomes its leaf `observation`.
    """

    class Config(Wrapper.Config):
        action: bool = param(True, "observe the last action")
        reward: bool = param(True, "observe the last reward")

    def wrap(self, env: Any) -> Any:
        """The env with these leaves."""
        from flowrl.nodes.envs.wrapped.leaves import PreviousStepEnv

        return PreviousStepEnv(env, self.config.action, self.config.reward)


class ActionMask(Wrapper):
    """What `info` says of allowed actions is observed: the leaf `action_mask`, which policies obey.

    What was not a Dict becomes its leaf `observation`.
    """

    class Config(Wrapper.Config):
        key: str = param(
            "action_mask", "of `info`: a number for each action, 0 where it is not allowed"
        )

    def wrap(self, env: Any) -> Any:
        """The env with this leaf."""
        from flowrl.nodes.envs.wrapped.leaves import ActionMaskEnv

        return ActionMaskEnv(env, self.config.key)
