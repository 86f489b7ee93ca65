"""A node that reads the demonstrations of a dataset, and emits all of them in its first firing."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from flowrl.core.batch import Batch, Column, Schema, row_bytes
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import Out
from flowrl.core.row_order import LAST, with_marked_end
from flowrl.nodes.datasets.formats import format_of
from flowrl.nodes.datasets.metadata import require_fitting_rewards
from flowrl.nodes.datasets.row_checks import require_valid_rows
from flowrl.nodes.datasets.table_files import HINT
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.nstep import link_schema, with_links
from flowrl.nodes.observations import columns_under
from flowrl.nodes.policy import gamma_of
from flowrl.nodes.returns import bootstrap_discount


class DatasetReader(Node):
    """Emits the rows of a dataset once (type `demos`). Buffers keep them, so all later tokens are empty tables.

    They are read and checked when the node is made, so that wrong ones end a run before its first step.
    """

    may_end_run = False
    unsaved = ("_table",)
    data = Out("samples")

    class Config(BaseConfig):
        path: str = param(
            ...,
            "an NPZ or HDF5 file (.h5) with one array for each column, or a Minari folder",
            min_length=1,
            file=True,
        )
        rows: int | None = param(None, "the number of first rows that are read; default: all", ge=1)
        policy: Any = part(
            "policy",
            "the policy that learns from the rows, for the rewards that it sums and their discount",
            shared="policy",
            default=None,
            reads=("nstep", "gamma"),
        )
        env: Any = part(
            "env",
            "the env of the rows: they are checked against its spaces; null: only for finite numbers",
            shared="env",
            default=None,
            usual_type="gymnasium",
            made_to_describe=False,
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        path = Path(config.path).expanduser()
        schema, available = format_of(path).read_schema(path)
        _require_rows(path, available)
        if _lacks_discount(schema, config.policy):
            gamma = float(config.policy.config.gamma)
            schema = {**schema, "discount": Column("float32", gamma=gamma)}
        schema = link_schema(schema, config.policy)
        require_fitting_rewards(config.path, format_of(path).read_metadata(path), config.policy)
        rows = min(available, config.rows or available)
        memory_bytes = rows * row_bytes(schema)
        return Facts(
            outs={"data": schema},
            ordered={"data": LAST in schema},
            memory_bytes=memory_bytes,
            checks_numbers=True,
        )

    def setup(self) -> None:
        self._empty_table: Batch | None = None  # None before the first firing
        self._table: Batch | None = self._read()  # None after it

    def fire(self) -> Batch:
        """Emit the rows in the first firing, and an empty table later."""
        if self._empty_table is not None:
            return self._empty_table
        table, self._table = self._table, None
        assert table is not None
        self._empty_table = Batch({name: array[:0].copy() for name, array in table.columns.items()})
        return table

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._empty_table is not None:
            self._table = None

    def _read(self) -> Batch:
        """Read the rows, check them, and complete their columns."""
        path, policy = Path(self.config.path).expanduser(), self.config.policy
        table = with_marked_end(format_of(path).read(path, self.config.rows))
        _require_rows(path, len(table))
        require_valid_rows(path, table, self._spaces(path))
        if _lacks_discount(table, policy):
            gamma = float(policy.config.gamma)
            table = table.replace(discount=bootstrap_discount(gamma, table["terminated"]))
        return with_links(table, link_schema(table.schema, policy))

    def _spaces(self, path: Path) -> Schema:
        """The columns of observations and actions: those of the env, or else what the file says of its own."""
        if self.config.env is None:
            return format_of(path).read_schema(path)[0]
        spec = env_spec(self.config.env, 1)
        obs = {
            n: c for name in ("obs", "next_obs") for n, c in columns_under(name, spec.obs).items()
        }
        return {**obs, "action": spec.action}


def _lacks_discount(columns: Container[str], policy: Any) -> bool:
    """Whether `discount` must be computed, because the file is from a program that does not know the policy's gamma."""
    has_gamma = gamma_of(policy) is not None
    return has_gamma and "discount" not in columns and "terminated" in columns


def _require_rows(path: Path, rows: int) -> None:
    """Refuse a dataset without rows."""
    if not rows:
        raise UnsoundError(f"'{path}' has no rows", HINT, "path")
