"""The writer of datasets: the newest rows that came, in a file."""

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
from flowrl.nodes.datasets.about import about
from flowrl.nodes.datasets.files import format_of


class NpzWriter(Node):
    """The file is whole, and each firing renews it: so it may be read while the run goes on."""

    data = In("samples")

    class Config(BaseConfig):
        path: str = param(
            ...,
            "the file, NPZ or HDF5 (.h5) (relative: to where the run is started)",
            min_length=1,
        )
        rows: int = param(10_000, "how many of the newest rows it holds", ge=1)
        policy: Any = part("policy", "whose rows these are", shared="policy", default=None)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The memory of the rows."""
        schema = surroundings.inputs["data"]
        return Facts(memory_bytes=config.rows * row_bytes(schema) if schema else 0)

    def setup(self) -> None:
        """Tokens are kept as they came; the oldest is cut when all are too many."""
        self._about = about(self.ctx.inputs.get("data"), self.config.policy)
        self._tokens: deque[Batch] = deque()
        self._rows = 0

    def fire(self, data: Batch) -> None:
        """Keep the token's rows; once the firing is sure to count, write the newest."""
        self._tokens.append(data)
        self._rows += len(data)
        while self._rows - len(self._tokens[0]) >= self.config.rows:
            self._rows -= len(self._tokens.popleft())
        self.ctx.on_commit(partial(self._write, list(self._tokens)))
        self.ctx.metrics({"rows": min(self._rows, self.config.rows)})

    def _write(self, tokens: list[Batch]) -> None:
        table, path = Batch.concat(tokens), Path(self.config.path).expanduser()
        newest = table.take(slice(max(0, len(table) - self.config.rows), None))
        format_of(path).write(path, newest, self._about)
