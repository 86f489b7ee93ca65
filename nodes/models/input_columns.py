"""The columns that a network with several inputs sees."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.core.batch import Column
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.observations import SEPARATOR, NestedColumns, ObsColumns, leaf_columns

Inputs = Mapping[str, ObsColumns]  # what a network sees, by name; usually only `obs`


def input_columns(inputs: Inputs) -> ObsColumns:
    """The columns that a model sees of these inputs. Several inputs are leaves, named `obs/camera`, `action`."""
    if list(inputs) == ["obs"]:
        return inputs["obs"]
    found: dict[str, Column] = {}
    for name, columns in inputs.items():
        for leaf, column in leaf_columns(columns).items():
            if leaf != ACTION_MASK:
                found[leaf_name(name, leaf)] = column
    return NestedColumns(found)


def leaf_name(name: str, leaf: str) -> str:
    """The name of a leaf of an input."""
    return name + SEPARATOR + leaf if leaf else name
