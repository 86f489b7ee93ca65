"""Converts what envs return to arrays, and checks it against their spaces."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.errors import InvalidResultError
from flowrl.nodes.observations import NestedColumns, ObsColumns, leaf_value

MAX_REWARD = float(np.finfo(np.float32).max)  # rewards are sent in single precision
REMEDY = "correct what the env returns, or its observation_space"
NUMERIC_KINDS = "biuf"  # of dtypes; booleans count as 0 and 1


class InvalidOutputError(InvalidResultError):
    """The `k`-th of some values is not in its space."""

    def __init__(self, k: int, what: str) -> None:
        self.k = k
        super().__init__(what)


def check_observations(obs: Sequence[Any], columns: ObsColumns, dtype: np.dtype[Any]) -> Array:
    """Convert observations to one new array (B, …) of the columns' dtype."""
    if isinstance(columns, NestedColumns):
        return _nested_rows(obs, columns, dtype)
    return _plain_rows(obs, columns, dtype)


def check_observation(obs: Any, columns: ObsColumns, dtype: np.dtype[Any]) -> Array:
    """Convert one observation; if nothing is to be converted, return the same array."""
    if (
        type(obs) is np.ndarray
        and obs.dtype == dtype
        and not isinstance(columns, NestedColumns)
        and columns.n is None
        and obs.shape == columns.shape
        and (dtype.kind != "f" or _all_finite(obs))
    ):
        return obs
    row: Array = check_observations([obs], columns, dtype)[0]
    return row


def check_rows(
    obs: Sequence[Any],
    rewards: Sequence[Any],
    failures: dict[int, BaseException],
    columns: ObsColumns,
    dtype: np.dtype[Any],
) -> tuple[Array, Array, list[int]]:
    """Observations, rewards, and the indices of rows where both are valid; errors of others are added to `failures`."""
    checked_obs = np.zeros((len(obs), *columns.shape), dtype)
    checked_rewards = np.zeros(len(obs))
    while True:
        valid = [k for k in range(len(obs)) if k not in failures]
        try:
            if valid:
                checked_obs[valid] = check_observations([obs[k] for k in valid], columns, dtype)
                checked_rewards[valid] = check_rewards([rewards[k] for k in valid])
            return checked_obs, checked_rewards, valid
        except InvalidOutputError as invalid:
            failures[valid[invalid.k]] = invalid


def check_rewards(rewards: Sequence[Any]) -> Array:
    """Convert rewards to one new array (B,) float64; each must be finite in single precision, too."""
    try:
        array = np.array(rewards)
    except ValueError:  # their shapes differ
        array = np.zeros(0)
    one_each = array.shape == (len(rewards),) and array.dtype.kind in NUMERIC_KINDS
    if one_each and np.count_nonzero(np.abs(array) <= MAX_REWARD) == len(array):
        return array.astype(np.float64, copy=False)
    for k, reward in enumerate(rewards):
        if not _is_valid_reward(reward):
            what = "it must be a finite number, also in single precision"
            raise InvalidOutputError(k, f"the reward is {reprlib.repr(reward)}; {what}")
    return np.array(list(map(float, rewards)))


def check_ends(terminated: Any, truncated: Any, agent: str = "") -> tuple[bool, bool]:
    """Convert what a step says about the end of an episode, or of an agent's, to two booleans."""
    return _check_flag("terminated", terminated, agent), _check_flag("truncated", truncated, agent)


def _check_flag(name: str, value: Any, agent: str) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.zeros(0)
    if array.size == 1 and array.dtype.kind in NUMERIC_KINDS and array.item() in (0, 1):
        return bool(array.item())
    whose = f"agent {agent}: " if agent else ""
    raise InvalidOutputError(0, f"{whose}{name} is {reprlib.repr(value)}; it must be true or false")


class FiniteCheck:
    """Whether all numbers of some arrays, which are written to in each step, are finite.

    This is several times as fast as numpy's `all`, which costs more than a step of a cheap env.
    """

    def __init__(self, *arrays: Array) -> None:
        self._buffers = [
            (values, np.empty(values.shape, np.bool_), bytes([True]) * values.size)
            for values in arrays
        ]

    def __call__(self) -> bool:
        for values, finite, all_true in self._buffers:  # noqa: SIM110 (a generator takes longer)
            if np.isfinite(values, finite).tobytes() != all_true:
                return False
        return True


def _nested_rows(obs: Sequence[Any], nested: NestedColumns, dtype: np.dtype[Any]) -> Array:
    rows = np.empty(len(obs), dtype)
    for leaf, column in nested.columns.items():
        values = [_leaf(one, leaf, k) for k, one in enumerate(obs)]
        try:
            rows[leaf] = _plain_rows(values, column, dtype[leaf].base)
        except InvalidOutputError as invalid:
            raise InvalidOutputError(invalid.k, f"'{leaf}': {invalid}") from invalid
    return rows


def _leaf(obs: Any, leaf: str, k: int) -> Any:
    try:
        return leaf_value(obs, leaf)
    except (LookupError, TypeError) as missing:
        raise InvalidOutputError(
            k, f"the observation has no '{leaf}', which its space requires"
        ) from missing


def _plain_rows(values: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    try:
        obs = np.array(values)
    except ValueError:  # their shapes differ
        obs = _cast_each(values, column, dtype)
    if obs.dtype != dtype or obs.shape[1:] != column.shape:
        obs = _cast_each(values, column, dtype)
    if dtype.kind == "f" and not _all_finite(obs):
        k = next(k for k, one in enumerate(obs) if not np.isfinite(one).all())
        raise InvalidOutputError(k, f"the observation is not finite: {obs[k]}")
    if column.n is not None and not _all_below(obs, column.n):
        k = next(k for k, one in enumerate(obs) if not _all_below(one, column.n))
        raise InvalidOutputError(
            k, f"the observation is {obs[k]}; its space allows 0 to {column.n - 1}; {REMEDY}"
        )
    return obs


def _cast_each(values: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    rows = np.empty((len(values), *column.shape), dtype)
    for k, value in enumerate(values):
        try:
            array = np.asarray(value)
        except ValueError as ragged:
            raise InvalidOutputError(k, f"the observation is no array: {ragged}") from ragged
        if array.shape != column.shape or not _may_fit(array.dtype, dtype):
            is_object = array.dtype.kind == "O"
            shown = reprlib.repr(value) if is_object else Column(str(array.dtype), array.shape)
            raise InvalidOutputError(
                k, f"the observation is {shown}; its space is {column}; {REMEDY}"
            )
        with np.errstate(over="ignore"):  # overflow to infinity is detected by the caller
            rows[k] = array
        if dtype.kind in "iu" and not np.array_equal(rows[k], array):
            raise InvalidOutputError(
                k, f"the observation is {array}, which is out of range for {column}; {REMEDY}"
            )
    return rows


def _may_fit(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values of one dtype may be values of another; whether whole numbers are in its range is seen later."""
    are_whole = found.kind in "biu" and wanted.kind in "iu"
    return are_whole or np.can_cast(found, wanted, "same_kind")


def _all_finite(values: Array) -> bool:
    return np.count_nonzero(np.isfinite(values)) == values.size  # `all` takes twice as long


def _all_below(values: Array, n: int) -> bool:
    return np.count_nonzero((values >= 0) & (values < n)) == values.size


def _is_valid_reward(reward: Any) -> bool:
    try:
        array = np.asarray(reward)
    except ValueError:
        return False
    is_number = array.ndim == 0 and array.dtype.kind in NUMERIC_KINDS
    return is_number and bool(np.abs(array) <= MAX_REWARD)
