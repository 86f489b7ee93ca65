"""The envs of this process: how each is made, stepped, reset and closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrl.nodes.env_managers.carry_over import CarryOverLayers, carry_over_layers
from flowrl.nodes.env_managers.replay_here import ENV_EXCEPTIONS
from flowrl.nodes.env_managers.time_limits import TimeLimits
from flowrl.nodes.env_managers.watchdog import Watchdog


class LocalEnvs:
    """Each is made when it begins its first episode, and anew after it was given up."""

    def __init__(self, count: int, make: Callable[[int], Any], watchdog: Watchdog) -> None:
        self._make, self._watched = make, watchdog.watched
        self.limits = TimeLimits(count)
        self.envs: list[Any] = [None] * count
        self.step_one: list[Callable[..., Any]] = [_not_made] * count
        self.reset_one: list[Callable[..., Any]] = [_not_made] * count
        self.carried = [""] * count  # what each took from the episodes before this one
        self._carriers: list[CarryOverLayers | None] = [None] * count
        self._counts_itself = [False] * count

    def need(self, index: int) -> None:
        """From now on the env is there."""
        if self.envs[index] is None:
            self.make(index)

    def make(self, index: int, carried: str = "") -> None:
        """The env, as if the episodes had been that left this."""
        env = self.envs[index] = self._make(index)
        self.step_one[index] = self._watched("step", index, self.limits.stepped(index, env).step)
        self.reset_one[index] = self._watched("reset", index, env.reset)
        self._counts_itself[index] = hasattr(env, "unwrapped_return")
        carriers = self._carriers[index] = carry_over_layers(env)
        if carriers is not None:
            carriers.set(carried)

    def carries(self, index: int) -> str:
        """What the env's next episode has of those before it; to be asked right before a reset."""
        carriers = self._carriers[index]
        return "" if carriers is None else carriers.get()

    def own_return(self, index: int) -> float | None:
        """That of the env's episode, where wrappers change rewards and the env knows better."""
        return self.envs[index].unwrapped_return if self._counts_itself[index] else None

    def give_up(self, index: int) -> None:
        """Another will be made in its place."""
        old, self.envs[index] = self.envs[index], None
        _close(old)

    def close(self) -> dict[int, BaseException]:
        """Close all; what some raised."""
        raised = {i: _close(env) for i, env in enumerate(self.envs) if env is not None}
        return {index: error for index, error in raised.items() if error is not None}


def _not_made(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the env was not made")


def _close(env: Any) -> BaseException | None:
    """Close an env; what it raised. (One that has failed may fail again: it is given up in any case.)"""
    try:
        env.close()
    except ENV_EXCEPTIONS as error:
        return error
    return None
