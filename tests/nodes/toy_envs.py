"""Small envs whose numbers can be computed by hand."""

from __future__ import annotations

import os
import select
import signal
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class CountingEnv(gymnasium.Env):
    """Observes [seed of the episode mod 1e6, steps taken]; the reward of step t is t.

    Episodes have `length` steps, or 1 to 5 by their seed. Even seeds terminate, and odd ones are truncated.
    """

    def __init__(self, length: int | None = None, ends: str = "by seed") -> None:
        self.observation_space = Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = Discrete(3)
        self.length, self.ends = length, ends
        self.closed = False
        self.seeds: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.seed, self.t = seed or 0, 0
        self.seeds.append(self.seed)
        self.lasts = self.length or 1 + self.seed % 5
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.t < self.lasts, "stepped after the end"
        assert self.action_space.contains(action)
        self.t += 1
        over = self.t == self.lasts
        terminates = {"by seed": self.seed % 2 == 0, "final": True, "cut": False}[self.ends]
        return self._obs(), float(self.t), over and terminates, over and not terminates, {}

    def close(self) -> None:
        self.closed = True

    def _obs(self) -> Any:
        return np.array([self.seed % 1_000_000, self.t], np.float32)


class InfoEnv(CountingEnv):
    """Its info: `score` is the seed mod 100 plus the steps taken, and `is_success` is given in the last step only."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        *stepped, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {
            "score": float(self.seed % 100 + self.t),
            "place": {"xy": np.array([self.t, -self.t])},
            "steps": self.t,
            "text": "not a number",
        }
        if terminated or truncated:
            info["is_success"] = self.seed % 2 == 0
        return *stepped, terminated, truncated, info


class NoInfo(CountingEnv):
    """Its steps return None as info."""

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


class OptionEnv(CountingEnv):
    """Observes [the number `shift` of its options, steps taken]; an episode has `length` steps if they say so."""

    def __init__(self, fails_at_shift: float = -1.0) -> None:
        super().__init__(length=4)
        self.fails_at_shift = fails_at_shift

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.options = options or {}
        obs, info = super().reset(seed=seed)
        self.lasts = round(self.options.get("length", 4))
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        stepped = super().step(action)
        if self.options.get("shift") == self.fails_at_shift and self.t == 2:
            raise ZeroDivisionError("the simulator fell over")
        return stepped

    def _obs(self) -> Any:
        return np.array([self.options.get("shift", 0), self.t], np.float32)


class BrokenStepEnv(CountingEnv):
    """The third step fails in the way of `how`."""

    def __init__(self, how: str, index_broken: int | None = None) -> None:
        super().__init__(length=20)
        self.how = how

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        obs, reward, *rest = super().step(action)
        if self.t == 3:
            if self.how == "raises":
                raise ZeroDivisionError("the simulator fell over")
            obs = {"nan": obs * np.nan, "inf": obs * np.inf, "shape": obs[:1]}.get(self.how, obs)
            obs = np.array(["a", "b"]) if self.how == "dtype" else obs
            reward = {"reward": float("nan"), "reward array": np.ones(1)}.get(self.how, reward)
            reward = None if self.how == "no reward" else reward
        return obs, reward, *rest


class BrokenResetEnv(CountingEnv):
    """The second reset raises."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if self.seeds:
            raise OSError("no simulator answers")
        return super().reset(seed=seed)


class TwoLengthEnv(gymnasium.Env):
    """The return of an episode is its length: 1 or `long`, by its seed."""

    def __init__(self, long: int = 40) -> None:
        self.observation_space = Box(0, 1, (1,), np.float64)
        self.action_space = Discrete(2)
        self.long = long

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.left = self.long if (seed or 0) % 2 else 1
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.left -= 1
        return np.zeros(1), 1.0, self.left == 0, False, {}


class ReusedArrayEnv(CountingEnv):
    """Returns the same array each time, with new contents."""

    buffer = None

    def _obs(self) -> Any:
        if self.buffer is None:
            self.buffer = np.zeros(2, np.float32)
        self.buffer[:] = super()._obs()
        return self.buffer


class ContinuousEnv(gymnasium.Env):
    """Continuous actions; the reward is the sum of the action."""

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Box(*np.array([[-1, -2], [1, 2]], np.float32), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        return np.zeros(3), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        return np.append(action, 1.0).astype(np.float64), float(action.sum()), False, False, {}


class AlternatingEnv(gymnasium.Env):
    """Two states in alternation, 0 first. The reward is 1 for leaving 0, and 2 for leaving 1.

    An episode ends instead of returning to 0: it terminates ("final") or is truncated ("cut").
    """

    def __init__(self, ends: str) -> None:
        self.observation_space = Discrete(2)
        self.action_space = Discrete(2)
        self.ends = ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict]:
        self.state = 0
        return self.state, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
        reward, over = (1.0, False) if self.state == 0 else (2.0, True)
        self.state = 1 - self.state
        return self.state, reward, over and self.ends == "final", over and self.ends == "cut", {}


class HalvingEnv(gymnasium.Env):
    """Episodes of one step: it observes a number, and the best action is half of it."""

    def __init__(self) -> None:
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.goal = np.random.default_rng(seed).uniform(-1, 1, 1).astype(np.float32)
        return self.goal, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.goal, -float(abs(action[0] - self.goal[0] / 2)), True, False, {}


class SpaceCheckingEnv(gymnasium.Env):
    """Observes the last action, and asserts that it is in the action space."""

    def __init__(self, space: Any, **kwargs: Any) -> None:
        self.action_space = getattr(gymnasium.spaces, space)(**kwargs)
        shape = np.shape(self.action_space.sample())
        self.observation_space = Box(-100, 100, shape or (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return np.reshape(action, self.observation_space.shape), 0.0, False, False, {}


class RenderedEnv(CountingEnv):
    """Renders the seed's last byte in red, the step in green, and the last action in blue."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    rendered = 0  # the number of frames that all envs have rendered

    def __init__(self, render_mode: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.render_mode, self.last = render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.last = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.last = int(action)
        return super().step(action)

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        RenderedEnv.rendered += 1
        picture = np.zeros((16, 24, 3), np.uint8)
        picture[:] = [self.seed % 256, self.t * 40, self.last * 100]
        return picture


class UnseededEnv(RenderedEnv):
    """The length of episodes does not follow from the seed."""

    made = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        found = super().reset(seed=seed)
        UnseededEnv.made += 1
        self.lasts = 1 + UnseededEnv.made
        return found


class MemoryEnv(gymnasium.Env):
    """Observes -1 or 1, then 0 three times. The last action must match the first observation."""

    def __init__(self) -> None:
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.shown, self.t = int(np.random.default_rng(seed).integers(2)), 0
        return np.array([2 * self.shown - 1], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        right = 1.0 if action == self.shown else -1.0
        return np.zeros(1, np.float32), right if self.t == 4 else 0.0, self.t == 4, False, {}


class GatedEnv(CountingEnv):
    """By `role`: waits in its third step until another env opens the gate, opens it, or is killed there."""

    def __init__(self, role: str, gate: str = "", after: int = 0) -> None:
        super().__init__(length=1000)
        self.role, self.after = role, after
        self.gate = os.open(gate, os.O_RDWR | os.O_NONBLOCK) if gate else -1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        stepped = super().step(action)
        if self.role == "opens" and self.t == self.after:
            os.write(self.gate, b".")
        if self.role == "waits" and self.t == 3:
            poll = select.poll()
            poll.register(self.gate, select.POLLIN)
            if not poll.poll(20_000):
                raise TimeoutError("the gate was not opened")
        if self.role == "dies" and self.t == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return stepped

    def close(self) -> None:
        super().close()
        if self.gate >= 0:
            os.close(self.gate)
            self.gate = -1
