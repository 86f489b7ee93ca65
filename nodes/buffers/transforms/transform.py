"""Transforms change rows when they are drawn, such as to hindsight goals.

Stored rows never change. A transform of your own is a subclass of `Transform`, named by its import path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, PartSpec, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes.buffers.episodes.segments import SegmentIndex, recovered_columns
from flowrl.nodes.buffers.row_windows import RowWindows
from flowrl.nodes.nstep import columns_of_end


class SampledRows:
    """The rows of a draw. A column is gathered when it is first read, so that no column is gathered needlessly."""

    def __init__(
        self,
        windows: RowWindows,
        segments: SegmentIndex,
        places: Array,
        rng: np.random.Generator,
        groups: Array | None = None,
    ) -> None:
        # (W,) the sequence or episode that each row was drawn with, from 0; otherwise each row is drawn by itself
        self.groups = np.arange(len(places)) if groups is None else groups
        self.ends = np.zeros(len(places), bool)  # with which rows transforms end the episode
        self.numbers = windows.ring.numbers_of(places)  # (W,) the numbers of the drawn rows
        self.segments = segments  # finds the rows before and after a row in its episode
        self.rng = rng  # for random draws of transforms
        self._ring, self._windows = windows.ring, windows
        self._sources: dict[str, Array] = {}  # columns that are taken from other rows
        self._columns: dict[str, Array] = {}
        if windows.rule is not None:
            self._columns = windows.summed(places)
            ends = self._ring.numbers_of(windows.ends(places))
            self._sources = dict.fromkeys(columns_of_end(windows.names), ends)

    def __getitem__(self, name: str) -> Array:
        """A column (W, …) after the transforms that have been applied."""
        if name not in self._columns:
            self._columns[name] = self.stored(name, self._sources.get(name, self.numbers))
        return self._columns[name]

    def __setitem__(self, name: str, column: Array) -> None:
        self._columns[name] = column

    def stored(self, name: str, rows: Array) -> Array:
        """Return the stored column of any rows that are held; `rows` may have any shape."""
        ring = self._ring
        flat: Array = ring.take(ring.places_of(rows.reshape(-1)), [name])[name]
        return flat.reshape(*rows.shape, *flat.shape[1:])

    @property
    def names(self) -> list[str]:
        return self._windows.names

    @property
    def gamma(self) -> float:
        """The discount of the rewards of a window; 1 if a window is one row."""
        rule = self._windows.rule
        return 1.0 if rule is None else rule.gamma

    def windows_of(self, rows: Array) -> tuple[Array, Array]:
        """Return the rows (W, nstep) of the window of each row (W,), and which of them exist.

        Beyond the end of a window, its last row is repeated. Without n-step rewards, a window is the row itself.
        """
        rule = self._windows.rule
        return self.segments.follow(rows, 1 if rule is None else rule.nstep)

    @property
    def last_of_groups(self) -> Array:
        """The number of the last row of each sequence or episode; of each row, if it was drawn by itself."""
        return self.numbers[np.flatnonzero(np.diff(self.groups, append=-1))]

    def columns(self) -> dict[str, Array]:
        """Return all columns. Columns that no transform read are gathered now."""
        names = self.names
        rest = [name for name in names if name not in self._columns | self._sources]
        gathered = self._ring.take(self._ring.places_of(self.numbers), rest)
        return {k: gathered[k] if k in gathered else self[k] for k in names}


class Transform(Part):
    """Changes rows when they are drawn; the stored rows stay as they are."""

    kind = "transform"
    computes_rewards: ClassVar[bool] = False  # replaces `reward`

    def check(self, schema: Schema) -> None:
        """Raise `UnsoundError` if the transform cannot work on rows with these columns."""
        raise NotImplementedError

    def apply(self, rows: SampledRows) -> None:
        """Change columns of the rows. Dtypes and shapes must not change."""
        raise NotImplementedError


class DiscountingConfig(BaseConfig):
    """The parameters of a transform that computes `discount`."""

    policy: Any = part(
        "policy", "the policy that learns, for its gamma", shared="policy", default=None
    )


def policy_gamma(transform: str, policy: Any) -> float:
    """Return the discount of the policy."""
    config: Any = getattr(policy, "config", None)
    if not hasattr(config, "gamma"):
        raise UnsoundError(
            f"{transform} needs a policy with `gamma`", "give it a `policy`", "policy"
        )
    return float(config.gamma)


class TransformPipeline:
    """The transforms of one buffer, applied in order, and the segments of its rows."""

    def __init__(
        self, transforms: Sequence[Any], windows: RowWindows, rng: np.random.Generator
    ) -> None:
        self.transforms = make_transforms(transforms)
        self._windows, self._rng, self._segments = windows, rng, SegmentIndex()
        if windows.ring.row_count:  # rows of an earlier process
            self.push(*recovered_columns(windows.ring))

    def push(self, columns: Mapping[str, Array], first: int) -> None:
        """Add rows that were pushed into the ring, the first of which has the number `first`."""
        if self.transforms and len(columns["last"]):
            self._segments.push(columns, first)
            self._segments.forget_before(self._windows.ring.oldest)

    def take(self, places: Array) -> dict[str, Array]:
        """Return the rows at these places, transformed."""
        return self.apply(places).columns() if self.transforms else self._windows.take(places)

    def take_groups(self, places: Array, groups: Array) -> tuple[dict[str, Array], Array]:
        """Return the rows of sequences or episodes, transformed, and which of them are beyond the new end of theirs."""
        if not self.transforms:
            return self._windows.take(places), np.zeros(len(places), bool)
        rows = self.apply(places, groups)
        ended = np.cumsum(rows.ends) - rows.ends  # before each row
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        return rows.columns(), ended > ended[first][groups]

    def apply(self, places: Array, groups: Array | None = None) -> SampledRows:
        """Return the rows at these places after all transforms."""
        rows = SampledRows(self._windows, self._segments, places, self._rng, groups)
        for transform in self.transforms:
            transform.apply(rows)
        return rows

    def clear(self) -> None:
        self._segments.clear()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the segments and the generator, or None without transforms."""
        if not self.transforms:
            return None
        return {"segments": self._segments.state_dict(), "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if (state is None) == bool(self.transforms):
            raise ValueError("the state is of a buffer with different transforms")
        if state is not None:
            self._segments.load_state_dict(state["segments"])
            self._rng.bit_generator.state = state["rng"]


class _RowTransform(Protocol):
    """The interface that the pipeline uses; a transform that is passed without a graph need not be a `Transform`."""

    computes_rewards: ClassVar[bool]

    def check(self, schema: Schema) -> None: ...

    def apply(self, rows: SampledRows) -> None: ...


def make_transforms(transforms: Sequence[Any]) -> list[_RowTransform]:
    """Make the transforms of a graph. Transforms that are passed without a graph are returned as they are."""
    return [spec.make() if isinstance(spec, PartSpec) else spec for spec in transforms]


def check_transforms(transforms: Sequence[Any], schema: Schema) -> None:
    """Refuse transforms that cannot work on rows with these columns, or not with each other."""
    made = make_transforms(transforms)
    for transform in made:
        transform.check(schema)
    if sum(t.computes_rewards for t in made) > 1:
        raise UnsoundError(
            "two transforms compute rewards, and the second replaces those of the first",
            "keep one of them",
            "transforms",
        )
