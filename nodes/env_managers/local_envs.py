"""The envs of this process: how they are made, stepped, reset and closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flowrl.core.batch import Array, Schema
from flowrl.nodes.env_managers.env_error import ENV_EXCEPTIONS
from flowrl.nodes.env_managers.env_history import CarryOverLayers, carry_over_layers
from flowrl.nodes.env_managers.time_limits import TimeLimits
from flowrl.nodes.env_managers.watchdog import Watchdog
from flowrl.nodes.envs.info import InfoReader, recording_step, zero_info


class LocalEnvs:
    """Each env is made before its first episode, and again after it was discarded."""

    def __init__(
        self, count: int, make_env: Callable[[int], Any], watchdog: Watchdog, info: Schema
    ) -> None:
        self._make_env, self._watch = make_env, watchdog.watch
        self._info_reader = InfoReader(info)
        self.info = zero_info(info, count)  # of the last step of each env
        self.time_limits = TimeLimits(count)
        self.envs: list[Any] = [None] * count
        self.step_calls: list[Callable[..., Any]] = [_raise_not_made] * count
        self.reset_calls: list[Callable[..., Any]] = [_raise_not_made] * count
        self.carried = [""] * count  # what each env carried over when it last began afresh
        self._carry_over: list[CarryOverLayers | None] = [None] * count
        self._has_own_return = [False] * count

    def ensure_made(self, index: int) -> None:
        """Make the env if it does not exist."""
        if self.envs[index] is None:
            self.make(index)

    def make(self, index: int, carried: str = "") -> None:
        """Make the env, as if it had played the episodes that left this carry-over."""
        env = self.envs[index] = self._make_env(index)
        step = self.time_limits.remove_wrapper(index, env).step
        if self.info:
            step = recording_step(step, self._info_reader, partial(self._write_info, index))
        self.step_calls[index] = self._watch("step", index, step)
        self.reset_calls[index] = self._watch("reset", index, env.reset)
        self._has_own_return[index] = hasattr(env, "unwrapped_return")
        layers = self._carry_over[index] = carry_over_layers(env)
        if layers is not None:
            layers.set(carried)

    def _write_info(self, index: int, values: list[Array]) -> None:
        for array, value in zip(self.info.values(), values, strict=True):
            array[index] = value

    def carry_over(self, index: int) -> str:
        """The data that the env carries over to its next episode. Call this right before a reset."""
        layers = self._carry_over[index]
        return "" if layers is None else layers.get()

    def own_return(self, index: int) -> float | None:
        """The return of the env's episode in its own rewards, if it has wrappers, which may change rewards."""
        return self.envs[index].unwrapped_return if self._has_own_return[index] else None

    def discard(self, index: int) -> None:
        """Close the env. Another one is made before its next episode."""
        env, self.envs[index] = self.envs[index], None
        _close_env(env)

    def close(self) -> dict[int, BaseException]:
        """Close all envs, and return what some of them raised."""
        raised = {i: _close_env(env) for i, env in enumerate(self.envs) if env is not None}
        return {index: error for index, error in raised.items() if error is not None}


def _raise_not_made(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the env was not made")


def _close_env(env: Any) -> BaseException | None:
    """Close an env, and return what it raised."""
    try:
        env.close()
    except (*ENV_EXCEPTIONS, KeyboardInterrupt) as error:  # the other envs must be closed, too
        return error
    return None
