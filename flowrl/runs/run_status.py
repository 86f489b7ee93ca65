"""The status of a run, made from the reports of its sites, and its row in `timings.jsonl`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flowrl.core.state import Count
from flowrl.graph.model import Graph
from flowrl.graph.replica_pairs import (
    pair_endpoints,
    pair_label,
    relay_label,
    replica_pairs_of,
)
from flowrl.graph.site_layout import SiteLayout
from flowrl.runs.result import finite
from flowrl.runtime.status import (
    Activity,
    EdgeEndStats,
    EdgeStats,
    NodeStats,
    RunStatus,
    SiteStatus,
)

if TYPE_CHECKING:
    from flowrl.runs.run import Run


def status_of(run: Run) -> RunStatus:
    """The status of a run just now; may be called from any thread."""
    if run.executor is None:
        activity = Activity("starting", instance=run.making)
        statuses = [SiteStatus(site, activity) for site in run.sites.layout.kinds]
    else:
        statuses = run.executor.site_statuses()
    kinds, counts = run.sites.layout.kinds, run.counts
    return RunStatus(
        graph=run.graph.name,
        placement=run.placement,
        seed=run.seed,
        run_dir=str(run.folder.absolute_path) if run.folder else "",
        pid=os.getpid(),
        status=_phase(run),
        wall_s=run.wall_s,
        firing_s=run.firing_s,
        env_steps=counts.env_steps,
        train_iters=counts.train_iters,
        episodes=counts.episodes,
        eval_return=finite(run.eval_return),
        best_return=finite(run.best_return),
        sites=tuple(
            replace(status, kind=kinds.get(status.site, "thread"), edge_ends=())
            for status in statuses
        ),
        edges=tuple(_edges(run.graph, run.sites.layout, statuses)),
        **_hosts(run),
    )


def _hosts(run: Run) -> dict[str, Any]:
    hosts = run.sites.hosts
    if hosts is None:
        return {}
    return {
        "hosts": hosts.statuses(),
        "launchers": hosts.launched.statuses(),
        "waits_for": hosts.arrival.text if hosts.arrival.is_going_on else "",
    }


def _phase(run: Run) -> str:
    if run.ended is not None:
        return run.ended.status
    if run.recovery.is_under_way:
        return "recovering"
    if run.executor is None or run.executor.began_s is None:
        return "starting"
    return "stopping" if run.is_stopping else "running"


def _edges(graph: Graph, layout: SiteLayout, statuses: list[SiteStatus]) -> Iterator[EdgeStats]:
    """The status of each edge, one for each pair of instances that it connects, and for each relay of its state."""
    nodes = {node.instance: node for status in statuses for node in status.nodes}
    ends: dict[str, list[EdgeEndStats]] = {}
    for status in statuses:
        for end in status.edge_ends:
            ends.setdefault(end.edge, []).append(end)
    learners = graph.nodes_of_role("learner")
    learned = sum(node.fired for key, node in nodes.items() if key in learners)
    for edge in graph.edges:
        for pair in replica_pairs_of(graph, edge):
            name, (producer, consumer) = pair_label(edge, pair), pair_endpoints(edge, pair)
            # a state's version is what its reader holds, a stream's data is what its producer made
            holder = nodes.get(consumer if edge.kind == "state" else producer)
            behind = None
            if holder and holder.train_iters is not None and edge.kind != "link":
                behind = max(learned - holder.train_iters, 0)
            yield EdgeStats(
                edge=name,
                kind=edge.kind,
                producer=producer,
                consumer=consumer,
                producer_site=layout.site_of[edge.sources[pair[0]].node, pair[1]],
                consumer_site=layout.site_of[edge.to.node, pair[2]],
                **_merged(ends.get(name, [])),
                iters_behind=behind,
            )
        for relay in layout.relays_of(edge):
            yield EdgeStats(
                edge=relay_label(edge, relay),
                kind=edge.kind,
                producer=edge.source.node,
                consumer=relay,
                producer_site=layout.state_sender(edge, relay),
                consumer_site=relay,
                **_merged(ends.get(relay_label(edge, relay), [])),
                iters_behind=None,
            )


def _merged(ends: list[EdgeEndStats]) -> dict[str, int | None]:
    """The counts of an edge, from the reports of the sites at both ends."""
    found: dict[str, int | None] = {
        key: next((v for end in ends if (v := getattr(end, key)) is not None), None)
        for key in ("sent", "taken", "bytes", "wire_bytes", "bound")
    }
    sent, taken, bound = found["sent"], found["taken"], found["bound"]
    held = sum(end.held for end in ends) if len(ends) == 1 else None
    if sent is not None and taken is not None:
        held = max(sent - taken, 0)  # the ends were not read at the same time
        held = held if bound is None else min(held, bound)
    return {**found, "held": held}


def timings_row(
    nodes: Sequence[NodeStats], idle_s: Mapping[str, float], wall_s: float, counts: Count
) -> dict[str, Any]:
    """A row of `timings.jsonl`: what was done so far, and where the time of each instance and of each site went."""
    return {
        "wall_s": round(wall_s, 6),
        "env_steps": counts.env_steps,
        "train_iters": counts.train_iters,
        "busy_s": {node.instance: round(node.busy_s, 6) for node in nodes},
        "parts_s": {n.instance: _rounded(n.parts_s) for n in nodes if n.parts_s},
        "waiting_s": {n.instance: _rounded(n.waiting_s) for n in nodes if n.waiting_s},
        "blocked_s": {n.instance: _rounded(n.blocked_s) for n in nodes if n.blocked_s},
        "idle_s": _rounded(idle_s),
        "site": {node.instance: node.site for node in nodes},
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: round(s, 6) for key, s in seconds.items()}
