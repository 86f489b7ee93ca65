"""A node that writes the newest rows that arrived to a dataset."""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from flowrl.core.batch import Batch, row_bytes
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import Facts, Node, Surroundings
from flowrl.core.ports import In
from flowrl.nodes.datasets.formats import format_of
from flowrl.nodes.datasets.metadata import metadata_of


class DatasetWriter(Node):
    """Writes a dataset (type `npz_writer`). Each firing replaces it as a whole, so it can be read during the run."""

    may_end_run = False
    unsaved = ("_metadata",)
    data = In("samples")

    class Config(BaseConfig):
        path: str = param(
            ...,
            "an NPZ or HDF5 file (.h5), or a Minari folder; relative to the working directory of the run",
            min_length=1,
        )
        rows: int = param(10_000, "the number of newest rows in the dataset", ge=1)
        policy: Any = part(
            "policy", "the policy that the rows were collected for", shared="policy", default=None
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

    def fire(self, data: Batch) -> None:
        """Keep the token's rows. The dataset is written once the firing is known to lie before the cut."""
        self._tokens.append(data)
        self._row_count += len(data)
        while self._row_count - len(self._tokens[0]) >= self.config.rows:
            self._row_count -= len(self._tokens.popleft())
        self.ctx.on_commit(partial(self._write, list(self._tokens)))
        self.ctx.metrics({"rows": min(self._row_count, self.config.rows)})

    def _write(self, tokens: list[Batch]) -> None:
        table, path = Batch.concat(tokens), Path(self.config.path).expanduser()
        newest = table.take(slice(max(0, len(table) - self.config.rows), None))
        format_of(path).write(path, newest, self._metadata)
