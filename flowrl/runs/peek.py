"""A look into an edge of an active run: the summary of the next token on it, or of the next version of a state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flowrl.core.errors import UsageError, spelling_hint
from flowrl.core.plain_data import DataCodec
from flowrl.core.text_table import table_lines
from flowrl.core.wording import count_text, short_number
from flowrl.runs.queries import ask
from flowrl.runs.registry import RunEntry
from flowrl.runtime.executor import Executor
from flowrl.runtime.status import EdgeStats, RunStatus
from flowrl.runtime.token_summary import ColumnSummary, PeekRequest, TokenSummary

POLL_S = 0.05
MAX_UNREAD = 16  # summaries that nobody has read are forgotten beyond this

TOKEN_SUMMARY: DataCodec[TokenSummary] = DataCodec(TokenSummary)


class PeekAnswers:
    """Answers the queries of one run. The first one of a look gets a number; later ones get its summary."""

    def __init__(self) -> None:
        self._last_number = 0

    def answer(self, executor: Executor | None, query: Mapping[str, Any]) -> dict[str, Any]:
        if executor is None:
            return {"number": None}  # its nodes are still being made
        if "number" in query:
            found = executor.summaries.pop(query["number"], None)
            return {"summary": None if found is None else TOKEN_SUMMARY.encode(found)}
        self._last_number += 1
        executor.peek(PeekRequest(self._last_number, str(query["instance"]), str(query["port"])))
        for old in [n for n in executor.summaries if n <= self._last_number - MAX_UNREAD]:
            del executor.summaries[old]
        return {"number": self._last_number}


def wait_for_summary(
    entry: RunEntry, edge: EdgeStats, go_on: Callable[[float], bool]
) -> TokenSummary | None:
    """Wait for the next token of an edge. `go_on` takes the seconds so far; None once it returns false."""
    instance, _, port = output_of(edge).rpartition(".")
    number, begun_s = None, time.monotonic()
    while go_on(time.monotonic() - begun_s):
        if number is None:
            number = ask(entry, ask="peek", instance=instance, port=port)["number"]
        elif found := ask(entry, ask="peek", number=number)["summary"]:
            return TOKEN_SUMMARY.decode(found)
        time.sleep(POLL_S)
    return None


def output_of(edge: EdgeStats) -> str:
    """The output at the beginning of an edge: `collector.data`."""
    return edge.edge.partition(" -> ")[0]


def find_edge(status: RunStatus, text: str) -> EdgeStats:
    """The edge that a text names: its name, one of its ports, both of its nodes, or one of them."""
    edges = visible_edges(status)
    wanted = _without_spaces(text)
    for names in (_edge_name, _port_names, _node_pair, _node_names):
        matches = [edge for edge in edges if wanted in names(edge)]
        if len({output_of(edge) for edge in matches}) == 1:
            return matches[0]
        if matches:
            names_text = ", ".join(edge.edge for edge in matches)
            raise UsageError(f"{text}: is ambiguous; {names_text}")
    known = [name for edge in edges for name in (edge.edge, *_port_names(edge))]
    if any(wanted in _node_names(edge) for edge in status.edges):
        what = "its edges are links, which carry calls and no tokens"
        raise UsageError(f"{text}: {what}; edges: {_edge_list(edges)}")
    hint = spelling_hint(text, known)
    hint = hint if hint.startswith("did you mean") else f"edges: {_edge_list(edges)}"
    raise UsageError(f"{text}: {status.graph} has no such edge; {hint}")


def visible_edges(status: RunStatus) -> list[EdgeStats]:
    """The edges that carry tokens or versions."""
    return [edge for edge in status.edges if edge.kind != "link"]


def _edge_list(edges: list[EdgeStats]) -> str:
    return ", ".join(edge.edge for edge in edges) or "none"


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _edge_name(edge: EdgeStats) -> list[str]:
    return [_without_spaces(edge.edge)]


def _port_names(edge: EdgeStats) -> list[str]:
    return [name.strip() for name in edge.edge.split(" -> ")]


def _node_pair(edge: EdgeStats) -> list[str]:
    return [f"{edge.producer}->{edge.consumer}"]


def _node_names(edge: EdgeStats) -> list[str]:
    return [edge.producer, edge.consumer]


def peek_text(edge: EdgeStats, found: TokenSummary, width: int) -> str:
    """A summary for a terminal. As many rows are shown as fit in."""
    past = f"after {count_text(found.env_steps, 'env step')}"
    if edge.kind == "state":
        made = f"version {found.firing + 1} of {edge.producer}"
    else:
        made = f"token of firing {found.firing} of {edge.producer}"
        past += f" and {count_text(found.train_iters, 'train iteration')}"
    rows = None if found.rows is None else count_text(found.rows, "row")
    size = f"{short_number(found.bytes)}B" if found.bytes else ""
    lines = [
        edge.edge,
        f"{made}, {past}",
        ", ".join(filter(None, [rows, size, found.text])),
    ]
    return "\n".join([*filter(None, lines), *_column_lines(found, width)])


def _column_lines(found: TokenSummary, width: int) -> list[str]:
    if not found.columns:
        return []
    is_table = found.rows is not None
    shown_rows = len(found.columns[0].rows)
    head = ["column" if is_table else "array", "type", "min", "mean", "max", "NaN", "inf"]
    head += [f"row {k}" if is_table else "first numbers" for k in range(shown_rows)]
    table = [head, *map(_cells, found.columns)]
    if not any(column.infinite for column in found.columns):
        table = [[cell for k, cell in enumerate(row) if head[k] != "inf"] for row in table]
    numbers = len(table[0]) - 2 - shown_rows
    while shown_rows > 1 and _width(table) > width:
        table, shown_rows = [row[:-1] for row in table], shown_rows - 1
    sides = f"ll{'r' * numbers}{'l' * shown_rows}"
    return ["", *(line[:width].rstrip() for line in table_lines(table, sides))]


def _width(table: list[list[str]]) -> int:
    return sum(max(map(len, cells)) + 2 for cells in zip(*table, strict=True))


def _cells(column: ColumnSummary) -> list[str]:
    numbers = [_number(value) for value in (column.least, column.mean, column.largest)]
    counts = [str(count) if count else "-" for count in (column.nan, column.infinite)]
    return [column.name, column.type, *numbers, *counts, *column.rows]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
