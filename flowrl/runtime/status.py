"""A glance at a walk, from any thread: what it does, where its time went, what lies on its edges.

Nothing is locked, so that looking costs a walk nothing; one thing that is read may be a firing older than the next.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from flowrl.graph.replica_pairs import pair_label
from flowrl.runtime.instance import Instance
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.streams import DropOldestQueue


@dataclass(frozen=True, slots=True)
class Activity:
    """What a site does: `firing`, or a kind of wait."""

    what: str
    for_s: float = 0.0
    who: str = ""  # the instance
    edge: str = ""  # that it waits for
    peer: str = ""  # the site at the other end


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What an instance has done."""

    fired: int
    busy_s: float
    train_iters: int  # in the causal past of what it holds


@dataclass(frozen=True, slots=True)
class WaitStats:
    """How long and how often an instance waited for an edge, or served."""

    who: str
    kind: str
    edge: str
    s: float
    times: int


@dataclass(frozen=True, slots=True)
class EdgeStats:
    """What one site knows of an edge: what went in, what came out, what is held, and how much may be."""

    edge: str
    sent: int | None
    taken: int | None
    bytes: int | None
    held: int
    bound: int | None


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """What there is to see of a site."""

    doing: Activity
    rounds: int  # whole ones, those of the warm-up too
    nodes: dict[str, NodeStats]
    waited: list[WaitStats]
    flows: list[EdgeStats]

    @property
    def fired(self) -> int:
        """All firings there: of two glances, the one with more is newer."""
        return sum(did.fired for did in self.nodes.values())

    def as_data(self) -> list[Any]:
        """As plain data."""
        doing, nodes, waited, flows = self.doing, self.nodes, self.waited, self.flows
        return [
            list(dataclasses.astuple(doing)),
            self.rounds,
            {key: list(dataclasses.astuple(did)) for key, did in nodes.items()},
            [list(dataclasses.astuple(w)) for w in waited],
            [list(dataclasses.astuple(f)) for f in flows],
        ]


@dataclass(frozen=True, slots=True)
class AgedStatus:
    """A glance at a site, and how long ago it was."""

    glance: SiteStatus
    ago_s: float = 0.0


def status_from_data(data: list[Any]) -> SiteStatus:
    """Plain data as a glance."""
    doing, rounds, nodes, waited, flows = data
    return SiteStatus(
        Activity(*doing),
        rounds,
        {key: NodeStats(*did) for key, did in nodes.items()},
        [WaitStats(*w) for w in waited],
        [EdgeStats(*f) for f in flows],
    )


def read_status(walk: Scheduler) -> SiteStatus:
    """What a walk does just now."""
    now = time.perf_counter()
    doing = _doing(walk, now)
    nodes = {
        r.key: NodeStats(r.fired, r.busy_s, r.ctx.clock.total.train_iters)
        for r in walk.instances.all()
    }
    if doing.what == "firing" and doing.who in nodes:  # this firing too
        did = nodes[doing.who]
        nodes[doing.who] = dataclasses.replace(did, busy_s=did.busy_s + doing.for_s)
    flows = [*_crossing(walk), *_within(walk)]
    return SiteStatus(doing, walk.site.rounds, nodes, _waited(walk, doing), flows)


def _doing(walk: Scheduler, now: float) -> Activity:
    site = walk.site
    waiting, last_fired_s = site.waiting, site.last_fired_s
    if waiting is not None:
        wait, since_s = waiting
        return Activity(wait.kind, max(now - since_s, 0.0), wait.who, wait.edge, wait.peer)
    step = walk.current_step
    who = step.instance.key if step is not None and isinstance(step.instance, Instance) else ""
    return Activity("firing", max(now - last_fired_s, 0.0), who)


def _waited(walk: Scheduler, doing: Activity) -> list[WaitStats]:
    """By instance and edge; the wait that goes on counts too."""
    found = []
    for wait in walk.site.waits:
        goes_on = (wait.kind, wait.who, wait.edge) == (doing.what, doing.who, doing.edge)
        s = wait.s + (doing.for_s if goes_on else 0.0)
        if s:
            found.append(WaitStats(wait.who, wait.kind, wait.edge, s, wait.times))
    return found


def _crossing(walk: Scheduler) -> list[EdgeStats]:
    """Edges that lead to other sites."""
    found = []
    for wait in walk.site.waits:
        if wait.channel is not None:
            counts = wait.channel.statistics()
            gives = wait.kind == "blocked"
            sent, taken = (counts.tokens, None) if gives else (None, counts.tokens)
            bound = wait.channel.limits.tokens if gives else None
            nbytes = counts.bytes if gives else None
            found.append(EdgeStats(wait.edge, sent, taken, nbytes, counts.queued, bound))
    return found


def _within(walk: Scheduler) -> list[EdgeStats]:
    """Edges within the site. How many tokens came out follows from the firings."""
    found, seen = [], set()
    for edge in walk.graph.edges:
        for lane, queue in list(walk.instances.queues.get(edge.to, {}).items()):
            if type(queue) not in (deque, DropOldestQueue) or id(queue) in seen:
                continue  # what comes from elsewhere must not be touched by another thread
            seen.add(id(queue))
            name = pair_label(edge, lane)
            taker = next(
                r for r in walk.instances.by_node[edge.to.node] if r.ctx.replica == lane[2]
            )
            held, taken = len(queue), taker.fired * walk.program.rate(edge.to)
            bound = walk.program.capacity[edge.to]
            found.append(EdgeStats(name, taken + held, taken, None, held, bound))
    return found
