"""The torch module of an agent's values in two parts (CollaQ)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flowrl.core.batch import Array


class TorchCollaborative(nn.Module):
    """Two networks of the same form: one sees the agent's own entries of an observation, the other all of it."""

    own: Tensor

    def __init__(
        self, alone: nn.Module, together: nn.Module, leaf: str, own: Array, excess: bool
    ) -> None:
        """With `excess`, it also gives what the second network adds where there is nobody else."""
        super().__init__()
        self.alone, self.together = alone, together
        self.leaf, self.excess = leaf, excess
        self.register_buffer("own", torch.from_numpy(own.copy()), persistent=False)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Observations (B, …) to values (B, n)."""
        own = self._own_part(obs)
        found = {"q": self.alone(own)["q"] + self.together(obs)["q"]}
        if self.excess:
            found["excess"] = self.together(own)["q"]
        return found

    def observe(self, obs: Mapping[str, Tensor]) -> None:
        """Update the statistics of what both networks see, if they keep any."""
        seen: tuple[tuple[Any, Any], ...] = (
            (self.alone, self._own_part(obs)),
            (self.together, obs),
        )
        for network, values in seen:
            if hasattr(network, "observe"):
                network.observe(values)

    def _own_part(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**obs, self.leaf: obs[self.leaf] * self.own}
