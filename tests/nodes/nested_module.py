"""A torch module of one's own for nested observations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flowrl.nodes.models.model import Heads
from flowrl.nodes.observations import NestedColumns


class ByLeaf(nn.Module):
    """One linear layer on two of the leaves."""

    def __init__(self, obs: NestedColumns, heads: Heads) -> None:
        super().__init__()
        pixels = obs.columns["camera"].row_bytes
        self.q = nn.Linear(pixels + 2, heads["q"].n)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Observations by leaf to heads."""
        parts = [obs["camera"].flatten(1) / 255, obs["pair/1"]]
        return {"q": self.q(torch.cat(parts, 1))}
