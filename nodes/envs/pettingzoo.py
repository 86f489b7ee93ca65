"""Envs of many agents that act at once: PettingZoo's parallel interface."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.nodes.envs.agent_rows import AgentColumns
from flowrl.nodes.envs.entry_points import import_entry_point
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.parallel_api import require_parallel_api
from flowrl.nodes.envs.wrappers.wrapper import select_for_purpose
from flowrl.nodes.observations import ObsColumns


class PettingZoo(Gymnasium):
    """Agents that are alike: played as one by a policy that sees them all, or each for itself.

    As one (`joint`) they are an axis of observations and of actions: the leaf `agents` is (N, …), the
    leaf `alive` (N,) says who still plays. Each for itself (`shared`) is as an env of its own.
    """

    class Config(Gymnasium.Config):
        id: str = param(
            ...,
            "import path of a function or class, such as `mpe2.simple_spread_v3:parallel_env`",
            pattern=r"^[\w.]+:[A-Za-z_]\w*$",
        )
        agents: Literal["joint", "shared"] = param(
            "joint",
            "one policy sees all agents and acts for all; or they share it, and each acts for itself",
        )
        reward: Literal["sum", "mean"] | None = param(
            None,
            "`joint`: what the agents' rewards become, by default their sum; mean: over all of "
            "them, alive or not",
        )

        @model_validator(mode="after")
        def rewards_that_are_shared(self) -> Any:
            """Who acts for itself gets its own reward."""
            if self.agents == "shared" and self.reward is not None:
                raise ValueError(
                    "`reward` is for `agents: joint`; agents that act for themselves get each its "
                    "own: leave it out"
                )
            return self

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._agents: AgentColumns | None = None

    def spec(self) -> tuple[ObsColumns, Column]:
        """The columns of what an env observes and takes."""
        agents = self.each_agent()
        return super().spec() if agents is None else (agents.record, agents.actions)

    def each_agent(self) -> AgentColumns | None:
        """The agents, if each is a row of its own; one env is made to see them."""
        if self._agents is None and self.config.agents == "shared":
            env = self.make(0)
            self._agents = env.agents
            env.close()
        return self._agents

    def make(self, index: int) -> Any:
        """One more env; `index` counts the envs of all managers that are replicas of one."""
        if self.config.agents == "joint":
            return super().make(index)
        from flowrl.nodes.envs.shared_agents import SharedAgentsEnv

        wrappers = select_for_purpose(self.config.wrappers, "collect")
        return SharedAgentsEnv(self._parallel(index), wrappers, self.config.max_episode_steps)

    def bare(self, index: int) -> Any:
        """All agents as one, without wrappers, with gymnasium's interface."""
        from flowrl.nodes.envs.joint_agents import JointAgentsEnv

        joint = JointAgentsEnv(self._parallel(index), self.config.reward == "mean")
        limit = self.config.max_episode_steps
        if limit is None:
            return joint
        from gymnasium.wrappers import TimeLimit

        return TimeLimit(joint, limit)

    def _parallel(self, index: int) -> Any:
        env = import_entry_point(self.config.id)(**self.arguments(index))
        require_parallel_api(env, self.config.id)
        return env
