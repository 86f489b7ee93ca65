"""The torch module of the channel through which the agents of a group communicate (ATOC)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from flowrl.nodes.models.channel import INTEGRATED, JOINED, THOUGHTS


class TorchChannel(nn.Module):
    """A bidirectional LSTM over the thoughts of a group (Jiang & Lu 2018, section 4.2)."""

    def __init__(self, size: int) -> None:
        """Each direction has half of the outputs, so that an integrated thought is as wide as a thought."""
        super().__init__()
        self.ahead, self.back = nn.LSTMCell(size, size // 2), nn.LSTMCell(size, size // 2)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The thoughts (B, K, H) of agents, of which some have joined (B, K), to integrated thoughts (B, K, H)."""
        thoughts, joined = obs[THOUGHTS], obs[JOINED] != 0
        order = range(thoughts.shape[1])
        ahead = self._through(self.ahead, thoughts, joined, order)
        back = self._through(self.back, thoughts, joined, reversed(order))
        return {INTEGRATED: torch.cat([ahead, back], -1)}

    def _through(
        self, cell: nn.LSTMCell, thoughts: Tensor, joined: Tensor, order: Iterable[int]
    ) -> Tensor:
        h = c = thoughts.new_zeros((len(thoughts), cell.hidden_size))
        outputs: dict[int, Tensor] = {}
        for k in order:
            h_k, c_k = cell(thoughts[:, k], (h, c))
            joins = joined[:, k, None]
            h, c = torch.where(joins, h_k, h), torch.where(joins, c_k, c)
            outputs[k] = h
        return torch.stack([outputs[k] for k in sorted(outputs)], 1)
