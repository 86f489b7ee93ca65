"""What is done to rows when they are drawn: n-step returns, other goals, whatever you like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, PartSpec, part
from flowrl.core.node import UnsoundError
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.runs import Runs, found_again


class Drawn:
    """Rows that were drawn: a column is gathered when it is asked for, from the rows that it is taken of."""

    def __init__(self, ring: Ring, runs: Runs, numbers: Array, rng: np.random.Generator) -> None:
        self.numbers = numbers  # (W,) of the rows that were drawn
        self.runs = runs  # what follows what
        self.rng = rng  # for what a transform draws
        self._ring = ring
        self._of: dict[str, Array] = {}
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        """A column, (W, …), as transforms before have left it."""
        if name not in self._made:
            self._made[name] = self.stored(name, self._of.get(name, self.numbers))
        return self._made[name]

    def __setitem__(self, name: str, column: Array) -> None:
        self._made[name] = column

    def stored(self, name: str, rows: Array) -> Array:
        """The column of any rows that are held, whatever the shape of `rows`."""
        ring = self._ring
        flat: Array = ring.take(ring.places_of(rows.reshape(-1)), [name])[name]
        return flat.reshape(*rows.shape, *flat.shape[1:])

    @property
    def names(self) -> list[str]:
        """All columns."""
        return list(self._ring.columns)

    def take_from(self, names: Sequence[str], rows: Array) -> None:
        """These columns are those of other rows (W,)."""
        self._of.update(dict.fromkeys(names, rows))

    def columns(self) -> dict[str, Array]:
        """All of them."""
        rest = [name for name in self._ring.columns if name not in self._made | self._of]
        found = self._ring.take(self._ring.places_of(self.numbers), rest)
        return {k: found[k] if k in found else self[k] for k in self._ring.columns}


class Transform(Part):
    """Changes drawn rows; yours has `check` and `apply`, and is named by its import path."""

    kind = "transform"
    sums_rewards: ClassVar[bool] = False  # works out `reward` anew from what is stored

    def check(self, schema: Schema) -> None:
        """Raise `Unsound` where it cannot work on rows with these columns."""
        raise NotImplementedError

    def apply(self, drawn: Drawn) -> None:
        """Change the columns of the rows that were drawn; their dtypes and shapes stay."""
        raise NotImplementedError


class Discounting(BaseConfig):
    """Parameters of a transform that works out `discount` anew."""

    policy: Any = part("policy", "what learns: its gamma counts", shared="policy", default=None)


def gamma_of(transform: str, policy: Any) -> float:
    """The discount of the policy whose collector gives rows of one reward each."""
    config: Any = getattr(policy, "config", None)
    if not hasattr(config, "gamma"):
        raise UnsoundError(
            f"{transform} needs a policy with `gamma`", "give it a `policy`", "policy"
        )
    if getattr(config, "nstep", 1) != 1:
        raise UnsoundError(
            f"{transform} needs rows of one reward, and the policy's sum {config.nstep}",
            "write `nstep: 1` in the policy",
            "policy",
        )
    return float(config.gamma)


class Transforms:
    """The transforms of one buffer, in their order, and the runs of its rows."""

    def __init__(self, given: Sequence[Any], ring: Ring, rng: np.random.Generator) -> None:
        self.all = made(given)
        self._ring, self._rng, self._runs = ring, rng, Runs()
        if ring.rows:  # an earlier process has left them
            self.pushed(*found_again(ring))

    def pushed(self, columns: Mapping[str, Array], first: int) -> None:
        """These rows were pushed, the first with this number."""
        if self.all and len(columns["last"]):
            self._runs.push(columns, first)
            self._runs.forget(self._ring.written - self._ring.rows)

    def take(self, places: Array) -> dict[str, Array]:
        """The rows that lie there, transformed."""
        if not self.all:
            return self._ring.take(places)
        drawn = Drawn(self._ring, self._runs, self._ring.numbers_of(places), self._rng)
        for transform in self.all:
            transform.apply(drawn)
        return drawn.columns()

    def clear(self) -> None:
        """No row is held."""
        self._runs.clear()

    def state_dict(self) -> dict[str, Any] | None:
        """The runs, and where the random stream is."""
        if not self.all:
            return None
        return {"runs": self._runs.state_dict(), "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from there."""
        if (state is None) == bool(self.all):
            raise ValueError("the state is of a buffer with other transforms")
        if state is not None:
            self._runs.load_state_dict(state["runs"])
            self._rng.bit_generator.state = state["rng"]


class _Made(Protocol):
    sums_rewards: ClassVar[bool]

    def check(self, schema: Schema) -> None: ...

    def apply(self, drawn: Drawn) -> None: ...


def made(given: Sequence[Any]) -> list[_Made]:
    """Transforms from the graph, still to be made, or ready by hand."""
    return [spec.make() if isinstance(spec, PartSpec) else spec for spec in given]


def sound_transforms(given: Sequence[Any], schema: Schema) -> None:
    """They can work on rows with these columns, and one after the other."""
    transforms = made(given)
    for transform in transforms:
        transform.check(schema)
    if sum(t.sums_rewards for t in transforms) > 1:
        raise UnsoundError(
            "two transforms work out rewards, each from those that are stored",
            "keep one of them",
            "transforms",
        )
