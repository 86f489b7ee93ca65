"""The channel through which the agents of a group communicate: a bidirectional LSTM over their thoughts (ATOC)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.devices import CPU
from flowrl.nodes.models.heads import Heads
from flowrl.nodes.models.layers import NumpyLstm
from flowrl.nodes.models.model import InferenceModel, Model
from flowrl.nodes.models.saved_weights import check_shapes
from flowrl.nodes.observations import ObsColumns, leaf_columns

if TYPE_CHECKING:
    from torch.nn import Module

# The inputs: the thoughts (K, H) of the agents that a group may have, and 1 for those that take part (K,).
THOUGHTS, JOINED = "thoughts", "joined"
INTEGRATED = "integrated"  # the head (K, H)
AHEAD, BACK = "ahead", "back"  # the cells, each with half of the outputs


class Channel(Model):
    """Integrates the thoughts of a group, in which each agent gets a row of its own. Others are left out."""

    def network(self, obs: ObsColumns, heads: Heads) -> Module:
        from flowrl.nodes.models.torch_channel import TorchChannel

        return TorchChannel(thought_size(obs))

    def inference_model(
        self,
        obs: ObsColumns,
        heads: Heads,
        wanted: Collection[str],
        rng: np.random.Generator | None = None,
        device: str = CPU,
    ) -> InferenceModel:
        if device != CPU:
            return super().inference_model(obs, heads, wanted, rng, device)
        return NumpyChannel(thought_size(obs))

    def acts_in_torch(self, obs: ObsColumns, heads: Heads) -> bool:
        return False


def thought_size(obs: ObsColumns) -> int:
    """The numbers of a thought."""
    return leaf_columns(obs)[THOUGHTS].shape[-1]


class NumpyChannel:
    """The channel in numpy."""

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._cells = {name: NumpyLstm(size, self._half) for name in (AHEAD, BACK)}

    def load(self, arrays: Mapping[str, Array]) -> None:
        shapes = {f"{c}.{n}": s for c, cell in self._cells.items() for n, s in cell.shapes.items()}
        check_shapes("the channel", arrays, shapes)
        for name, cell in self._cells.items():
            cell.load({n: arrays[f"{name}.{n}"] for n in cell.shapes})

    def __call__(self, obs: Array, memory: Array | None = None) -> dict[str, Array]:
        """Groups (B,) with both inputs to integrated thoughts (B, K, H)."""
        thoughts, joined = obs[THOUGHTS], obs[JOINED] != 0
        order = range(thoughts.shape[1])
        ahead = self._through(self._cells[AHEAD], thoughts, joined, order)
        back = self._through(self._cells[BACK], thoughts, joined, reversed(order))
        return {INTEGRATED: np.concatenate([ahead, back], -1)}

    def _through(
        self, cell: NumpyLstm, thoughts: Array, joined: Array, order: Iterable[int]
    ) -> Array:
        """What a cell outputs for each agent (B, K, H / 2), if it goes through the group in this order."""
        memory = np.zeros((len(thoughts), 2 * self._half), np.float32)
        outputs: dict[int, Array] = {}
        for k in order:
            _, after = cell.step(np.ascontiguousarray(thoughts[:, k]), memory)
            memory = np.where(joined[:, k, None], after, memory)
            outputs[k] = memory[:, : self._half]
        return np.stack([outputs[k] for k in sorted(outputs)], 1)
