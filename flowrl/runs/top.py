"""The tables of `flowrl top` and `flowrl ps`."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.core.plain_data import DataCodec
from flowrl.core.text_table import WIDTH, table_lines
from flowrl.core.wording import clock_text, short_number
from flowrl.runs.status_rates import RunRates
from flowrl.runtime.status import EdgeStats, RunStatus


def top_text(rates: RunRates, width: int = WIDTH) -> str:
    """The tables of `flowrl top`, no wider than the terminal."""
    status = rates.status
    lines = [
        f"{status.graph}  {status.placement}  {status.status}  pid {status.pid}",
        f"{clock_text(status.wall_s)}  {status.env_steps:,} env steps  "
        f"{short_number(rates.env_steps_per_s)}/s  {status.train_iters:,} train iters"
        + ("" if status.eval_return is None else f"  return {status.eval_return:.4g}"),
        "",
        *table_lines(_node_rows(rates), "lrrrrrl", width),
        "",
        *table_lines(_edge_rows(rates), "l", width),
    ]
    return "\n".join(line[:width].rstrip() for line in lines)


def _node_rows(rates: RunRates) -> list[list[str]]:
    head = ["node", "firing", "waiting", "blocked", "idle", "firings/s", "site"]
    fired = {node.instance: node.fired for node in rates.status.nodes}
    rows = [head]
    for n in rates.nodes:
        firing = n.firing if fired[n.instance] else 0.0  # the first firing says nothing yet
        shares = map(_percent, (firing, n.waiting, n.blocked, n.idle))
        rows.append([n.instance, *shares, short_number(n.firings_per_s), n.site])
        if fired[n.instance]:
            parts = n.parts.items()
            rows += [[f"  {part}", _percent(share), "", "", "", "", ""] for part, share in parts]
    return rows


def _edge_rows(rates: RunRates) -> list[list[str]]:
    shows_wire = any(flow.wire_bytes_per_s is not None for flow in rates.edges)
    wire_head = ["wire/s"] if shows_wire else []
    head = ["edge", "held", "tokens/s", "bytes/s", *wire_head, "age", "behind"]
    edges = [
        [
            edge.edge,
            _held(edge),
            short_number(flow.tokens_per_s),
            short_number(flow.bytes_per_s),
            *([short_number(flow.wire_bytes_per_s)] if shows_wire else []),
            "" if flow.age_s is None else _seconds(flow.age_s),
            "" if edge.iters_behind is None else f"{short_number(edge.iters_behind)} it",
        ]
        for edge, flow in zip(rates.status.edges, rates.edges, strict=True)
        if edge.kind != "link"
    ]
    return [head, *edges]


def _held(edge: EdgeStats) -> str:
    if edge.held is None:
        return ""
    return f"{edge.held}/{edge.bound}" if edge.bound else str(edge.held)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "-"


def _seconds(s: float) -> str:
    return f"{s * 1000:.1f} ms" if s < 1 else f"{s:.1f} s"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of `flowrl ps`."""

    pid: int
    graph: str
    placement: str
    status: str
    wall_s: float
    env_steps: int | None  # None, like the next two, of a run that does not answer
    train_iters: int | None
    env_steps_per_s: float | None
    run_dir: str


RUN_ROW: DataCodec[RunRow] = DataCodec(RunRow)


def row_of(status: RunStatus) -> RunRow:
    """The row of a run; its rate is that since the first firing."""
    s = status
    rate = s.env_steps / s.firing_s if s.firing_s else 0.0
    return RunRow(
        *(s.pid, s.graph, s.placement, s.status, s.wall_s, s.env_steps, s.train_iters),
        *(rate, s.run_dir),
    )


def ps_text(rows: list[RunRow]) -> str:
    head = ["graph", "pid", "status", "elapsed", "env steps", "rate", "placement", "run folder"]
    lines = [
        [
            r.graph,
            str(r.pid),
            r.status,
            clock_text(r.wall_s),
            *_done_cells(r),
            r.placement,
            r.run_dir,
        ]
        for r in rows
    ]
    return "\n".join(table_lines([head, *lines], "lrlrrrll"))


def _done_cells(row: RunRow) -> list[str]:
    """The env steps of a run, and their rate."""
    rate = row.env_steps_per_s
    steps = "-" if row.env_steps is None else f"{row.env_steps:,}"
    return [steps, "-" if rate is None else f"{short_number(rate)}/s"]
