"""How a learner's network sees a batch: step by step, or as unrolls of a model that remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.state import State
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.model import observation_tensors


class RowLayout(Protocol):
    """The rows of a batch are dealt into minibatches; all reckoning is on steps, (N,)."""

    def steps(self, batch: Batch) -> Batch:
        """Its steps, one a row."""

    def rows(self, steps: int) -> int:
        """So many steps in rows of a batch."""

    def dealt(self, batch: Batch, *columns: Any) -> list[Any]:
        """What minibatches take of each row: what `heads` does, then columns of its steps."""

    def heads(self, dealt: list[Any]) -> tuple[Mapping[str, Any], list[Any]]:
        """What the network says of a minibatch, and the columns of its steps."""

    def values(self, batch: Batch, cut_t: Array) -> tuple[Array, Array]:
        """The value of each step's observation; and of what came next, at the cuts alone."""


class StepRows:
    """A row is a step, and the network sees nothing but its observation."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def steps(self, batch: Batch) -> Batch:
        return batch

    def rows(self, steps: int) -> int:
        return steps

    def dealt(self, batch: Batch, *columns: Any) -> list[Any]:
        return [observation_tensors(batch, "obs"), *columns]

    def heads(self, dealt: list[Any]) -> tuple[Mapping[str, Any], list[Any]]:
        obs, *columns = dealt
        return self.net(obs), columns

    def values(self, batch: Batch, cut_t: Array) -> tuple[Array, Array]:
        with torch.no_grad():
            v_t = self.net(observation_tensors(batch, "obs"))["value"].squeeze(1).numpy()
            at_cuts = (
                self.net(observation_tensors(batch, "next_obs", cut_t))["value"].squeeze(1).numpy()
            )
        return v_t, at_cuts


class UnrollRows:
    """A row is an unroll (T, …), which the network goes through from what was remembered then."""

    def __init__(self, net: Any, steps: int, memory: Schema) -> None:
        self.net, self.length = net, steps
        (self.memory,) = memory

    def steps(self, batch: Batch) -> Batch:
        names = [name for name in batch if name != self.memory]
        return Batch({n: batch[n].reshape(-1, *batch[n].shape[2:]) for n in names})

    def rows(self, steps: int) -> int:
        return max(1, steps // self.length)

    def dealt(self, batch: Batch, *columns: Any) -> list[Any]:
        folded = [c.reshape(-1, self.length, *c.shape[1:]) for c in columns]
        return [*self._unrolls(batch), *folded]

    def heads(self, dealt: list[Any]) -> tuple[Mapping[str, Any], list[Any]]:
        *unrolls, columns = *dealt[:3], dealt[3:]
        return self._through(*unrolls), [c.flatten(0, 1) for c in columns]

    def values(self, batch: Batch, cut_t: Array) -> tuple[Array, Array]:
        """At a cut, the value of the next observation for whoever remembers what came before."""
        next_obs = observation_tensors(self.steps(batch), "next_obs", cut_t)
        with torch.no_grad():
            found = self._through(*self._unrolls(batch))
            after = found[self.memory][tensor(np.flatnonzero(cut_t))]
            no = torch.zeros((len(after), 1), dtype=torch.bool)
            at_cuts = self.net.module(next_obs, after, no)["value"].squeeze(1).numpy()
        return found["value"].squeeze(1).numpy(), at_cuts

    def _unrolls(self, batch: Batch) -> list[Any]:
        begins = np.zeros_like(batch["last"])
        begins[:, 1:] = batch["last"][:, :-1]
        return [observation_tensors(batch, "obs"), tensor(batch[self.memory]), tensor(begins)]

    def _through(self, obs: Any, memory: Any, begins: Any) -> Mapping[str, Any]:
        if isinstance(obs, Mapping):
            flat: Any = {leaf: column.flatten(0, 1) for leaf, column in obs.items()}
        else:
            flat = obs.flatten(0, 1)
        found: Mapping[str, Any] = self.net.module(flat, memory, begins)
        return found


class RecurrentModeAdapter:
    """Acts as a mode with `infer` and `choose` does; what the model remembers is passed through."""

    def __init__(self, mode: Any, memory: Schema) -> None:
        self.mode, self.memory = mode, memory

    def load(self, state: State) -> None:
        self.mode.load(state)

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        out = self.mode.model(obs, memory)
        return {**self.mode.choose(out), **{name: out[name] for name in self.memory}}

    def state_dict(self) -> dict[str, Any]:
        """What the next actions depend on beside weights and memory."""
        return self.mode.state_dict() if hasattr(self.mode, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if hasattr(self.mode, "load_state_dict"):
            self.mode.load_state_dict(state)
