"""A policy with fixed weights that acts greedily, for use outside of collectors and evaluators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.state import State
from flowrl.nodes.configured_policies import made_policy
from flowrl.nodes.observations import NestedColumns, ObsColumns, leaf_columns, leaf_value
from flowrl.nodes.policy import AnyActMode, Policy


class GreedyPolicy:
    """Acts on one observation, or on a batch of them, and keeps the memory of a recurrent policy."""

    def __init__(self, policy: Policy, weights: State | None = None, seed: int = 0) -> None:
        """`weights` may be omitted for a policy that acts without them."""
        self.policy, self._weights = made_policy(policy), weights
        if weights is None and not self.policy.acts_without_weights:
            raise ValueError(
                f"{type(self.policy).__name__} needs weights to act; give those of a learner: `learner.state()`"
            )
        self._mode: Any = self.act_mode(seed)
        self.memory: dict[str, Array] = {}

    def __repr__(self) -> str:
        policy = self.policy
        return f"<GreedyPolicy {type(policy).__name__}: {policy.obs} -> {policy.action}>"

    def act_mode(self, seed: int, explores: bool = False) -> AnyActMode:
        """Return a new act mode with the weights: one that explores as collectors do, or a greedy one."""
        mode = (self.policy.collect_mode if explores else self.policy.eval_mode)(seed)
        if self._weights is not None:
            mode.load(self._weights)
        return mode

    def act(self, obs: Any) -> Any:
        """Return the action for one observation, or the actions for a batch of them (B, …)."""
        rows, is_batch = observation_rows(self.policy.obs, obs)
        memory = self._memory_for(len(rows))
        output = self._mode.forward(rows, memory) if memory else self._mode.forward(rows)
        self.memory = {name: output[name] for name in memory}
        return output["action"] if is_batch else output["action"][0]

    def reset(self, rows: Any = None) -> None:
        """Clear the memory, because episodes begin: in these rows of the batch, or in all rows."""
        if rows is None:
            self.memory = {}
        for name, array in self.memory.items():
            self.memory[name] = array.copy()
            self.memory[name][rows] = 0

    def export_onnx(self, path: str | Path) -> Path:
        """Write what the policy does as an ONNX file, which maps a batch of observations to actions.

        Its inputs are `obs` (B, …), or the leaves of nested observations by name, and its output is `action` (B, …).
        """
        from flowrl.nodes.models.onnx_export import export_onnx

        return export_onnx(self.policy, self._weights, Path(path))

    def _memory_for(self, rows: int) -> dict[str, Array]:
        columns: Mapping[str, Column] = getattr(self._mode, "memory", {})
        if not self.memory:
            return {
                name: np.zeros((rows, *column.shape), column.dtype)
                for name, column in columns.items()
            }
        known = len(next(iter(self.memory.values())))
        if known != rows:
            raise ValueError(
                f"act: {rows} observations after {known}, and a recurrent policy has a memory for each row; "
                "call `reset()` before the number changes"
            )
        return self.memory


def observation_rows(columns: ObsColumns, obs: Any) -> tuple[Array, bool]:
    """Convert observations as an env returns them to rows (B, …); also return whether they are a batch."""
    leaves, batches = {}, set()
    for name, column in leaf_columns(columns).items():
        leaves[name], is_batch = _leaf_rows(column, _leaf(obs, name), name)
        batches.add((len(leaves[name]), is_batch))
    if len(batches) > 1:
        sizes = ", ".join(f"'{name}' {len(rows)}" for name, rows in leaves.items())
        raise ValueError(f"act: the leaves differ in their number of rows: {sizes}")
    [(count, is_batch)] = batches
    if not isinstance(columns, NestedColumns):
        return leaves[""], is_batch
    rows = columns.empty(count)
    for name, leaf in leaves.items():
        rows[name] = leaf
    return rows, is_batch


def _leaf(obs: Any, name: str) -> Any:
    if isinstance(obs, np.ndarray) and obs.dtype.names is not None:
        return obs[name]
    try:
        return leaf_value(obs, name)
    except (KeyError, IndexError, TypeError):
        raise ValueError(
            f"act: the observation has no leaf '{name}'; expected it as the env returns it"
        ) from None


def _leaf_rows(column: Column, value: Any, name: str) -> tuple[Array, bool]:
    array = np.asarray(value)
    what = f"act: the observation{name and f' {name!r}'} has"
    is_batch = array.ndim == len(column.shape) + 1
    if array.shape[int(is_batch) :] != column.shape:
        one, many = column.shape, ("B", *column.shape)
        raise ValueError(
            f"{what} the shape {array.shape}; expected {one}, or ({', '.join(map(str, many))}) for a batch"
        )
    if not np.can_cast(array.dtype, column.dtype, "same_kind"):
        raise ValueError(f"{what} the dtype {array.dtype}; expected {column.dtype}")
    array = np.ascontiguousarray(array, column.dtype)
    return (array if is_batch else array.reshape(1, *column.shape)), is_batch
