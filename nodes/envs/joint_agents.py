"""Many agents as one: their observations and actions side by side, in the order of their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.parallel_api import common_space
from flowrl.nodes.models.features import ACTION_MASK

SEEN = "observation"  # PettingZoo's name for what is seen beside a mask


class JointAgentsEnv(gymnasium.Env):
    """An episode ends when nobody plays any more: truncated, if anybody's last step was."""

    def __init__(self, env: Any, mean: bool) -> None:
        self._env, self._mean = env, mean
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)
        self._agents = list(env.possible_agents)
        seen = common_space(env, "observation")
        self._masks = isinstance(seen, Dict) and set(seen.spaces) == {SEEN, ACTION_MASK}
        self._one = seen[SEEN] if self._masks else seen
        self._act = common_space(env, "action")
        n = len(self._agents)
        leaves: dict[str, Any] = {"agents": _seen_by_all(self._one, n), "alive": MultiBinary(n)}
        if self._masks:
            leaves[ACTION_MASK] = MultiBinary(n * int(self._act.n))
        self.observation_space = Dict(leaves)
        self.action_space = _acted_by_all(self._act, n)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """All agents begin."""
        super().reset(seed=seed)
        seen, _ = self._env.reset(seed=seed, options=options)
        return self._obs(seen), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Those that play act; what is chosen for the others has no effect."""
        playing = list(self._env.agents)
        acts = {agent: action[self._agents.index(agent)] for agent in playing}
        seen, rewards, terminated, truncated, _ = self._env.step(acts)
        over = all(terminated.get(a, True) or truncated.get(a, False) for a in playing)
        cut = over and any(truncated.get(a, False) and not terminated.get(a) for a in playing)
        total = float(sum(rewards.values()))
        reward = total / len(self._agents) if self._mean else total
        return self._obs(seen), reward, over and not cut, cut, {}

    def render(self) -> Any:
        """A picture of all."""
        return self._env.render()

    def close(self) -> None:
        """Give back windows."""
        self._env.close()

    def _obs(self, seen: Mapping[str, Any]) -> dict[str, Array]:
        """What each agent sees; zeros in the row of one that plays no more."""
        space = self.observation_space
        assert isinstance(space, Dict)
        alive = np.array([agent in self._env.agents for agent in self._agents], np.int8)
        each: Any = space["agents"]
        rows = np.zeros(each.shape, each.dtype)
        masks = np.ones((len(rows), int(self._act.n)), np.int8) if self._masks else None
        for row, agent in enumerate(self._agents):
            if agent in seen:
                one = seen[agent]
                rows[row] = one[SEEN] if self._masks else one
                if masks is not None and alive[row]:
                    masks[row] = one[ACTION_MASK]
        found: dict[str, Array] = {"agents": rows, "alive": alive}
        return found if masks is None else {**found, ACTION_MASK: masks.reshape(-1)}


def _seen_by_all(space: Any, n: int) -> Any:
    if isinstance(space, Box):
        low, high = (np.repeat(bound[None], n, 0) for bound in (space.low, space.high))
        # rows of those that play no more are zeros, which the bounds may leave out
        return Box(np.minimum(low, 0), np.maximum(high, 0), dtype=space.dtype.type)
    if isinstance(space, Discrete) and space.start == 0:
        return MultiDiscrete([space.n] * n)
    raise UnsoundError(
        f"agents observe {space}", "wrap the env: a Box, or a Discrete from 0", "env"
    )


def _acted_by_all(space: Any, n: int) -> Any:
    if isinstance(space, Discrete) and space.start == 0:
        return MultiDiscrete([space.n] * n)
    if isinstance(space, Box):
        low, high = (np.repeat(bound[None], n, 0) for bound in (space.low, space.high))
        return Box(low, high, dtype=space.dtype.type)
    raise UnsoundError(
        f"agents' actions are {space}", "wrap the env: a Box, or a Discrete from 0", "env"
    )
