"""The tables of `flowrl top` and `flowrl ps`: shares and rates between two statuses of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.core.plain_data import DataCodec
from flowrl.runtime.status import EdgeStats, NodeStats, RunStatus

WIDTH = 80
WINDOW_S, MAX_WINDOW_S = 5.0, 120.0  # rates are averages over at least, and at most, this time
WINDOW_ROUNDS = 5  # and over this number of rounds
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class NodeRates:
    """The shares of its site's time in which an instance fired or waited, and how often it fired."""

    instance: str
    site: str
    firing: float
    waiting: float
    blocked: float
    idle: float
    firings_per_s: float
    parts: Mapping[str, float]  # shares of the site's time, by part


@dataclass(frozen=True, slots=True)
class EdgeRates:
    """The throughput of an edge, and how long a token stays on it."""

    edge: str
    tokens_per_s: float | None
    bytes_per_s: float | None
    wire_bytes_per_s: float | None  # between machines, if the edge has `compress` or `dtype`
    age_s: float | None


@dataclass(frozen=True, slots=True)
class RunRates:
    """The latest status of a run, and its rates since an earlier one."""

    status: RunStatus
    interval_s: float
    env_steps_per_s: float
    nodes: tuple[NodeRates, ...]
    edges: tuple[EdgeRates, ...]


RUN_RATES: DataCodec[RunRates] = DataCodec(RunRates)


class StatusWindow:
    """The latest statuses of a run. Rates are averages over this window, which holds some whole rounds of each site.

    Otherwise the rates of a run whose rounds take longer than the window would drop to 0 again and again.
    """

    def __init__(self, first: RunStatus) -> None:
        self._statuses = deque([first])

    def rates_until(self, status: RunStatus) -> RunRates:
        """Add a status, and return the rates over the window."""
        statuses = self._statuses
        statuses.append(status)
        while len(statuses) > 2 and _is_long_enough(statuses[1], status):
            statuses.popleft()
        return rates_between(statuses[0], status)

    @property
    def has_rounds(self) -> bool:
        """Whether each site has ended some rounds within the window, so that its rates mean something."""
        return _has_rounds(self._statuses[0], self._statuses[-1])


def _is_long_enough(before: RunStatus, after: RunStatus) -> bool:
    s = after.wall_s - before.wall_s
    return s >= WINDOW_S and (s >= MAX_WINDOW_S or _has_rounds(before, after))


def _has_rounds(before: RunStatus, after: RunStatus) -> bool:
    then = {site.site: site.rounds for site in before.sites}
    return all(
        site.rounds - then.get(site.site, 0) >= WINDOW_ROUNDS or site.activity.kind == "stopped"
        for site in after.sites
    )


def rates_between(before: RunStatus, after: RunStatus) -> RunRates:
    s = max(after.wall_s - before.wall_s, 1e-9)
    interval_s = _intervals(before, after)
    idle_s = {site.site: site.idle_s for site in after.sites}
    old_idle_s = {site.site: site.idle_s for site in before.sites}
    idle = {site: idle_s[site] - old_idle_s.get(site, 0.0) for site in idle_s}
    nodes = {node.instance: node for node in before.nodes}
    edges = {edge.edge: edge for edge in before.edges}
    return RunRates(
        after,
        s,
        (after.env_steps - before.env_steps) / s,
        tuple(
            _node_rates(nodes.get(n.instance), n, idle[n.site], interval_s[n.site])
            for n in after.nodes
        ),
        tuple(
            _edge_rates(edges.get(e.edge), e, interval_s.get(e.consumer_site, s))
            for e in after.edges
        ),
    )


def _intervals(before: RunStatus, after: RunStatus) -> dict[str, float]:
    """Seconds between the two statuses of each site, which may be older than those of the run."""
    then, now = (
        {site.site: status.wall_s - site.age_s for site in status.sites}
        for status in (before, after)
    )
    return {site: max(s - then.get(site, 0.0), 1e-3) for site, s in now.items()}


def _node_rates(before: NodeStats | None, after: NodeStats, idle_s: float, s: float) -> NodeRates:
    old = before or NodeStats(after.instance, after.site, 0, 0.0)
    return NodeRates(
        after.instance,
        after.site,
        _share((after.busy_s - old.busy_s) / s),
        _share((_sum(after.waiting_s) - _sum(old.waiting_s)) / s),
        _share((_sum(after.blocked_s) - _sum(old.blocked_s)) / s),
        _share(idle_s / s),
        (after.fired - old.fired) / s,
        {
            part: _share((part_s - old.parts_s.get(part, 0.0)) / s)
            for part, part_s in after.parts_s.items()
        },
    )


def _sum(seconds: Mapping[str, float]) -> float:
    return sum(seconds.values())


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _edge_rates(before: EdgeStats | None, after: EdgeStats, s: float) -> EdgeRates:
    def rate(name: str) -> float | None:
        now, then = getattr(after, name), getattr(before, name, None)
        return None if now is None else max(now - (then or 0), 0) / s

    tokens = rate("taken")
    age_s = after.held / tokens if after.held is not None and tokens else None  # Little's law
    return EdgeRates(after.edge, tokens, rate("bytes"), rate("wire_bytes"), age_s)


def top_text(rates: RunRates, width: int = WIDTH) -> str:
    """The tables of `flowrl top`, no wider than the terminal."""
    status, edges = rates.status, _edge_rows(rates)
    lines = [
        f"{status.graph}  {status.placement}  {status.status}  pid {status.pid}",
        f"{clock_text(status.wall_s)}  {status.env_steps:,} env steps  "
        f"{short_number(rates.env_steps_per_s)}/s  {status.train_iters:,} train iters"
        + ("" if status.eval_return is None else f"  return {status.eval_return:.4g}"),
        "",
        *table_lines(_node_rows(rates), "lrrrrrl", width),
        "",
        *table_lines(edges, "l" + "r" * (len(edges[0]) - 1), width),
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


def table_lines(rows: list[list[str]], sides: str, width: int) -> list[str]:
    """The lines of a table with aligned columns. If the terminal is narrow, the first column is shortened."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(sides))]
    widths[0] = max(min(widths[0], width - sum(widths[1:]) - 2 * (len(sides) - 1)), 12)
    return ["  ".join(_cell(*c) for c in zip(row, widths, sides, strict=True)) for row in rows]


def _cell(text: str, width: int, side: str) -> str:
    if len(text) > width:
        keep = width - 1
        text = f"{text[: keep // 2]}…{text[len(text) - (keep - keep // 2) :]}"
    return text.ljust(width) if side == "l" else text.rjust(width)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "-"


def _seconds(s: float) -> str:
    return f"{s * 1000:.1f} ms" if s < 1 else f"{s:.1f} s"


def short_number(value: float | None) -> str:
    """A number with a unit, such as `1.5k`."""
    if value is None:
        return ""
    for size, unit in UNITS:
        if value >= 10 * size:
            return f"{value / size:.0f}{unit}"
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def clock_text(seconds: float) -> str:
    """Seconds as minutes and seconds, or with hours: `1:05`, `2:00:00`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of `flowrl ps`."""

    pid: int
    graph: str
    placement: str
    status: str
    wall_s: float
    env_steps: int
    train_iters: int
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
        [r.graph, str(r.pid), r.status, clock_text(r.wall_s), f"{r.env_steps:,}",
         f"{short_number(r.env_steps_per_s)}/s", r.placement, r.run_dir]
        for r in rows
    ]  # fmt: skip
    return "\n".join(line.rstrip() for line in table_lines([head, *lines], "lrlrrrll", 1 << 20))
