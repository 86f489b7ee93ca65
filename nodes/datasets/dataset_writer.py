"""A node that writes the newest rows that arrived to a dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flowrl.core.batch import Batch, row_bytes
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.nodes.datasets.formats import format_of
from flowrl.nodes.datasets.metadata import metadata_of

# A dataset is written again when this share of its rows is new.
WRITTEN_SHARE = 0.1


class DatasetWriter(Node):
    """Writes a dataset (type `npz_writer`) while rows arrive: when a tenth of its rows are new, and at the end.

    Each time, it is replaced as a whole, so it can be read during the run, and is complete if the run is killed.
    """

    may_end_run = False
    unsaved = ("_metadata", "_committed", "_unwritten_rows")
    data = In("samples")

    class Config(BaseConfig):
        path: str = param(
            ...,
            "an NPZ or HDF5 file (.h5), or a Minari folder; relative to the working directory of the run",
            min_length=1,
            output=True,
        )
        rows: int = param(10_000, "the number of newest rows in the dataset", ge=1)
        policy: Any = part(
            "policy",
            "the policy that the rows were collected for, whose gamma the dataset states",
            shared="policy",
            default=None,
            reads=("gamma",),
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema = surroundings.inputs["data"]
        return Facts(memory_bytes=config.rows * row_bytes(schema) if schema else 0)

    def setup(self) -> None:
        self._metadata = metadata_of(self.ctx.inputs.get("data"), self.config.policy)
        # The newest tokens, which contain the newest `rows` rows.
        self._tokens: deque[Batch] = deque()
        self._row_count = 0
        self._committed: list[Batch] = []  # those of firings that are known to lie before the cut
        self._unwritten_rows = 0  # of these, that the dataset lacks

    def fire(self, data: Batch) -> None:
        """Keep the token's rows. They are written once the firing is known to lie before the cut."""
        self._tokens.append(data)
        self._row_count += len(data)
        while self._row_count - len(self._tokens[0]) >= self.config.rows:
            self._row_count -= len(self._tokens.popleft())
        self.ctx.on_commit(partial(self._commit, list(self._tokens), len(data)))
        self.ctx.metrics({"rows": min(self._row_count, self.config.rows)})

    def close(self) -> None:
        """Write the rows that the dataset lacks."""
        if self._unwritten_rows:
            self._write()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._committed, self._unwritten_rows = list(self._tokens), self._row_count

    def _commit(self, tokens: list[Batch], new_rows: int) -> None:
        self._committed = tokens
        self._unwritten_rows += new_rows
        held = min(sum(map(len, tokens)), self.config.rows)
        if self._unwritten_rows >= WRITTEN_SHARE * held:
            self._write()

    def _write(self) -> None:
        table, path = Batch.concat(self._committed), Path(self.config.path).expanduser()
        newest = table.take(slice(max(0, len(table) - self.config.rows), None))
        format_of(path).write(path, newest, self._metadata)
        self._unwritten_rows = 0
