"""An act mode whose model remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.core.batch import Array, Schema
from flowrl.core.state import State


class Remembering:
    """Acts as a mode with `infer` and `choose` does; what the model remembers is passed through."""

    def __init__(self, mode: Any, memory: Schema) -> None:
        self.mode, self.memory = mode, memory

    def load(self, state: State) -> None:
        self.mode.load(state)

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        out = self.mode.infer(obs, memory)
        return {**self.mode.choose(out), **{name: out[name] for name in self.memory}}

    def state_dict(self) -> dict[str, Any]:
        """What the next actions depend on beside weights and memory."""
        return self.mode.state_dict() if hasattr(self.mode, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if hasattr(self.mode, "load_state_dict"):
            self.mode.load_state_dict(state)
