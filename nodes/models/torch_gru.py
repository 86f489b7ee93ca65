"""The torch side of the recurrent model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flowrl.nodes.models.gru import INPUT, MEMORY
from flowrl.nodes.models.torch_features import Obs
from flowrl.nodes.models.torch_mlp import ACTIVATIONS


class TorchGru(nn.Module):
    """Parameters are named `encoder.…`, `cell.…` and `heads.…`."""

    def __init__(self, encoder: nn.Module, heads: nn.Module, size: int, activation: str) -> None:
        super().__init__()
        self.encoder, self.heads = encoder, heads
        self.cell = nn.GRUCell(size, size)
        self.activate = ACTIVATIONS[activation]

    def forward(self, obs: Obs, memory: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Unrolls of T steps: obs (N T, …), the memory before them (N, H), begins (N, T).

        Gives heads (N T, n), and under `memory` what was remembered after each step (N T, H).
        Where an episode `begins`, what was remembered before is forgotten.
        """
        n, steps = begins.shape
        x_t = self.activate(self.encoder(obs)[INPUT]).view(n, steps, -1)
        keeps_t = (~begins).unsqueeze(2).to(x_t.dtype)
        found = []
        for t in range(steps):
            memory = self.cell(x_t[:, t], memory * keeps_t[:, t])
            found.append(memory)
        after = torch.stack(found, 1).flatten(0, 1)
        return {**self.heads(after), MEMORY: after}

    def observe(self, obs: Obs) -> None:
        """Takes what was learned from into the running moments."""
        self.encoder.observe(obs)  # type: ignore[operator]
