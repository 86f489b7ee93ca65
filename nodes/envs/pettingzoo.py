"""Envs of many agents with PettingZoo's interfaces: agents act simultaneously, or in turn."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.nodes.envs.agent_rows import AgentColumns
from flowrl.nodes.envs.entry_points import import_entry_point
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.info import info_columns
from flowrl.nodes.envs.parallel_api import (
    acts_in_turn,
    require_parallel_api,
    while_no_other_is_made,
)
from flowrl.nodes.envs.spec import probe_env
from flowrl.nodes.envs.wrappers.wrapper import select_for_purpose
from flowrl.nodes.observations import ObsColumns


class PettingZoo(Gymnasium):
    """Agents with equal spaces: one policy observes them all and acts for all, or each acts by itself.

    With `joint`, agents are an axis of observations and actions: the leaf `agents` is (N, …), and the leaf `alive` (N,)
    is 1 for active agents. With `shared`, each agent is as an env of its own, and agents may act in turn.
    """

    class Config(Gymnasium.Config):
        id: str = param(
            ...,
            "import path of a function or class, such as `mpe2.simple_spread_v3:parallel_env`, or for agents that act "
            "in turn `pettingzoo.classic.tictactoe.tictactoe:env`",
            pattern=r"^[\w.]+:[A-Za-z_]\w*$",
        )
        agents: Literal["joint", "shared"] = param(
            "joint",
            "`joint`: one policy observes all agents and acts for all; `shared`: each acts by itself",
        )
        reward: Literal["sum", "mean"] | None = param(
            None,
            "for `joint`: the sum of the agents' rewards (the default), or their mean over all agents, active or not",
        )
        state: bool = param(
            False,
            "for `joint`: the env's own state is observed as the leaf `state`, for policies that learn from it",
        )

        @model_validator(mode="after")
        def check_shared(self) -> Any:
            if self.agents == "shared" and self.state:
                raise ValueError(
                    "`state` is for `agents: joint`, where one policy learns for all agents; leave it out"
                )
            if self.agents == "shared" and self.reward is not None:
                raise ValueError(
                    "`reward` is for `agents: joint`; with `agents: shared` each agent gets its own "
                    "reward: leave it out"
                )
            if self.agents == "shared" and isinstance(self.info, list) and self.info:
                name = self.info[0]
                raise ValueError(f"`info` of agents needs types; write `info: {{{name}: float32}}`")
            return self

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._agents: AgentColumns | None = None

    def spec(self) -> tuple[ObsColumns, Column]:
        agents = self.agent_columns()
        return super().spec() if agents is None else (agents.record, agents.actions)

    def agent_columns(self) -> AgentColumns | None:
        """The agents, if each is a row of its own; one env is made to find them."""
        if self._agents is None and self.config.agents == "shared":
            with probe_env(lambda: self.make(0), self.config.id) as env:
                self._agents = env.agents
        return self._agents

    def make(self, index: int) -> Any:
        if self.config.agents == "joint":
            return super().make(index)
        from flowrl.nodes.envs.pettingzoo_turns import PettingZooTurns, require_turn_based_api
        from flowrl.nodes.envs.shared_agents import SharedAgentsEnv
        from flowrl.nodes.envs.turn_based import TurnBasedEnv

        wrappers = select_for_purpose(self.config.wrappers, "collect")
        limit, info = self.config.max_episode_steps, info_columns(self)
        env = self._make_env(index)
        if acts_in_turn(env):
            require_turn_based_api(env, self.config.id)
            return TurnBasedEnv(PettingZooTurns(env), wrappers, limit, info)
        require_parallel_api(env, self.config.id)
        return SharedAgentsEnv(env, wrappers, limit, info)

    def make_unwrapped(self, index: int) -> Any:
        from gymnasium.wrappers import TimeLimit

        from flowrl.nodes.envs.joint_agents import JointAgentsEnv

        env = self._make_env(index)
        require_parallel_api(env, self.config.id)
        joint = JointAgentsEnv(env, self.config.reward == "mean", self.config.state)
        limit = self.config.max_episode_steps
        return joint if limit is None else TimeLimit(joint, limit)

    def _make_env(self, index: int) -> Any:
        with while_no_other_is_made():
            return import_entry_point(self.config.id)(**self.arguments(index))
