"""What a data set says of itself beside its arrays: what columns mean, and what a row sums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import PartSpec
from flowrl.core.node import UnsoundError

NAME = "__flowrl__"  # of the array that holds it: JSON as bytes
FACTS = ("n", "low", "high", "frames")  # of a column, beside its dtype and shape


@dataclass(frozen=True, slots=True)
class About:
    """Facts of columns by name, and `nstep` and `gamma` of the policy whose rows these are."""

    columns: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, float]

    def array(self) -> Array:
        """It as an array of bytes."""
        text = json.dumps({"columns": self.columns, "rows": self.rows}, sort_keys=True)
        return np.frombuffer(text.encode(), np.uint8)

    def told(self, schema: Schema) -> Schema:
        """The columns with their facts."""
        return {
            name: Column(c.dtype, c.shape, **_facts(self.columns.get(name, {})))
            for name, c in schema.items()
        }


NOTHING = About({}, {})


def about(schema: Schema | None, policy: Any) -> About:
    """What is known of rows with these columns that a policy learns from."""
    known = {
        name: {f: value for f in FACTS if (value := getattr(column, f)) is not None}
        for name, column in (schema or {}).items()
    }
    return About({name: facts for name, facts in known.items() if facts}, rows_of(policy))


def read_about(array: Array) -> About:
    """What an array of bytes says; a key that is not known is left to later versions."""
    found = json.loads(array.tobytes())
    return About(found["columns"], found["rows"])


def rows_of(policy: Any) -> dict[str, float]:
    """What a row of this policy sums: how many rewards, with which discount."""
    config = policy.config if policy is not None else None
    return {k: getattr(config, k) for k in ("nstep", "gamma") if hasattr(config, k)}


def must_agree(path: str, found: About, policy: PartSpec | Any | None) -> None:
    """Rows that sum other rewards than the policy thinks would teach it wrong values."""
    wanted = rows_of(policy)
    for name in wanted.keys() & found.rows.keys():
        if found.rows[name] != wanted[name]:
            raise UnsoundError(
                f"the rows of '{path}' are of a policy with {name} {found.rows[name]}; "
                f"here {name} is {wanted[name]}",
                "record them with this policy; or write `policy: null`, if you know that it is right",
                "path",
            )


def _facts(told: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as columns have them: bounds are tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in told.items() if k in FACTS}
