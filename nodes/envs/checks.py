"""Arrays from what envs gave, checked against what their spaces promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.batch import Array, Column
from flowrl.nodes.observations import Nested, Observed, leaf_of


class Bad(ValueError):
    """The `k`-th of the values is not what was promised."""

    def __init__(self, k: int, what: str) -> None:
        self.k = k
        super().__init__(what)


def observations(seen: Sequence[Any], observed: Observed, dtype: np.dtype[Any]) -> Array:
    """Observations as one new array (B, …) of the dtype, which is the column's."""
    if isinstance(observed, Nested):
        return _nested(seen, observed, dtype)
    return _plain(seen, observed, dtype)


def observation(one: Any, observed: Observed, dtype: np.dtype[Any]) -> Array:
    """One observation as the column has it; perhaps the same array."""
    if (
        type(one) is np.ndarray
        and one.dtype == dtype
        and not isinstance(observed, Nested)
        and one.shape == observed.shape
        and (dtype.kind != "f" or _finite(one))
    ):
        return one
    found: Array = observations([one], observed, dtype)[0]
    return found


def _nested(seen: Sequence[Any], nested: Nested, dtype: np.dtype[Any]) -> Array:
    found = np.empty(len(seen), dtype)
    for leaf, column in nested.columns.items():
        values = [_leaf(one, leaf, k) for k, one in enumerate(seen)]
        try:
            found[leaf] = _plain(values, column, dtype[leaf].base)
        except Bad as bad:
            raise Bad(bad.k, f"'{leaf}': {bad}") from bad
    return found


def _leaf(value: Any, leaf: str, k: int) -> Any:
    try:
        return leaf_of(value, leaf)
    except (LookupError, TypeError) as missing:
        raise Bad(k, f"the observation has no '{leaf}', which its space promises") from missing


def _plain(seen: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    try:
        obs = np.array(seen)
    except ValueError:  # their shapes differ
        obs = _cast(seen, column, dtype)
    if obs.dtype != dtype or obs.shape[1:] != column.shape:
        obs = _cast(seen, column, dtype)
    if dtype.kind == "f" and not _finite(obs):
        k = next(k for k, one in enumerate(obs) if not np.isfinite(one).all())
        raise Bad(k, f"the observation is not finite: {obs[k]}")
    return obs


def good_rows(
    seen: Sequence[Any],
    given: Sequence[Any],
    failed: dict[int, BaseException],
    observed: Observed,
    dtype: np.dtype[Any],
) -> tuple[Array, Array, list[int]]:
    """Observations and rewards, and the rows of them that are good; of others, why not goes to
    `failed`."""
    obs, reward = np.zeros((len(seen), *observed.shape), dtype), np.zeros(len(seen))
    while True:
        good = [k for k in range(len(seen)) if k not in failed]
        try:
            if good:
                obs[good] = observations([seen[k] for k in good], observed, dtype)
                reward[good] = rewards([given[k] for k in good])
            return obs, reward, good
        except Bad as bad:
            failed[good[bad.k]] = bad


def rewards(given: Sequence[Any]) -> Array:
    """Rewards as one new array (B,) float64."""
    try:
        array = np.array(given, np.float64)
        if array.ndim == 1 and _finite(array):
            return array
    except (TypeError, ValueError):
        pass  # said below, with the place
    k = next(k for k, reward in enumerate(given) if not _is_number(reward))
    raise Bad(k, f"the reward is {given[k]!r}; it must be a finite number")


def _finite(values: Array) -> bool:
    return np.count_nonzero(np.isfinite(values)) == values.size  # `all` takes twice as long


class AllFinite:
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


def _is_number(reward: Any) -> bool:
    try:
        return np.ndim(reward) == 0 and bool(np.isfinite(float(reward)))
    except (TypeError, ValueError):
        return False


def _cast(seen: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    for k, one in enumerate(map(np.asarray, seen)):
        if one.shape != column.shape or not np.can_cast(one.dtype, dtype, "same_kind"):
            got = Column(str(one.dtype), one.shape)
            raise Bad(k, f"the observation is {got}; its space says {column}")
    with np.errstate(over="ignore"):  # what becomes infinite is found right after
        return np.array(seen).astype(dtype)
