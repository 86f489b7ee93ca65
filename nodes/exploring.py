"""Exploring steps, which a graph can append to the way in which any policy collects: `policy: {explore: […]}`.

They come after the steps of the algorithm. Real-valued actions of algorithms that squash them are in (-1, 1)
here. A step of your own is a subclass of `ExploringStep`, named by its import path.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param
from flowrl.core.facts import UnsoundError
from flowrl.core.written_config import written_params
from flowrl.nodes.acting import Columns, NetworkActMode
from flowrl.nodes.distributions import uniform_allowed_choices, uniform_choices
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.schedules import Scheduled, scheduled, scheduled_fields


class ExploringStep(Part):
    """A step that changes the columns of a policy that collects, in particular `action`."""

    kind = "exploring_step"
    place = 0  # among the exploring steps of the policy; its scheduled parameters are named by it

    def check_action(self, action: Column) -> None:
        """Raise `UnsoundError` if the step cannot be applied to such actions."""

    def acting_parts(self) -> list[Any]:
        """What the step depends on, without its scheduled parameters: their values come with the weights."""
        config = written_params(self.config)
        for name in scheduled_fields(type(self.config)):
            del config[name]
        held = {name: value for name, value in vars(self).items() if name != "config"}
        return [type(self), config, held]

    def memory_columns(self, action: Column) -> Schema:
        """What the step remembers of each env from step to step, as columns; zeros where an episode begins."""
        return {}

    def setting(self, acting: NetworkActMode, name: str) -> float:
        """The current value of a parameter that `scheduled` declares."""
        return acting.settings[self.setting_name(name)]

    def setting_name(self, name: str) -> str:
        """The name of a scheduled parameter among the settings of the policy."""
        return f"explore.{self.place}.{name}"

    def __call__(self, columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        """Change the columns of the observations (B, …)."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


class ActionNoise(ExploringStep):
    """Adds normal noise to real-valued actions, and clips them to [-1, 1]."""

    class Config(BaseConfig):
        std: Scheduled = scheduled(0.1, "standard deviation, in half ranges of the action", ge=0)

    def check_action(self, action: Column) -> None:
        require_real_actions("action_noise", action)

    def __call__(self, columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        action = columns["action"]
        noise = acting.rng.standard_normal(action.shape, np.float32)
        columns["action"] = _clipped(action + np.float32(self.setting(acting, "std")) * noise)


class OuNoise(ExploringStep):
    """Adds an Ornstein-Uhlenbeck process to real-valued actions, whose noise is correlated in time.

    x_t = (1 - theta) x_{t-1} + std e_t, from 0 at the start of an episode (Lillicrap et al. 2016, section 7)
    """

    class Config(BaseConfig):
        std: Scheduled = scheduled(0.2, "standard deviation of each step's noise", ge=0)
        theta: float = param(0.15, "share by which the process returns to 0 in a step", ge=0, le=1)

    def check_action(self, action: Column) -> None:
        require_real_actions("ou_noise", action)

    def memory_columns(self, action: Column) -> Schema:
        return {"ou_noise": Column("float32", (int(np.prod(action.shape, dtype=np.int64)),))}

    def __call__(self, columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        before = columns["ou_noise"]
        noise = np.float32(self.setting(acting, "std")) * acting.rng.standard_normal(
            before.shape, np.float32
        )
        columns["ou_noise"] = after = np.float32(1 - self.config.theta) * before + noise
        columns["action"] = _clipped(columns["action"] + after)


class RandomActions(ExploringStep):
    """Replaces a share of the actions by uniformly random ones."""

    class Config(BaseConfig):
        share: Scheduled = scheduled(0.1, "probability of a random action", ge=0, le=1)

    def __call__(self, columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        replace_by_random(columns, obs, acting, self.setting(acting, "share"))


class EpsilonLadder(ExploringStep):
    """Lets each episode explore with a share of random actions of its own, drawn from a ladder of shares.

    epsilon_i = base^(1 + alpha i / (rungs - 1)) with i = 0 … rungs - 1 (Horgan et al. 2018, section 4.1)
    """

    class Config(BaseConfig):
        base: float = param(0.4, "the largest share", gt=0, le=1)
        alpha: float = param(7.0, "larger: most episodes explore little", ge=0)
        rungs: int = param(8, "number of shares", ge=2)

    def memory_columns(self, action: Column) -> Schema:
        return {"rung": Column("int64")}  # 1 … rungs; 0 before an episode's first step

    def __call__(self, columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        c, rung = self.config, columns["rung"]
        drawn = acting.rng.integers(1, c.rungs + 1, size=rung.shape)
        columns["rung"] = rung = np.where(rung == 0, drawn, rung)
        shares = c.base ** (1 + c.alpha * (rung - 1) / (c.rungs - 1))
        replace_by_random(columns, obs, acting, shares)


def replace_by_random(
    columns: Columns, obs: Array, acting: NetworkActMode, share: float | Array
) -> None:
    """Replace actions by uniformly random allowed ones, each with the probability `share`."""
    action, space, rng = columns["action"], acting.action_space, acting.rng
    explores = rng.random(len(action)) < share
    if np.dtype(space.dtype).kind == "f":
        random: Array = rng.uniform(-1, 1, action.shape).astype(np.float32)
    elif obs.dtype.names is not None and ACTION_MASK in obs.dtype.names:
        random = uniform_allowed_choices(space, obs[ACTION_MASK] != 0, rng)
    else:
        random = uniform_choices(space, len(action), rng)
    columns["action"] = np.where(explores.reshape(-1, *[1] * (action.ndim - 1)), random, action)


def require_real_actions(step: str, action: Column) -> None:
    if np.dtype(action.dtype).kind != "f":
        what = f"{step} adds noise to real-valued actions; the env takes {action}"
        raise UnsoundError(what, "take `random_actions`", "policy.explore")


def _clipped(action: Array) -> Array:
    return np.clip(action, -1, 1)
