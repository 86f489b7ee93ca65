"""PettingZoo's turn-based envs (AEC), as games for `TurnBasedEnv`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.entry_points import require_interface
from flowrl.nodes.envs.parallel_api import while_no_other_is_made
from flowrl.nodes.envs.turn_based import Turn

INTERFACE = (
    *("possible_agents", "observation_space", "action_space", "reset", "step"),
    *("last", "observe"),
)


def require_turn_based_api(env: Any, id: str) -> None:
    """Raise `UnsoundError` if an env does not have this interface."""
    require_interface(env, f"'{id}'", INTERFACE, "give an env with PettingZoo's AEC interface")
    if not env.possible_agents:
        raise UnsoundError("the env has no possible agents", "give an env that has some", "env")


class PettingZooTurns:
    """Plays an env as a loop over its `agent_iter` would."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.metadata = getattr(env, "metadata", {})

    @property
    def possible_agents(self) -> Sequence[str]:
        agents: Sequence[str] = self._env.possible_agents
        return agents

    def observation_space(self, agent: str) -> Any:
        return self._env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self._env.action_space(agent)

    def reset(self, seed: int | None, options: Any) -> list[Turn]:
        self._env.reset(seed=seed, options=options)
        return [*self._turns()]

    def step(self, actions: Mapping[str, Any]) -> list[Turn]:
        (action,) = actions.values()
        self._env.step(action)
        return [*self._turns()]

    def cut(self) -> list[Turn]:
        return [*self._last_turns()]

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        with while_no_other_is_made():
            self._env.close()

    def _turns(self) -> Iterator[Turn]:
        """The turns of agents whose episode has ended, which take no action, and then that of the next agent."""
        while self._env.agents:
            agent = self._env.agent_selection
            turn = Turn(agent, *self._env.last())
            yield turn
            if not (turn.terminated or turn.truncated):
                return
            self._env.step(None)

    def _last_turns(self) -> Iterator[Turn]:
        env = self._env
        for agent in [*env.agents]:
            terminated, truncated = env.terminations[agent], env.truncations[agent]
            reward = env._cumulative_rewards[agent]
            obs, info = env.observe(agent), env.infos[agent]
            yield Turn(agent, obs, reward, terminated, truncated or not terminated, info)
