"""The log of a training loop by hand: what its nodes record, in the files of a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.core.errors import UsageError, shortened_repr
from flowrl.core.node import Node
from flowrl.core.records import IrregularityRecord
from flowrl.core.state import Count
from flowrl.graph.settings import Setting
from flowrl.machine.environment import library_versions
from flowrl.runs.folder import METRICS_FILE, RunFolder
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from typing_extensions import Self


class RunLog:
    """Writes metrics, TensorBoard, logs and checkpoints of nodes that are used without the engine.

        with RunLog("runs/mine", collector=collector, learner=learner, evaluator=evaluator) as log:
            while …:
                …
                log.write()

    Without it, what the nodes record stays in memory. At the end, each learner's whole state is saved as
    `checkpoints/last.safetensors`, and a run that raises is logged up to there.
    """

    def __init__(
        self,
        path: str | Path,
        /,
        settings: Mapping[str, Setting] | None = None,
        **nodes: Any,
    ) -> None:
        """`nodes` are named as they are to be called in the files. `settings` are shown by TensorBoard."""
        for name, node in nodes.items():
            if not isinstance(node, Node):
                raise TypeError(
                    f"RunLog: {name} is {shortened_repr(node)}; expected a node, such as a learner"
                )
        if not nodes:
            raise TypeError("RunLog: no node is given; write RunLog('runs/mine', learner=learner)")
        self._nodes: dict[str, Node] = nodes
        self.path = Path(path)
        if (self.path / METRICS_FILE).exists():
            raise UsageError(f"{path}: it already contains a run; choose another folder")
        self._folder = RunFolder(self.path)
        self._folder.facts = {"libraries": library_versions()}
        self._folder.open_tensorboard(settings or {})
        self._collected = Count()
        self._reports = dict.fromkeys(nodes, 0)  # calls of `write` in which a node had records

    @property
    def progress(self) -> Count:
        """The env steps and episodes that were counted, and the train iterations of the learners."""
        nodes = self._nodes.values()
        iters = max((node.ctx.clock.total.train_iters for node in nodes), default=0)
        return self._collected._replace(train_iters=iters)

    def write(self) -> None:
        """Write what the nodes have recorded since the last call."""
        counts = [node.ctx.take_count() or Count() for node in self._nodes.values()]
        self._collected = Count(*map(sum, zip(self._collected, *counts, strict=True)))
        total = self.progress
        for name, node in self._nodes.items():
            records = node.ctx.take_records()
            source = RecordSource(name, node.role, self._reports[name], total)
            self._reports[name] += bool(records)
            for record in records:
                if isinstance(record, IrregularityRecord):
                    self._folder.append_log(name, f"{record.what}: {record.times}")
                else:
                    self._folder.write_record(source, record)

    def close(self) -> None:
        """Write what is left, save the learners, and close the files."""
        self._close(success=True)

    def _close(self, success: bool) -> None:
        try:
            for node in self._nodes.values():
                if node.role == "learner" and hasattr(node, "save_as"):
                    node.save_as("last")
                if node.ctx.unreported is not None:
                    node.ctx.unreported()
            self.write()
            self._folder.end_tensorboard(success)
        finally:
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._close(success=kind is None)
