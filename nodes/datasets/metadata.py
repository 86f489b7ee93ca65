"""The metadata of datasets: facts of columns and of rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import PartSpec
from flowrl.core.facts import UnsoundError
from flowrl.core.json_text import parse_object
from flowrl.core.plain_data import DataCodec
from flowrl.nodes.nstep import rewards_summed
from flowrl.nodes.policy import gamma_of

ARRAY_NAME = "__flowrl__"  # the name of the array of bytes that contains the metadata as JSON
COLUMN_FACTS = ("n", "low", "high", "frames")  # the facts of a column apart from dtype and shape


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """The metadata of a dataset: facts of columns, by name; and of its rows.

    The facts of rows are how many rewards each sums (`nstep`), and the discount (`gamma`) of the policy they are for.
    """

    columns: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, float]

    def encode(self) -> Array:
        """Encode the metadata as an array of bytes."""
        text = json.dumps({"columns": self.columns, "rows": self.rows}, sort_keys=True)
        return np.frombuffer(text.encode(), np.uint8)

    def add_facts(self, schema: Schema) -> Schema:
        """Return the columns with their facts."""
        return {
            name: Column(c.dtype, c.shape, **_column_facts(self.columns.get(name, {})))
            for name, c in schema.items()
        }


NO_METADATA = DatasetMetadata({}, {})
METADATA = DataCodec[DatasetMetadata](DatasetMetadata)


def metadata_of(schema: Schema | None, policy: Any) -> DatasetMetadata:
    """Return the metadata of rows with these columns that were collected for this policy.

    The discount is that of the rows, where it is known, and else that of the policy.
    """
    facts = {
        name: {f: value for f in COLUMN_FACTS if (value := getattr(column, f)) is not None}
        for name, column in (schema or {}).items()
    }
    columns = {name: known for name, known in facts.items() if known}
    discount = (schema or {}).get("discount")
    found = None if discount is None else discount.gamma
    gamma = _gamma_of(policy) if found is None else {"gamma": found}
    return DatasetMetadata(columns, {"nstep": rewards_summed(schema or {}), **gamma})


def decode_metadata(array: Array) -> DatasetMetadata:
    """Decode metadata from an array of bytes. Unknown keys, of later versions, are ignored."""
    content = parse_object(array.tobytes())
    try:
        return METADATA.decode({name: content.get(name) for name in ("columns", "rows")})
    except ValueError as error:
        raise ValueError(f"its metadata is malformed: {error}") from error


def require_fitting_rewards(
    path: str, found: DatasetMetadata, policy: PartSpec | Any | None
) -> None:
    """Refuse rows whose rewards are summed, and rows of another gamma than the policy's."""
    if (nstep := found.rows.get("nstep", 1)) != 1:
        raise UnsoundError(
            f"the rows of '{path}' sum {nstep} rewards each; expected rows of one reward, which buffers sum",
            "record them again, from a collector or an evaluator",
            "path",
        )
    for name, expected in _gamma_of(policy).items():
        if found.rows.get(name, expected) != expected:
            raise UnsoundError(
                f"the rows of '{path}' have {name} {found.rows[name]}, but the policy has {name} {expected}",
                "record them with this policy, or write `policy: null` to skip this check",
                "path",
            )


def _gamma_of(policy: PartSpec | Any | None) -> dict[str, float]:
    """Return the discount of a policy as `gamma`, if it has one."""
    gamma = gamma_of(policy)
    return {} if gamma is None else {"gamma": gamma}


def _column_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Convert facts from JSON: bounds are tuples, which JSON stores as lists."""
    found = {
        k: tuple(v) if isinstance(v, list) else v for k, v in facts.items() if k in COLUMN_FACTS
    }
    for name, value in found.items():
        is_count = name in ("n", "frames")
        numbers = value if isinstance(value, tuple) and not is_count else (value,)
        kind: Any = int if is_count else int | float
        if not all(isinstance(number, kind) for number in numbers):
            raise ValueError(f"its metadata is malformed: the fact {name} is {value!r:.40}")
    return found
