"""Games in which agents act in turn, or several at once: each step of the env returns one record of all agents.

An agent's step begins with its action. It is complete when the agent is to act again, or when its episode has ended;
its reward is what the agent received meanwhile. `TurnBasedEnv` has the interface of an ordinary env. `AgentRows` (in
`agent_rows.py`) takes its records apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.nodes.envs.agent_columns import ACTED, ACTIVE, COMPLETED, TRUNCATED
from flowrl.nodes.envs.agent_groups import Groups
from flowrl.nodes.envs.group_records import make_writer
from flowrl.nodes.envs.wrappers.wrapper import Wrappers


class Turn(NamedTuple):
    """An agent is to act, or its episode has ended."""

    agent: str
    obs: Any
    reward: float  # since the agent's last turn
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]


class TurnGame(Protocol):
    """A game as `TurnBasedEnv` plays it."""

    @property
    def possible_agents(self) -> Sequence[str]: ...

    def observation_space(self, agent: str) -> Any: ...

    def action_space(self, agent: str) -> Any: ...

    def reset(self, seed: int | None, options: Any) -> Iterable[Turn]:
        """Begin a game; return the turns of the agents that act first."""

    def step(self, actions: Mapping[str, Any]) -> Iterable[Turn]:
        """Take the actions of all agents whose turn it is; return the turns that follow.

        These are one for each agent that acts next, and one for each agent whose episode has ended.
        """

    def cut(self) -> Iterable[Turn]:
        """The last turns of all agents whose episode has not ended, if the game ends now."""

    def render(self) -> Any: ...

    def close(self) -> None: ...


class TurnBasedEnv:
    """The episode of the env ends when no agent acts any more."""

    def __init__(
        self,
        game: TurnGame,
        wrappers: Wrappers,
        max_steps: int | None,
        info: Schema | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Each agent has `wrappers` of its own. After `max_steps` steps of the env, all episodes are truncated.

        `info` lists the entries of each agent's info that are written into the record. `groups` are the names of the
        agents in each group; without it all agents have the same columns.
        """
        self._game, self._max_steps = game, max_steps
        self._writer = make_writer(game, groups, wrappers, info or {}, turns=True)
        self.agents = self._writer.columns
        self._dtype = self.agents.record.dtype

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        self._writer.begin_game(seed)
        self._actions: dict[str, Any] = {}  # of the agents whose step is not complete
        record = np.zeros((), self._dtype)
        self._active = self._write_turns(record, self._game.reset(seed, options))
        if not self._active:
            raise ValueError("no agent acts after the reset")
        return record[()], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the actions of the agents whose turn it is; those chosen for the others have no effect."""
        chosen = self._writer.actions_of(action, self._active)
        self._actions.update(chosen)
        record = np.zeros((), self._dtype)
        self._writer.mark(record, ACTED, self._active)
        unwrapped = {a: self._writer.unwrap_action(a, act) for a, act in chosen.items()}
        turns = [*self._game.step(unwrapped)]
        self._steps += 1
        if self._steps == self._max_steps:
            ended = [turn for turn in turns if turn.terminated or turn.truncated]
            turns = [*ended, *self._game.cut()]
        self._active = self._write_turns(record, turns)
        over = not self._active
        truncated = over and bool(self._writer.marked(record, TRUNCATED))
        reward = self._writer.total_reward(record)
        infos = {turn.agent: dict(turn.info) for turn in turns}
        return record[()], reward, over and not truncated, truncated, infos

    @property
    def metadata(self) -> Any:
        return getattr(self._game, "metadata", {})

    def render(self) -> Any:
        return self._game.render()

    @property
    def layers(self) -> list[Any]:
        """The outermost wrapper of each agent: data that these carry from episode to episode is saved."""
        return self._writer.layers

    def close(self) -> None:
        self._game.close()

    def _write_turns(self, record: Array, turns: Iterable[Turn]) -> list[str]:
        """Write what each turn completes and begins; return the agents that act next."""
        obs: dict[str, Any] = {}
        active = []
        for turn in turns:
            agent = turn.agent
            if agent not in self._writer:
                raise ValueError(f"agent {agent} acts and is not one of the env's possible_agents")
            if agent in obs:
                raise ValueError(
                    f"agent {agent} has two turns in one step; an agent whose episode has ended may "
                    "begin another one in a later step"
                )
            obs[agent] = self._write_turn(record, turn)
            if not (turn.terminated or turn.truncated):
                active.append(agent)
        self._writer.write_obs(record, obs)
        self._writer.mark(record, ACTIVE, active)
        # the value of a truncated episode's last observation is that of the best allowed action
        self._writer.allow_some_action(record, [agent for agent in obs if agent not in active])
        return active

    def _write_turn(self, record: Array, turn: Turn) -> Any:
        """Complete the agent's step, if it has one; return what the agent observes, as its wrappers leave it."""
        agent, obs, reward, *flags, info = turn
        if agent in self._actions:
            self._writer.mark(record, COMPLETED, [agent])
            result = obs, reward, *flags, info
            wrapped = self._writer.complete_step(record, agent, self._actions.pop(agent), result)
        else:
            # the rewards before an agent's first action belong to none of its steps
            wrapped = self._writer.begin_episode(agent, obs, info)
            self._writer.count_reward(agent, reward)
            self._writer.write_ends(record, agent, *flags)
        return wrapped
