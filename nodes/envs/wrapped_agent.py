"""One agent of an env of many with wrappers of its own, which are made for envs of one agent."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from flowrl.core.config import PartSpec
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.wrappers.wrapper import Wrappers


class StepPlaybackEnv(gymnasium.Env):
    """One agent as an env for its wrappers. The step of all agents was taken already; this env returns its result."""

    def __init__(self, obs_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = obs_space, action_space
        self.reset_result: Any = None
        self.action: Any = None
        self.step_result: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, info = self.reset_result
        return obs, info

    def step(self, action: Any) -> Any:
        if not np.array_equal(action, self.action):
            raise ValueError(
                f"a wrapper changes the action {self.action} to {action}; a wrapper of one agent may change "
                "actions only as a `gymnasium.ActionWrapper`, and not at random"
            )
        return self.step_result


class WrappedAgent:
    """One agent with its wrappers."""

    def __init__(self, obs_space: Any, action_space: Any, wrappers: Wrappers) -> None:
        self._inner = self._outer = StepPlaybackEnv(obs_space, action_space)
        for wrapper in wrappers:
            part: Any = wrapper.make() if isinstance(wrapper, PartSpec) else wrapper
            if not part.works_per_agent:
                what = f"{type(part).__name__} cannot be applied to one of many agents"
                hint = "leave it out, because all agents of an env step together"
                raise UnsoundError(what, hint, "env.wrappers")
            self._outer = part.wrap(self._outer)

    @property
    def outermost(self) -> Any:
        return self._outer

    @property
    def spaces(self) -> tuple[Any, Any]:
        """The spaces of observations and actions, as wrappers leave them."""
        return self._outer.observation_space, self._outer.action_space

    def reset(self, seed: int | None, obs: Any, info: Any) -> Any:
        """Wrap the agent's first observation."""
        if self._outer is self._inner:
            return obs
        self._inner.reset_result = obs, info
        return self._outer.reset(seed=seed)[0]

    def unwrap_action(self, action: Any) -> Any:
        """The action as the wrappers pass it to the env."""
        env: Any = self._outer
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, gymnasium.ActionWrapper):
                action = env.action(action)
            env = env.env
        self._inner.action = action
        return action

    def step(self, action: Any, result: Any) -> Any:
        """Wrap the result of the agent's step."""
        if self._outer is self._inner:
            return result
        self._inner.step_result = result
        return self._outer.step(action)
