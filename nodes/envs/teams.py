"""A parallel env of which some agents are teams: what a team observes and does has its members as an axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.agent_groups import AgentGroups, Team, group_agents
from flowrl.nodes.envs.joint_agents import JointAgents


class TeamsEnv:
    """Each team is one agent, which is active as long as any of its members is; the other agents stay as they are."""

    def __init__(self, env: Any, teams: Mapping[str, JointAgents]) -> None:
        self._env, self._teams = env, teams
        self.metadata = getattr(env, "metadata", {})
        members = {agent for team in teams.values() for agent in team.names}
        self._others = [agent for agent in env.possible_agents if agent not in members]
        self.possible_agents = [*teams, *self._others]

    @property
    def agents(self) -> list[str]:
        """The teams and agents that act in the next step."""
        active = set(self._env.agents)
        teams = [name for name, team in self._teams.items() if active.intersection(team.names)]
        return [*teams, *(agent for agent in self._others if agent in active)]

    def observation_space(self, agent: str) -> Any:
        if agent in self._teams:
            return self._teams[agent].observation_space
        return self._env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        if agent in self._teams:
            return self._teams[agent].action_space
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        obs, infos = self._env.reset(seed=seed, options=options)
        joint = {
            name: self._teams[name].observe(obs) for name in self.agents if name in self._teams
        }
        return self._of_others(obs) | joint, self._of_others(infos)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        before, active = set(self.agents), list(self._env.agents)
        chosen = self._of_others(actions)
        for name in before.intersection(self._teams):
            chosen |= self._teams[name].actions(actions[name])
        stepped = self._env.step({agent: chosen[agent] for agent in active})
        obs, rewards, terminated, truncated, infos = map(self._of_others, stepped)
        after = self.agents
        for name, team in self._teams.items():
            if name in before:
                result = team.results(active, stepped)
                obs[name], rewards[name], over, cut, infos[name] = result
                # a team goes on with a member that joins as the last one leaves
                terminated[name], truncated[name] = (
                    over and name not in after,
                    cut and name not in after,
                )
            elif name in after:
                obs[name], infos[name] = team.observe(stepped[0]), {}
        return obs, rewards, terminated, truncated, infos

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _of_others(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of agents that are in no team."""
        return {agent: value for agent, value in values.items() if agent in self._others}


def with_teams(env: Any, setting: AgentGroups) -> tuple[Any, dict[str, list[str]]]:
    """The env with a team in place of each group that acts jointly, and the agents of each group."""
    groups = group_agents(setting, env)
    given = setting.groups if isinstance(setting.groups, Mapping) else {}
    joint = {n: t for n, t in given.items() if isinstance(t, Team) and t.agents == "joint"}
    if not joint:
        return env, groups
    for name in joint:
        if any(name in agents for other, agents in groups.items() if other != name):
            what = f"the team {name} has the name of an agent of another group"
            raise UnsoundError(what, "give the group another name", "env.agents")
    teams = {
        name: JointAgents(env, groups[name], team.reward == "mean", team.state)
        for name, team in joint.items()
    }
    return TeamsEnv(env, teams), {**groups, **{name: [name] for name in teams}}
