"""Envs of many agents that act at once: PettingZoo's parallel interface."""

from __future__ import annotations

from typing import Any, Literal

from flowrl.config import param
from flowrl.node import Unsound
from flowrl.nodes.envs.entry import entry_point
from flowrl.nodes.envs.gymnasium import Gymnasium

PARALLEL = ("possible_agents", "agents", "observation_space", "action_space", "reset", "step")


class PettingZoo(Gymnasium):
    """Agents that are alike, played as one: they are an axis of observations and of actions.

    The leaf `agents` is (N, …), the leaf `alive` (N,) says who still plays. One policy sees all and acts for all.
    """

    class Config(Gymnasium.Config):
        id: str = param(
            ...,
            "import path of a function or class, such as `mpe2.simple_spread_v3:parallel_env`",
            pattern=r"^[\w.]+:[A-Za-z_]\w*$",
        )
        reward: Literal["sum", "mean"] = param(
            "sum", "what the rewards of the agents become; mean: over all of them, alive or not"
        )

    def bare(self, index: int) -> Any:
        """The env without wrappers, with gymnasium's interface."""
        from flowrl.nodes.envs.joint import Joint

        env = entry_point(self.config.id)(**self.arguments(index))
        missing = [name for name in PARALLEL if not hasattr(env, name)]
        if missing:
            what = f"'{self.config.id}' has no '{missing[0]}'"
            raise Unsound(what, "give an env with PettingZoo's parallel interface", "env.id")
        joint = Joint(env, self.config.reward == "mean")
        limit = self.config.max_episode_steps
        if limit is None:
            return joint
        from gymnasium.wrappers import TimeLimit

        return TimeLimit(joint, limit)
