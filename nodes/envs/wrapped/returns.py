"""Returns are those of the env's own rewards, whatever wrappers make of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import Wrapper


class RewardSumEnv(Wrapper):
    """Sums the env's own rewards."""

    total = 0.0
    spec = None  # an id of the registry does not make this env again

    def step(self, action: Any) -> Any:
        """As the env does."""
        stepped = self.env.step(action)
        self.total += float(stepped[1])
        return stepped


class UnwrappedReturnEnv(Wrapper):
    """Knows the return of an episode as whoever acts sees it: since the last reset from outside."""

    def __init__(self, env: Any, innermost: RewardSumEnv) -> None:
        super().__init__(env)
        self._innermost = innermost

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """As the env does; what wrappers did in it (no-ops, a start button) does not count."""
        begun = self.env.reset(seed=seed, options=options)
        self._innermost.total = 0.0
        return begun

    @property
    def unwrapped_return(self) -> float:
        """The sum of the env's own rewards so far."""
        return self._innermost.total


def count_unwrapped_return(env: Any, wrap_all: Callable[[Any], Any]) -> UnwrappedReturnEnv:
    """The env, wrapped, with its own rewards counted."""
    innermost = RewardSumEnv(env)
    return UnwrappedReturnEnv(wrap_all(innermost), innermost)
