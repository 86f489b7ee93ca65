"""Plays games of two sides with fixed policies: one policy for each side, and the same episodes for all pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.context import Context
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.actor import Actor
from flowrl.nodes.collectors.episodes import episode_quotas
from flowrl.nodes.collectors.match_rows import MatchEnvs
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.spec import EnvSpec, evaluation_part
from flowrl.nodes.greedy_policy import GreedyPolicy
from flowrl.nodes.policy import AnyActMode

SIDES = 2
MOST_ENVS = 10  # side by side
MOST_STEPS = 100_000  # of a game; a longer one may never end


class PlayedGame(NamedTuple):
    """The result of a game."""

    seed: int  # of the env's episode
    returns: tuple[float, float]  # of both sides
    length: int  # in steps of the env


class TwoSidedGames:
    """Plays the same games again and again: the seed of each one's episode follows from `seed` and its number.

    The env has two agents that are rows of their own (`agents: shared`).
    """

    def __init__(self, env: Any, games: int, seed: int = 0, explores: bool = False) -> None:
        """With `explores`, policies act as in collectors; otherwise greedily, as in evaluators."""
        self._games, self._explores = games, explores
        self._ctx = Context("tournament", seed=seed)
        part = evaluation_part(env)
        _require_two_sides(env_spec(part, 1))
        self._manager = SerialEnvManager(env=part, count=min(games, MOST_ENVS), context=self._ctx)
        self._envs = MatchEnvs(self._manager)
        self.spec: EnvSpec = self._envs.rows.spec()

    def require_fit(self, policy: GreedyPolicy) -> None:
        """Refuse a policy for other observations or actions than those of a side."""
        found = policy.policy
        if (found.obs, found.action) != (self.spec.obs, self.spec.action):
            what = (
                f"its policy maps {found.obs} to {found.action}, and a side of the games observes {self.spec.obs} "
                f"and acts with {self.spec.action}"
            )
            raise UnsoundError(what, "only runs in envs with the same spaces can play")

    def play(self, first: GreedyPolicy, second: GreedyPolicy, purpose: str) -> list[PlayedGame]:
        """Play all games, the first policy on side 0. What policies draw follows from the seed and the purpose."""
        seeds = [self._ctx.seed_for(f"act/{purpose}/{side}") for side in range(SIDES)]
        modes = [p.act_mode(s, self._explores) for p, s in zip((first, second), seeds, strict=True)]
        rows = self._envs.rows
        rows.seed(self._ctx.seed_for("episodes"), dynamic_seeds=False)
        actor = Actor(rows, {})
        actor.set_mode(SideModes(modes, self.spec.action), {"action": self.spec.action})
        actor.reset()
        left = episode_quotas(self._games, self._envs.count)
        played: list[list[PlayedGame]] = [[] for _ in left]
        lengths = np.zeros_like(left)
        # How many games each env plays is fixed, so that short games are not preferred.
        while left.any():
            playing = np.flatnonzero(left)
            actor.step((playing[:, None] * SIDES + np.arange(SIDES)).reshape(-1))
            lengths[playing] += 1
            for match in self._envs.take_ended():
                lengths[match.env] = 0
                if not match.failed:
                    one, other = match.returns.tolist()
                    game = PlayedGame(match.seed, (one, other), match.length)
                    played[match.env].append(game)
                    left[match.env] -= 1
            _require_end(lengths)
        return [game for of_env in played for game in of_env]

    def close(self) -> None:
        self._manager.close()


def _require_end(lengths: Array) -> None:
    if (lengths >= MOST_STEPS).any():
        raise ValueError(
            f"a game has not ended after {MOST_STEPS:,} steps; give the env `max_episode_steps`"
        )


def _require_two_sides(spec: EnvSpec) -> None:
    if spec.agents != SIDES:
        rows = "one row" if spec.agents == 1 else f"{spec.agents} rows"
        what = f"its env has {rows} of actions in each step; a game has two sides, which act by themselves"
        raise UnsoundError(what, "take an env of two agents with `agents: shared`")


class SideModes:
    """An act mode in which each side of the envs acts with a mode of its own: row 2i + k is side k of env i."""

    def __init__(self, modes: Sequence[AnyActMode], action: Column) -> None:
        self._modes: Sequence[Any] = modes
        self._action = action
        self._memories: list[Schema] = [getattr(mode, "memory", {}) for mode in modes]
        self.memory: Schema = {
            _name_of_side(side, name): column
            for side, memory in enumerate(self._memories)
            for name, column in memory.items()
        }

    def load(self, state: State) -> None:
        """Nothing: each side's mode has its weights."""

    def forward(self, obs: Array, memory: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Map the observations of both sides to their actions and their memory."""
        remembered = memory or {}
        action = np.empty((len(obs), *self._action.shape), self._action.dtype)
        output = {name: np.array(array) for name, array in remembered.items()}
        for side, (mode, columns) in enumerate(zip(self._modes, self._memories, strict=True)):
            rows = slice(side, None, SIDES)
            # contiguous, because the results of BLAS depend on it
            own_obs = np.ascontiguousarray(obs[rows])
            own = {n: np.ascontiguousarray(output[_name_of_side(side, n)][rows]) for n in columns}
            found = mode.forward(own_obs, own) if own else mode.forward(own_obs)
            action[rows] = found["action"]
            for name in columns:
                output[_name_of_side(side, name)][rows] = found[name]
        return {**output, "action": action}


def _name_of_side(side: int, name: str) -> str:
    return f"side {side}/{name}"
