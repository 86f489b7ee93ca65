"""Recurrent models in policies: minibatches of steps or unrolls to learn from, and memory to act with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.state import State
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.model import observation_tensors
from flowrl.nodes.policy import act_mode_state, load_act_mode_state


class RowLayout(Protocol):
    """Whether a batch's row is a step or an unroll. Minibatches are of rows, losses of steps (N,)."""

    def steps(self, batch: Batch) -> Batch:
        """The batch with one step in each row."""

    def row_count(self, steps: int) -> int:
        """The number of rows with this number of steps, at least 1."""

    def minibatch_columns(self, batch: Batch, *step_columns: Any) -> list[Any]:
        """The columns to cut minibatches from: the network's inputs, then `step_columns` by row."""

    def evaluate(self, minibatch: list[Any]) -> tuple[Mapping[str, Any], list[Any]]:
        """The network's heads on a minibatch, and its step columns, by step."""

    def values(self, batch: Batch, cut_t: Array) -> tuple[Array, Array]:
        """The value of each step's observation, and of the next observation at the cuts only."""


class StepRows:
    """A row is a step, and the network has no memory."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def steps(self, batch: Batch) -> Batch:
        return batch

    def row_count(self, steps: int) -> int:
        return steps

    def minibatch_columns(self, batch: Batch, *step_columns: Any) -> list[Any]:
        return [observation_tensors(batch, "obs"), *step_columns]

    def evaluate(self, minibatch: list[Any]) -> tuple[Mapping[str, Any], list[Any]]:
        obs, *step_columns = minibatch
        return self.net(obs), step_columns

    def values(self, batch: Batch, cut_t: Array) -> tuple[Array, Array]:
        with torch.no_grad():
            v_t = self.net(observation_tensors(batch, "obs"))["value"].squeeze(1).numpy()
            next_obs = observation_tensors(batch, "next_obs", cut_t)
            v_tp1_at_cuts = self.net(next_obs)["value"].squeeze(1).numpy()
        return v_t, v_tp1_at_cuts


class UnrollRows:
    """A row is an unroll (T, …), through which the network runs from the memory before it."""

    def __init__(self, net: Any, steps: int, memory: Schema) -> None:
        self.net, self.length = net, steps
        (self.memory,) = memory

    def steps(self, batch: Batch) -> Batch:
        names = [name for name in batch if name != self.memory]
        return Batch({n: batch[n].reshape(-1, *batch[n].shape[2:]) for n in names})

    def row_count(self, steps: int) -> int:
        return max(1, steps // self.length)

    def minibatch_columns(self, batch: Batch, *step_columns: Any) -> list[Any]:
        unrolled = [c.reshape(-1, self.length, *c.shape[1:]) for c in step_columns]
        return [*self._network_inputs(batch), *unrolled]

    def evaluate(self, minibatch: list[Any]) -> tuple[Mapping[str, Any], list[Any]]:
        *network_inputs, step_columns = *minibatch[:3], minibatch[3:]
        return self._unroll(*network_inputs), [c.flatten(0, 1) for c in step_columns]

    def values(self, batch: Batch, cut_t: Array) -> tuple[Array, Array]:
        """At a cut, the value of the next observation is computed with the memory of the step before."""
        next_obs = observation_tensors(self.steps(batch), "next_obs", cut_t)
        with torch.no_grad():
            heads = self._unroll(*self._network_inputs(batch))
            memory = heads[self.memory][tensor(np.flatnonzero(cut_t))]
            begins = torch.zeros((len(memory), 1), dtype=torch.bool)
            v_tp1_at_cuts = self.net.module(next_obs, memory, begins)["value"].squeeze(1).numpy()
        return heads["value"].squeeze(1).numpy(), v_tp1_at_cuts

    def _network_inputs(self, batch: Batch) -> list[Any]:
        begins = np.zeros_like(batch["last"])
        begins[:, 1:] = batch["last"][:, :-1]
        return [observation_tensors(batch, "obs"), tensor(batch[self.memory]), tensor(begins)]

    def _unroll(self, obs: Any, memory: Any, begins: Any) -> Mapping[str, Any]:
        heads: Mapping[str, Any] = self.net.module(flatten_time(obs), memory, begins)
        return heads


def flatten_time(obs: Any) -> Any:
    """Observations (N, T, …) as (N T, …); nested ones leaf by leaf."""
    if isinstance(obs, Mapping):
        return {leaf: column.flatten(0, 1) for leaf, column in obs.items()}
    return obs.flatten(0, 1)


class RecurrentModeAdapter:
    """Makes a `RecurrentActMode` of a mode with a recurrent `model` and a method `choose`."""

    def __init__(self, mode: Any, memory: Schema) -> None:
        self.mode, self.memory = mode, memory

    def load(self, state: State) -> None:
        self.mode.load(state)

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        heads = self.mode.model(obs, memory)
        return {**self.mode.choose(heads), **{name: heads[name] for name in self.memory}}

    def state_dict(self) -> dict[str, Any]:
        return act_mode_state(self.mode)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_act_mode_state(self.mode, state)
