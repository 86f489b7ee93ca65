"""Envs of many agents with PettingZoo's interfaces: agents act simultaneously, or in turn."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.agent_columns import AgentColumns, GroupColumns
from flowrl.nodes.envs.agent_groups import AgentGroups, Agents, Groups, Team, group_agents
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
    """Several agents: one policy observes them all and acts for all, or each acts by itself.

    With `joint`, agents are an axis of observations and actions: the leaf `agents` is (N, …), and the leaf `alive` (N,)
    is 1 for active agents. With `shared`, each agent is as an env of its own, and agents may act in turn. Both are for
    agents with equal spaces; with `groups`, those of a group have equal spaces, and each group a policy of its own.
    """

    class Config(Gymnasium.Config):
        id: str = param(
            ...,
            "import path of a function or class, such as `mpe2.simple_spread_v3:parallel_env`, or for agents that act "
            "in turn `pettingzoo.classic.tictactoe.tictactoe:env`",
            pattern=r"^[\w.]+:[A-Za-z_]\w*$",
        )
        agents: Agents = param(
            "joint",
            "`joint`: one policy observes all agents and acts for all; `shared`: each acts by itself; "
            "`{groups: …}`: agents that differ, with a policy for each group",
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
            if self.agents == "joint":
                return self
            if self.state:
                what = "`state` is for `agents: joint`, where one policy learns for all agents"
                raise UnsoundError(what, "leave it out", "state")
            if self.reward is not None:
                given = "shared" if self.agents == "shared" else "{groups: …}"
                raise UnsoundError(
                    "`reward` is for `agents: joint`",
                    f"with `agents: {given}` each agent gets its own reward: leave it out",
                    "reward",
                )
            if isinstance(self.info, list) and self.info:
                name = self.info[0]
                hint = f"write `info: {{{name}: float32}}`"
                raise UnsoundError("`info` of agents needs types", hint, "info")
            return self

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._columns: AgentColumns | GroupColumns | None = None

    def spec(self) -> tuple[ObsColumns, Column]:
        if self.config.agents == "joint":
            return super().spec()
        columns = self._columns_of_agents()
        return columns.record, columns.actions

    def agent_columns(self) -> AgentColumns | None:
        """The agents, if each is a row of its own and all are alike."""
        if self.config.agents != "shared":
            return None
        columns = self._columns_of_agents()
        assert isinstance(columns, AgentColumns)
        return columns

    def group_columns(self) -> GroupColumns | None:
        """The agents, if they are in groups."""
        if not isinstance(self.config.agents, AgentGroups):
            return None
        columns = self._columns_of_agents()
        assert isinstance(columns, GroupColumns)
        return columns

    def _columns_of_agents(self) -> AgentColumns | GroupColumns:
        """The columns of agents that act by themselves; one env is made to find them."""
        if self._columns is None:
            with probe_env(lambda: self.make(0), self.config.id) as env:
                self._columns = env.agents
        columns: AgentColumns | GroupColumns = self._columns
        return columns

    def make(self, index: int) -> Any:
        if self.config.agents == "joint":
            return super().make(index)
        from flowrl.nodes.envs.pettingzoo_turns import PettingZooTurns, require_turn_based_api
        from flowrl.nodes.envs.shared_agents import SharedAgentsEnv
        from flowrl.nodes.envs.teams import with_teams
        from flowrl.nodes.envs.turn_based import TurnBasedEnv

        wrappers = select_for_purpose(self.config.wrappers, "collect")
        limit, info = self.config.max_episode_steps, info_columns(self)
        env = self._make_env(index)
        if acts_in_turn(env):
            require_turn_based_api(env, self.config.id)
            game = PettingZooTurns(env)
            return TurnBasedEnv(game, wrappers, limit, info, self._groups_in_turn(game))
        require_parallel_api(env, self.config.id)
        if not isinstance(self.config.agents, AgentGroups):
            return SharedAgentsEnv(env, wrappers, limit, info)
        env, groups = with_teams(env, self.config.agents)
        return SharedAgentsEnv(env, wrappers, limit, info, groups)

    def _groups_in_turn(self, game: Any) -> Groups | None:
        setting = self.config.agents
        if not isinstance(setting, AgentGroups):
            return None
        given = setting.groups if isinstance(setting.groups, dict) else {}
        for name, one in given.items():
            if isinstance(one, Team) and one.agents == "joint":
                what = f"the agents of '{self.config.id}' act in turn, and those of a team at once: {name}"
                raise UnsoundError(what, "leave `agents: joint` of the group out", "env.agents")
        return group_agents(setting, game)

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
