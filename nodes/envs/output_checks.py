"""Arrays from what envs gave, checked against what their spaces promise."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.observations import NestedColumns, ObsColumns, leaf_value

MAX_REWARD = float(np.finfo(np.float32).max)  # rewards travel in single precision
NUMBERS = "biuf"  # kinds of dtypes: truth values count as 0 and 1


class InvalidOutputError(ValueError):
    """The `k`-th of the values is not what was promised."""

    def __init__(self, k: int, what: str) -> None:
        self.k = k
        super().__init__(what)


def check_observations(seen: Sequence[Any], observed: ObsColumns, dtype: np.dtype[Any]) -> Array:
    """Observations as one new array (B, …) of the dtype, which is the column's."""
    if isinstance(observed, NestedColumns):
        return _nested(seen, observed, dtype)
    return _plain(seen, observed, dtype)


def check_observation(one: Any, observed: ObsColumns, dtype: np.dtype[Any]) -> Array:
    """One observation as the column has it; perhaps the same array."""
    if (
        type(one) is np.ndarray
        and one.dtype == dtype
        and not isinstance(observed, NestedColumns)
        and observed.n is None
        and one.shape == observed.shape
        and (dtype.kind != "f" or _finite(one))
    ):
        return one
    found: Array = check_observations([one], observed, dtype)[0]
    return found


def _nested(seen: Sequence[Any], nested: NestedColumns, dtype: np.dtype[Any]) -> Array:
    found = np.empty(len(seen), dtype)
    for leaf, column in nested.columns.items():
        values = [_leaf(one, leaf, k) for k, one in enumerate(seen)]
        try:
            found[leaf] = _plain(values, column, dtype[leaf].base)
        except InvalidOutputError as bad:
            raise InvalidOutputError(bad.k, f"'{leaf}': {bad}") from bad
    return found


def _leaf(value: Any, leaf: str, k: int) -> Any:
    try:
        return leaf_value(value, leaf)
    except (LookupError, TypeError) as missing:
        raise InvalidOutputError(
            k, f"the observation has no '{leaf}', which its space promises"
        ) from missing


def _plain(seen: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    try:
        obs = np.array(seen)
    except ValueError:  # their shapes differ
        obs = _cast(seen, column, dtype)
    if obs.dtype != dtype or obs.shape[1:] != column.shape:
        obs = _cast(seen, column, dtype)
    if dtype.kind == "f" and not _finite(obs):
        k = next(k for k, one in enumerate(obs) if not np.isfinite(one).all())
        raise InvalidOutputError(k, f"the observation is not finite: {obs[k]}")
    if column.n is not None and not _below(obs, column.n):
        k = next(k for k, one in enumerate(obs) if not _below(one, column.n))
        raise InvalidOutputError(
            k, f"the observation is {obs[k]}; its space says 0 to {column.n - 1}"
        )
    return obs


def check_rows(
    seen: Sequence[Any],
    given: Sequence[Any],
    failed: dict[int, BaseException],
    observed: ObsColumns,
    dtype: np.dtype[Any],
) -> tuple[Array, Array, list[int]]:
    """Observations and rewards, and the rows of them that are good; of others, why not goes to
    `failed`."""
    obs, reward = np.zeros((len(seen), *observed.shape), dtype), np.zeros(len(seen))
    while True:
        good = [k for k in range(len(seen)) if k not in failed]
        try:
            if good:
                obs[good] = check_observations([seen[k] for k in good], observed, dtype)
                reward[good] = check_rewards([given[k] for k in good])
            return obs, reward, good
        except InvalidOutputError as bad:
            failed[good[bad.k]] = bad


def check_rewards(given: Sequence[Any]) -> Array:
    """Rewards as one new array (B,) float64, of numbers that single precision holds, too."""
    try:
        array = np.array(given)
    except ValueError:  # their shapes differ
        array = np.zeros(0)
    one_each = array.shape == (len(given),) and array.dtype.kind in NUMBERS
    if one_each and np.count_nonzero(np.abs(array) <= MAX_REWARD) == len(array):
        return array.astype(np.float64, copy=False)
    for k, reward in enumerate(given):
        if not _is_number(reward):
            what = "it must be a finite number, also in single precision"
            raise InvalidOutputError(k, f"the reward is {reprlib.repr(reward)}; {what}")
    return np.array(list(map(float, given)))


def _finite(values: Array) -> bool:
    return np.count_nonzero(np.isfinite(values)) == values.size  # `all` takes twice as long


class FiniteCheck:
    """Whether all numbers of some arrays, which are written to at each step, are finite: several
    times as fast as numpy's `all`, which costs more than an env's step."""

    def __init__(self, *several: Array) -> None:
        self._looks = [
            (values, np.empty(values.shape, np.bool_), bytes([True]) * values.size)
            for values in several
        ]

    def __call__(self) -> bool:
        for values, found, yes in self._looks:  # noqa: SIM110 (a generator takes longer)
            if np.isfinite(values, found).tobytes() != yes:
                return False
        return True


def _below(values: Array, n: int) -> bool:
    return np.count_nonzero((values >= 0) & (values < n)) == values.size


def _is_number(reward: Any) -> bool:
    try:
        array = np.asarray(reward)
    except ValueError:
        return False
    return array.ndim == 0 and array.dtype.kind in NUMBERS and bool(np.abs(array) <= MAX_REWARD)


def _cast(seen: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    found = np.empty((len(seen), *column.shape), dtype)
    for k, one in enumerate(seen):
        try:
            array = np.asarray(one)
        except ValueError as ragged:
            raise InvalidOutputError(k, f"the observation is no array: {ragged}") from ragged
        if array.shape != column.shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            named = array.dtype.kind == "O"
            got = reprlib.repr(one) if named else Column(str(array.dtype), array.shape)
            raise InvalidOutputError(k, f"the observation is {got}; its space says {column}")
        with np.errstate(over="ignore"):  # what becomes infinite is found right after
            found[k] = array
        if dtype.kind in "iu" and not np.array_equal(found[k], array):
            raise InvalidOutputError(
                k, f"the observation is {array}, which is more than {column} holds"
            )
    return found
