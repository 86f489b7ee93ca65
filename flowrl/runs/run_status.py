"""A look at a run, as plain data: what its sites do, where their time went, what lies on its edges."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flowrl.graph.model import Graph
from flowrl.graph.replica_pairs import pair_endpoints, pair_label, replica_pairs_of
from flowrl.graph.site_layout import SiteLayout
from flowrl.runs.result import finite
from flowrl.runtime.status import AgedStatus, EdgeStats, SiteStatus

if TYPE_CHECKING:
    from flowrl.runs.run import Run

Look = dict[str, Any]


def look_at(run: Run) -> Look:
    """What there is to see just now (from any thread)."""
    seen = run.executor.site_statuses() if run.executor else dict.fromkeys(run.layout.kinds)
    done = run.counts
    return {
        "graph": run.graph.name,
        "placement": run.placement,
        "seed": run.seed,
        "run_dir": str(run.folder.absolute_path) if run.folder else "",
        "pid": os.getpid(),
        "status": _status(run),
        "wall_s": round(run.wall_s, 3),
        "firing_s": round(run.firing_s, 3),
        "env_steps": done.env_steps,
        "train_iters": done.train_iters,
        "episodes": done.episodes,
        "eval_return": finite(run.eval_return),
        "best_return": finite(run.best_return),
        "sites": [_site(run.layout, name, one) for name, one in seen.items()],
        "nodes": [node for name, one in seen.items() if one for node in _nodes(name, one.glance)],
        "edges": list(_edges(run.graph, run.layout, seen)),
    }


def _status(run: Run) -> str:
    if run.ended is not None:
        return run.ended.status
    if run.executor is None or run.executor.began_s is None:
        return "starting"
    return "stopping" if run.stops else "running"


def _site(layout: SiteLayout, name: str, seen: AgedStatus | None) -> dict[str, Any]:
    """A site, and what it does."""
    about = {"site": name, "kind": layout.kinds.get(name, "thread")}
    if seen is None:
        return {**about, "doing": "starting", "for_s": 0.0, "who": "", "edge": "", "peer": "",
                "rounds": 0, "silent_s": 0.0}  # fmt: skip
    doing = seen.glance.doing
    return {
        **about,
        "doing": doing.what,
        "for_s": round(doing.for_s, 3),
        "who": doing.who,
        "edge": doing.edge,
        "peer": doing.peer,
        "rounds": seen.glance.rounds,
        "silent_s": round(seen.ago_s, 3),
    }


def _nodes(site: str, glance: SiteStatus) -> Iterator[dict[str, Any]]:
    """Instances, and where their time went."""
    for key, did in glance.nodes.items():
        yield {
            "node": key,
            "site": site,
            "fired": did.fired,
            "firing_s": round(did.busy_s, 6),
            "waiting_s": _waits(glance, key, "waiting"),
            "blocked_s": _waits(glance, key, "blocked"),
            "idle_s": _idle_s(glance),
            "train_iters": did.train_iters,
        }
    for key in dict.fromkeys(w.who for w in glance.waited if w.kind == "serving"):
        calls = [w for w in glance.waited if (w.kind, w.who) == ("serving", key)]
        yield {
            "node": key,
            "site": site,
            "fired": sum(w.times for w in calls),
            "firing_s": round(sum(w.s for w in calls), 6),
            "waiting_s": {},
            "blocked_s": {},
            "idle_s": _idle_s(glance),
            "train_iters": None,
        }


def _idle_s(glance: SiteStatus) -> float:
    """How long a site was allowed no more."""
    return round(sum(w.s for w in glance.waited if w.kind == "idle"), 6)


def _waits(glance: SiteStatus, key: str, kind: str) -> dict[str, float]:
    return {w.edge: round(w.s, 6) for w in glance.waited if (w.who, w.kind) == (key, kind)}


def _edges(
    graph: Graph, layout: SiteLayout, seen: Mapping[str, AgedStatus | None]
) -> Iterator[dict[str, Any]]:
    """The ways of all edges, and what is known of what flows there."""
    glances = [one.glance for one in seen.values() if one]
    dids = {key: did for glance in glances for key, did in glance.nodes.items()}
    learned = sum(did.fired for key, did in dids.items() if key in graph.nodes_of_role("learner"))
    for edge in graph.edges:
        for lane in replica_pairs_of(graph, edge):
            name, (gives, takes) = pair_label(edge, lane), pair_endpoints(edge, lane)
            holder = dids.get(takes if edge.kind == "state" else gives)
            behind = learned - holder.train_iters if holder and edge.kind != "link" else None
            yield {
                "edge": name,
                "kind": edge.kind,
                "from": gives,
                "to": takes,
                "from_site": layout.site_of[edge.sources[lane[0]].node, lane[1]],
                "to_site": layout.site_of[edge.to.node, lane[2]],
                **_flow([f for glance in glances for f in glance.flows if f.edge == name]),
                "iters_behind": None if behind is None else max(behind, 0),
            }


def _flow(ends: list[EdgeStats]) -> dict[str, Any]:
    """What the sites at both ends know of a way, together."""
    sent, taken, nbytes, bound = (
        next((v for end in ends if (v := getattr(end, key)) is not None), None)
        for key in ("sent", "taken", "bytes", "bound")
    )
    held = sum(end.held for end in ends) if len(ends) == 1 else None
    if sent is not None and taken is not None:
        held = max(sent - taken, 0)  # the ends were not seen at the same time
        held = held if bound is None else min(held, bound)
    return {"sent": sent, "taken": taken, "bytes": nbytes, "held": held, "bound": bound}
