"""One of many agents behind gymnasium's interface, so that wrappers can be put on each."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from flowrl.core.config import PartSpec
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.wrappers.wrapper import Wrappers


class PlayedStepEnv(gymnasium.Env):
    """Its step was taken already, together with all others': wrappers are told what came of it."""

    def __init__(self, seen: Any, done: Any) -> None:
        self.observation_space, self.action_space = seen, done
        self.begun: Any = None
        self.act: Any = None
        self.got: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """What the agent saw first."""
        super().reset(seed=seed)
        obs, info = self.begun
        return obs, info

    def step(self, action: Any) -> Any:
        """What it got for its action, which can be no other."""
        if not np.array_equal(action, self.act):
            raise ValueError(
                f"a wrapper makes {action} of the action {self.act}; those of one agent among "
                "others may change actions by `gymnasium.ActionWrapper` only, and draw nothing"
            )
        return self.got


class WrappedAgent:
    """An agent in its wrappers."""

    def __init__(self, seen: Any, done: Any, wrappers: Wrappers) -> None:
        self._inner = self._outer = PlayedStepEnv(seen, done)
        for wrapper in wrappers:
            part: Any = wrapper.make() if isinstance(wrapper, PartSpec) else wrapper
            if not part.of_agents:
                what = f"{type(part).__name__} cannot be put on one of many agents"
                hint = "leave it out: agents step together, each as it was told (docs/envs.md)"
                raise UnsoundError(what, hint, "env.wrappers")
            self._outer = part.wrap(self._outer)

    @property
    def outermost(self) -> Any:
        """The outermost of its wrappers."""
        return self._outer

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Of its observations and actions, as wrappers leave them."""
        return self._outer.observation_space, self._outer.action_space

    def begins(self, seed: int | None, obs: Any, info: Any) -> Any:
        """Its first observation, in the wrappers."""
        if self._outer is self._inner:
            return obs
        self._inner.begun = obs, info
        return self._outer.reset(seed=seed)[0]

    def does(self, action: Any) -> Any:
        """What the env is told to do."""
        env: Any = self._outer
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, gymnasium.ActionWrapper):
                action = env.action(action)
            env = env.env
        self._inner.act = action
        return action

    def sees(self, action: Any, got: Any) -> Any:
        """What came of it, in the wrappers."""
        if self._outer is self._inner:
            return got
        self._inner.got = got
        return self._outer.step(action)
