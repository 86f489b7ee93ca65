"""Demonstrations from a file: all of them in the first firing, none afterwards."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from flowrl.core.batch import Batch, Column, row_bytes
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import Facts, Node, Surroundings
from flowrl.core.ports import Out
from flowrl.nodes.datasets.about import must_agree
from flowrl.nodes.datasets.files import format_of
from flowrl.nodes.returns import bootstrap_discount


class Demos(Node):
    """A buffer keeps what it is given once, so later tokens are tables without rows."""

    data = Out("samples")

    class Config(BaseConfig):
        path: str = param(
            ...,
            "the file, NPZ or HDF5 (.h5): one array a column; or a Minari folder",
            min_length=1,
            file=True,
        )
        rows: int | None = param(None, "how many of its first rows; default: all", ge=1)
        policy: Any = part("policy", "what learns from the rows", shared="policy", default=None)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The columns of the file; its rows must mean what the policy thinks."""
        path = Path(config.path).expanduser()
        schema, held = format_of(path).read_schema(path)
        if _lacks_discount(schema, config.policy):
            schema = {**schema, "discount": Column("float32")}
        must_agree(config.path, format_of(path).about_of(path), config.policy)
        rows = min(held, config.rows or held)
        return Facts(outs={"data": schema}, memory_bytes=rows * row_bytes(schema))

    def setup(self) -> None:
        """The file is read at the first firing."""
        self._rest: Batch | None = None

    def fire(self) -> Batch:
        """The demonstrations, or a table without rows."""
        if self._rest is not None:
            return self._rest
        path = Path(self.config.path).expanduser()
        table = format_of(path).read(path, self.config.rows)
        if _lacks_discount(table, self.config.policy):
            gamma = float(self.config.policy.config.gamma)
            table = table.replace(discount=bootstrap_discount(gamma, table["terminated"]))
        self._rest = Batch({name: array[:0].copy() for name, array in table.columns.items()})
        return table


def _lacks_discount(columns: Container[str], policy: Any) -> bool:
    """Whether the rows are of another program, that knows nothing of this policy's discount."""
    known = hasattr(getattr(policy, "config", None), "gamma")
    return known and "discount" not in columns and "terminated" in columns
