"""The actor lets a policy's act mode act in envs, step by step.

From one step to the next it keeps the latest observation of each env and, for a recurrent policy, the
memory. Envs step together (`step`), or some are sent and received once they are ready (`send`,
`receive`). An id is the index of an env or, in envs with several agents, of an agent.

Where agents act in turn, an agent's step is complete only when it is to act again, or when its episode has ended. Until
then the actor keeps what belongs to the step: the observation, the action and everything else that the policy gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.context import Context
from flowrl.nodes.envs.info import PREFIX
from flowrl.nodes.envs.steps import Episode, Steps, with_last_info
from flowrl.nodes.origin import OriginTracker
from flowrl.nodes.policy import AnyActMode


class CollectedSteps(NamedTuple):
    """One step of some envs or agents."""

    ids: Array | None  # whose steps these are, in the order of the columns; None: all
    columns: dict[str, Array]  # (B, …)
    episodes: list[Episode]  # the episodes that ended with this step
    failed: Sequence[int]  # ids whose unfinished episode is invalid, because its env failed
    absent: Sequence[int] | Array = ()  # ids of agents that completed no step; they have no columns

    def select(self, mask: Array) -> CollectedSteps:
        """Keep only the steps where `mask` (B,) is true."""
        ids = np.flatnonzero(mask) if self.ids is None else self.ids[mask]
        return self._replace(ids=ids, columns={k: c[mask] for k, c in self.columns.items()})


class Actor:
    def __init__(
        self,
        envs: Any,
        memory_columns: Schema,
        origin: OriginTracker | None = None,
        context: Context | None = None,
    ) -> None:
        """Every step has `memory_columns`, even if the acting mode has no such memory.

        With `origin`, steps also have the origin columns. The time of the policy is shown in `context`.
        """
        self._infer = (
            self._call_mode if context is None else context.timed("policy", self._call_mode)
        )
        self._origin = origin
        self.envs, self.count = envs, envs.spec().count
        self._row_memory_columns = memory_columns
        self.mode: Any = None
        self.obs: Array | None = None
        self._owns_obs = False  # if false, the manager may still use the array
        self._unchecked_columns: Schema = {}  # to check in the mode's first output
        self.memory: dict[str, Array] = {}  # the mode's memory, by id
        self._zero_memory: dict[str, Array] = {}  # the memory columns that the mode does not have
        self._pending_columns: dict[str, Array] = {}  # the columns of pending steps, by id
        self.pending = np.zeros(self.count, np.bool_)  # by id: sent, and not received
        # the columns of steps that are not complete, by id:
        self._begun_columns: dict[str, Array] = {}

    def set_mode(self, mode: AnyActMode, columns: Schema) -> None:
        """Let `mode` act from now on, with empty memory; it must output `columns`."""
        self.mode = mode
        memory: Schema = getattr(mode, "memory", {})
        self._unchecked_columns = {**columns, **memory}
        self.memory = self._zeros(memory)
        missing = {n: c for n, c in self._row_memory_columns.items() if n not in memory}
        self._zero_memory = self._zeros(missing)

    def reset(self) -> None:
        """Begin new episodes in all envs."""
        self._discard_pending_steps()
        self.obs, self._owns_obs = self.envs.reset(), False
        self.memory = {name: np.zeros_like(array) for name, array in self.memory.items()}

    def step(self, ids: Array | None = None) -> CollectedSteps:
        """Take one step in the envs of `ids` (None: in all), and wait for all of them."""
        obs = self._obs_of(ids)
        memory = self.memory if ids is None else _rows_of(self.memory, ids)
        output = self._infer(obs, memory)
        stepped: Steps = self.envs.advance(output["action"], ids)
        extra = self._extra_columns(ids)
        if memory:
            self._store_memory(ids, output)
        collected = self._collect(ids, {**output, "obs": obs, **extra, **memory}, stepped)
        if ids is None:
            self.obs, self._owns_obs = stepped.obs, False
        else:
            self._writable_obs()[ids] = stepped.obs
        return collected

    def send(self, ids: Array, infer_all: bool = False) -> None:
        """Begin a step in the envs of `ids`.

        With `infer_all` the policy computes the actions of all ids, and the others are discarded.
        """
        obs, memory = self._obs_of(ids), _rows_of(self.memory, ids)
        if infer_all:
            output = _rows_of(self._infer(self._obs_of(None), self.memory), ids)
        else:
            output = self._infer(obs, memory)
        self.envs.send(ids, output["action"])
        self._store_memory(ids, output)
        for name, value in {**output, "obs": obs, **self._extra_columns(ids), **memory}.items():
            if name not in self._pending_columns:
                shape = (self.count, *value.shape[1:])
                self._pending_columns[name] = np.zeros(shape, value.dtype)
            self._pending_columns[name][ids] = value
        self.pending[ids] = True

    def receive(self, ids: Array | None = None, least: int = 1) -> CollectedSteps:
        """Return the pending steps of `ids`; without `ids`, the first ready ones, at least `least`."""
        received, stepped = self.envs.recv(ids, least)
        collected = self._collect(received, _rows_of(self._pending_columns, received), stepped)
        self._writable_obs()[received] = stepped.obs
        self.pending[received] = False
        return collected

    def _collect(
        self, ids: Array | None, columns: dict[str, Array], stepped: Steps
    ) -> CollectedSteps:
        """The steps that are complete, given the columns (B, …) of all steps that these ids began."""
        if stepped.acted is not None:
            columns = self._columns_of_begun_steps(ids, columns, stepped)
        collected = _collected_steps(ids, columns, stepped)
        if self.memory:
            self._clear_memory(collected, collected.absent if stepped.acted is None else ())
        return collected

    def _columns_of_begun_steps(
        self, ids: Array | None, columns: Mapping[str, Array], stepped: Steps
    ) -> dict[str, Array]:
        """Keep the columns of agents that acted in turn; return each agent's columns of its last action.

        What the policy gave for the others is dropped: their memory and the number of their steps stay as they were.
        """
        rows = np.arange(self.count) if ids is None else ids
        acted = np.array(stepped.acted)
        acted[list(stepped.failed)] = True
        waiting = rows[~acted]
        if self._origin is not None:
            self._origin.uncount(waiting)
        if self.memory:
            self.memory = {name: array.copy() for name, array in self.memory.items()}
            for name, array in self.memory.items():
                array[waiting] = columns[name][~acted]
        for name, value in columns.items():
            if name not in self._begun_columns:
                self._begun_columns[name] = np.zeros((self.count, *value.shape[1:]), value.dtype)
            self._begun_columns[name][rows[acted]] = value[acted]
        return {name: self._begun_columns[name][rows] for name in columns}

    def _extra_columns(self, ids: Array | None) -> dict[str, Array]:
        """The columns that neither the env nor the act mode outputs."""
        memory = self._zero_memory if ids is None else _rows_of(self._zero_memory, ids)
        return memory if self._origin is None else {**memory, **self._origin.step(ids)}

    def _obs_of(self, ids: Array | None) -> Array:
        if self.obs is None:
            self.reset()
        obs: Any = self.obs
        return obs if ids is None else obs[ids]

    def _writable_obs(self) -> Array:
        """The observations as an array that the actor may write to; it copies the manager's array."""
        if not self._owns_obs:
            self.obs, self._owns_obs = np.array(self.obs), True
        return self.obs  # type: ignore[return-value]

    def _call_mode(self, obs: Any, memory: Mapping[str, Array]) -> dict[str, Array]:
        output: dict[str, Array] = (
            self.mode.forward(obs, memory) if memory else self.mode.forward(obs)
        )
        if self._unchecked_columns:  # numpy would broadcast an output that is too small
            for name, column in self._unchecked_columns.items():
                _check_output(name, column, output, len(obs))
            self._unchecked_columns = {}
        return output

    def _store_memory(self, ids: Array | None, output: Mapping[str, Array]) -> None:
        if ids is None:
            self.memory = {name: output[name] for name in self.memory}
            return
        self.memory = {name: array.copy() for name, array in self.memory.items()}
        for name, array in self.memory.items():
            array[ids] = output[name]

    def _clear_memory(self, collected: CollectedSteps, absent: Sequence[int] | Array) -> None:
        """Set the memory to zero where an episode begins, and of `absent` ids."""
        over = collected.columns["terminated"] | collected.columns["truncated"]
        if over.any() or len(collected.failed) or len(absent):
            ended = np.flatnonzero(over) if collected.ids is None else collected.ids[over]
            for array in self.memory.values():
                for ids in (ended, collected.failed, absent):
                    array[np.asarray(ids, np.int64)] = 0

    def _discard_pending_steps(self) -> None:
        if self.pending.any():
            self.envs.recv(np.flatnonzero(self.pending))
            self.pending[:] = False

    def _zeros(self, columns: Schema) -> dict[str, Array]:
        return {n: np.zeros((self.count, *c.shape), c.dtype) for n, c in columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """The observations and the memory; no step may be pending."""
        memory = {name: array.copy() for name, array in self.memory.items()}
        begun = {name: array.copy() for name, array in self._begun_columns.items()}
        obs = None if self.obs is None else self.obs.copy()
        return {"obs": obs, "memory": memory, "begun": begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.obs = None if state["obs"] is None else np.array(state["obs"])
        self._owns_obs = True
        self.memory = {name: np.array(state["memory"][name]) for name in self.memory}
        self._begun_columns = {name: np.array(array) for name, array in state["begun"].items()}


def _rows_of(columns: Mapping[str, Array], ids: Array) -> dict[str, Array]:
    return {name: array[ids] for name, array in columns.items()}


def _collected_steps(
    ids: Array | None, columns: dict[str, Array], stepped: Steps
) -> CollectedSteps:
    _, reward, terminated, truncated, next_obs, episodes, failed, absent, info, _ = stepped
    if info:
        columns.update((PREFIX + name, values) for name, values in info.items())
        episodes = with_last_info(stepped, ids)
    if len(failed):  # the flags of an invalid row do not say that an episode ended
        terminated, truncated = terminated.copy(), truncated.copy()
        terminated[failed] = truncated[failed] = False
        failed = [int(k) if ids is None else int(ids[k]) for k in failed]
    columns.update(reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs)
    collected = CollectedSteps(ids, columns, episodes, failed)
    if not len(absent):
        return collected
    acted = np.ones(len(reward), np.bool_)
    acted[absent] = False
    absent_ids = np.flatnonzero(~acted) if ids is None else ids[~acted]
    return collected.select(acted)._replace(absent=absent_ids)


def _check_output(name: str, column: Column, output: Mapping[str, Array], rows: int) -> None:
    if name not in output:
        found = ", ".join(output) or "nothing"
        raise ValueError(f"a policy's act mode outputs {found}; it must output '{name}' ({column})")
    array = np.asarray(output[name])
    # actions are cast by the env manager, which knows what types its envs take
    fits = name == "action" or np.can_cast(array.dtype, column.dtype, "same_kind")
    if array.shape != (rows, *column.shape) or not fits:
        raise ValueError(
            f"a policy's act mode outputs '{name}' as {array.dtype}{list(array.shape)} for {rows} "
            f"observations; it must be {column} for each"
        )
