"""An env whose spaces, observations, actions and rewards are tuples, with PettingZoo's parallel interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.spaces import Tuple

from flowrl.core.facts import UnsoundError


class TupleAgentsEnv:
    """The agents are `agent_0`, `agent_1`, …, in the order of the tuples. All are active until the episode ends."""

    def __init__(self, env: Any, id: str) -> None:
        self._env, self._id = env, id
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self._spaces = {
            "observation": _spaces_of_agents(env.observation_space, "observations", id),
            "action": _spaces_of_agents(env.action_space, "actions", id),
        }
        counts = [len(spaces) for spaces in self._spaces.values()]
        if counts[0] != counts[1]:
            what = f"'{id}' has observations of {counts[0]} agents, and actions of {counts[1]}"
            raise UnsoundError(what, "give an env with both for each agent", "env.id")
        self.possible_agents = [f"agent_{k}" for k in range(counts[0])]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self._spaces["observation"][self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        return self._spaces["action"][self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        obs, info = self._env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._by_agent("observations", obs), dict.fromkeys(self.agents, info)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """Step all agents; the episode ends for all of them at once."""
        chosen = tuple(actions[agent] for agent in self.possible_agents)
        obs, rewards, terminated, truncated, info = self._env.step(chosen)
        if terminated or truncated:
            self.agents = []
        each = self.possible_agents
        return (
            self._by_agent("observations", obs),
            {agent: float(r) for agent, r in self._by_agent("rewards", rewards).items()},
            dict.fromkeys(each, bool(terminated)),
            dict.fromkeys(each, bool(truncated)),
            dict.fromkeys(each, info),
        )

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _by_agent(self, what: str, values: Sequence[Any]) -> dict[str, Any]:
        agents = self.possible_agents
        if not hasattr(values, "__len__") or len(values) != len(agents):
            raise ValueError(
                f"'{self._id}' gives the {what} {values!r}; expected one for each of {len(agents)} agents"
            )
        return dict(zip(agents, values, strict=True))


def _spaces_of_agents(space: Any, what: str, id: str) -> tuple[Any, ...]:
    if not isinstance(space, Tuple) or not space.spaces:
        hint = "give an env whose spaces are tuples with an entry for each agent; for others, see `flowrl nodes env`"
        raise UnsoundError(f"the {what} of '{id}' are {space}, and no Tuple", hint, "env.id")
    return tuple(space.spaces)
