"""Shares and rates between two statuses of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.core.plain_data import DataCodec
from flowrl.runtime.status import EdgeStats, NodeStats, RunStatus

WINDOW_S, MAX_WINDOW_S = 5.0, 120.0  # rates are averages over at least, and at most, this time
WINDOW_ROUNDS = 5  # and over this number of rounds


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
