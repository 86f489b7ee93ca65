"""The error of an env: which one, in which episode, at which step, after which actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class EnvError(RuntimeError):
    """An env raised, or gave something that its spaces do not allow."""

    def __init__(
        self, env: str, index: int, seed: int, step: int, actions: Sequence[Any], what: str
    ) -> None:
        self.env, self.index, self.seed, self.step = env, index, seed, step
        self.actions = tuple(actions)
        shown = ", ".join(map(str, self.actions)) or "none"
        super().__init__(
            f"env {index} ({env}), episode seed {seed}, step {step}: {what}; last actions: {shown}"
        )
