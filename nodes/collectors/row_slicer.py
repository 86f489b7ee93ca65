"""Turns steps into the rows of tokens: steps wait in `PendingSteps`, and a `RowSlicer` cuts rows from them.

A slice is one step or, if the policy learns from unrolls, an unroll of a fixed length. The slices of an
env follow each other with a fixed stride; unrolls overlap by the policy's burn-in steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.facts import UnsoundError
from flowrl.nodes.collectors.actor import CollectedSteps
from flowrl.nodes.collectors.transitions import transitions
from flowrl.nodes.observations import ObsColumns, flatten_columns
from flowrl.nodes.policy import Policy, unroll_column


@dataclass(frozen=True, slots=True)
class RowSlicer:
    """Cuts rows from steps as a policy requires."""

    gamma: float
    length: int  # the steps of a slice
    overlap: int  # the steps that a slice shares with the one before it
    unrolls: bool  # whether a row is a whole slice (T, …) instead of a step
    memory: frozenset[str]  # the columns of which an unroll has only the first value

    @classmethod
    def for_policy(cls, policy: Policy, gamma: float | None = None) -> RowSlicer:
        """As the policy that acts requires. Rows are discounted by `gamma`, or else by that of the policy."""
        steps, memory = policy.unroll_steps, frozenset(policy.memory_columns())
        overlap = policy.burn_in_steps if steps else 0
        discount = policy.gamma if gamma is None else gamma
        return cls(discount, steps or 1, overlap, steps is not None, memory)

    @property
    def stride(self) -> int:
        """The number of steps from one slice to the next."""
        return self.length - self.overlap

    def slice_count(self, step_counts: Array) -> int:
        """The number of whole slices in all envs, given each env's number of steps."""
        return int((np.maximum(step_counts - self.overlap, 0) // self.stride).sum())

    def steps_needed(self, slices: int, step_counts: Array) -> int:
        """The number of steps that every env must take to complete this number of slices."""
        spare = step_counts - self.overlap
        steps = max(0, -(-(slices * self.stride - int(spare.sum())) // len(step_counts)))
        while self.slice_count(step_counts + steps) < slices:
            steps += 1
        return steps

    def choose(self, begin: Array, end: int, slices: int) -> tuple[Array, Array]:
        """The envs and first steps of the earliest slices, sorted by env and then by time.

        The steps of env e go from `begin[e]` to `end`.
        """
        # (B, M): the number of an env's steps up to and including each step
        position = np.arange(end) - begin[:, None] + 1
        ends = (position >= self.length) & ((position - self.overlap) % self.stride == 0)
        time, env = np.nonzero(ends.T)  # by time, then by env
        order = np.argsort(env[:slices], kind="stable")
        return env[order], time[order] + 1 - self.length

    def rows(
        self, steps: Mapping[str, Array], env: Array, first: Array, all_steps: bool
    ) -> dict[str, Array]:
        """Return the rows of slices; `all_steps` says that these are all steps, in their order."""
        rows = transitions(steps, self.gamma)
        if self.unrolls:
            return self._unrolls(rows, env, first)
        last_of_env = np.append(env[1:] != env[:-1], True)
        if all_steps:  # a reshape is cheaper than a gather
            sliced = {k: v.reshape(len(env), *v.shape[2:]) for k, v in rows.items()}
        else:
            sliced = {k: v[env, first] for k, v in rows.items()}
        sliced["last"] |= last_of_env  # the next row belongs to another env or token
        return sliced

    def _unrolls(self, rows: Mapping[str, Array], env: Array, first: Array) -> dict[str, Array]:
        time = first[:, None] + np.arange(self.length)
        sliced = {
            name: array[env, first] if name in self.memory else array[env[:, None], time]
            for name, array in rows.items()
        }
        sliced["last"][:, -1] = True  # the next row is another unroll
        return sliced


def sliced_schema(rows: Schema, policy: Policy) -> Schema:
    """The columns of a token, given the columns of a row of one step; unrolls add a time axis."""
    slicer = RowSlicer.for_policy(policy)
    if not slicer.unrolls:
        return rows
    return {
        name: column if name in slicer.memory else unroll_column(column, slicer.length)
        for name, column in rows.items()
    }


def check_rewards_of_unrolls(policy: Policy) -> None:
    """Refuse a policy of unrolls that leaves sums of rewards to a buffer."""
    if policy.nstep > 1 and policy.unroll_steps is not None:
        what = f"{type(policy).__name__} learns from unrolls, whose rewards nothing sums"
        raise UnsoundError(what, "let it sum them itself, and give it `nstep: 1`", "policy")


class PendingSteps:
    """Steps that are in no token yet, as columns (B, T, …); env e has those from `begin[e]` to `end[e]`."""

    def __init__(self, columns: Mapping[str, ObsColumns], envs: int) -> None:
        self._columns = columns
        self.arrays = {name: column.empty(envs, 0) for name, column in columns.items()}
        self.begin, self.end = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self._ends_equal = True  # if true, the steps of all envs end at one index

    @property
    def counts(self) -> Array:
        """The number of steps of each env."""
        return self.end - self.begin

    def make_room(self, steps: int) -> None:
        """Make room for `steps` more steps of each env, in new arrays because tokens may share the old ones.

        Afterwards the steps of all envs end at one index, so a step of all envs takes one write.
        """
        counts, old = self.counts, self.arrays
        width, envs = int(counts.max()), len(counts)
        self.arrays = {n: _zeros(c.empty(envs, width + steps)) for n, c in self._columns.items()}
        first_end = int(self.end[0])
        for name, array in self.arrays.items():
            if width and (self.end == first_end).all():
                array[:, :width] = old[name][:, first_end - width : first_end]
                continue
            for env in np.flatnonzero(counts):
                span = slice(self.begin[env], self.end[env])
                array[env, width - counts[env] : width] = old[name][env, span]
        self.begin, self.end, self._ends_equal = width - counts, np.full(envs, width), True

    def add(self, collected: CollectedSteps) -> int:
        """Add one step of some envs; return the number of steps dropped with failed episodes."""
        ids = collected.ids
        if ids is None and not self._ends_equal:
            ids = np.arange(len(self.end))
        if ids is None:
            index = self.end[0]
            for name, array in self.arrays.items():
                array[:, index] = collected.columns[name]
            self.end += 1
        else:
            ends = self.end[ids]
            if len(ids) and ends.max() == self.arrays["reward"].shape[1]:
                self.make_room(1 + int(self.counts.max()))
                ends = self.end[ids]
            for name, array in self.arrays.items():
                array[ids, ends] = collected.columns[name]
            self.end[ids] += 1
            self._ends_equal = False
        return sum(map(self._drop_failed, collected.failed)) if len(collected.failed) else 0

    def _drop_failed(self, env: int) -> int:
        """Drop an env's steps since its last complete episode, and move the others to the end."""
        begin, end = self.begin[env], self.end[env]
        done = self.arrays["terminated"][env, begin:end] | self.arrays["truncated"][env, begin:end]
        kept = int(np.flatnonzero(done)[-1]) + 1 if done.any() else 0
        dropped = int(end - begin) - kept
        for array in self.arrays.values():
            array[env, begin + dropped : end] = array[env, begin : begin + kept].copy()
        self.begin[env] += dropped
        return dropped

    def take(self, slicer: RowSlicer, slices: int) -> Batch:
        """Remove the earliest slices and return their rows, sorted by env."""
        if (self.end != self.arrays["reward"].shape[1]).any():
            self.make_room(0)
        steps = self.arrays["reward"].shape[1]
        env, first = slicer.choose(self.begin, steps, slices)
        all_steps = not self.begin.any() and len(env) == len(self.begin) * steps
        rows = slicer.rows(self.arrays, env, first, all_steps and not slicer.unrolls)
        self.begin = self.begin + np.bincount(env, minlength=len(self.begin)) * slicer.stride
        return Batch(flatten_columns(rows))

    def state_dict(self) -> dict[str, Any]:
        self.make_room(0)
        return {"steps": self.arrays, "begin": self.begin}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.arrays = {name: np.array(state["steps"][name]) for name in self._columns}
        self.begin = np.array(state["begin"], np.int64)
        self.end = np.full(len(self.begin), self.arrays["reward"].shape[1])
        self._ends_equal = True


def _zeros(array: Array) -> Array:
    """Return zeros like `array`; an uninitialised array might hold NaN where no step is written."""
    return np.zeros(array.shape, array.dtype)
