"""Running graphs of toy nodes: what the engine told, line by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.checks.check import check
from flowrl.core.context import CheckpointRecord, MetricsRecord, Record, VerdictRecord
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runtime.executor import Cut
from flowrl.runtime.records import RecordSource
from flowrl.runtime.serial_executor import SerialExecutor


class Trace:
    """A sink that remembers: `lines` are the nodes' logs, in the order of the program."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.others: list[tuple[str, Record]] = []

    def record(self, source: RecordSource, record: Record) -> None:
        if isinstance(record, MetricsRecord | CheckpointRecord | VerdictRecord):
            self.others.append((source.key, record))
        else:
            self.lines.append(f"{source.key}: {record}")

    def of(self, key: str) -> list[str]:
        """What one node told."""
        return [line.partition(": ")[2] for line in self.lines if line.partition(": ")[0] == key]


def tree(nodes: Mapping[str, Any], edges: Sequence[Any], **more: Any) -> dict[str, Any]:
    """A graph whose node types are toys."""
    whole = {
        name: {"type": _type(node)}
        if isinstance(node, str)
        else {**node, "type": _type(node["type"])}
        for name, node in nodes.items()
    }
    return {"nodes": whole, "edges": list(edges), **more}


def _type(name: str) -> str:
    return name if ":" in name else f"tests.toys.toy_nodes:{name}"


def engine_of(
    graph: Mapping[str, Any], seed: int = 0, **limits: Any
) -> tuple[SerialExecutor, Trace]:
    """An engine for a sound graph, and its trace."""
    trace = Trace()
    checked = check(load_data(graph)).require_sound()
    return SerialExecutor(checked, trace, seed, Limits(**limits)), trace


def run(
    graph: Mapping[str, Any], seed: int = 0, **limits: Any
) -> tuple[SerialExecutor, Trace, Cut]:
    """The same, run to its cut and closed."""
    executor, trace = engine_of(graph, seed, **limits)
    try:
        return executor, trace, executor.run()
    finally:
        executor.close()


def lines(graph: Mapping[str, Any], seed: int = 0, **limits: Any) -> list[str]:
    """What the nodes told until the cut."""
    return run(graph, seed, **limits)[1].lines
