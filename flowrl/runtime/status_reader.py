"""Reads the status of a site from its scheduler, in any thread.

Reading takes no lock, so that it costs the scheduler nothing. So two values may be from different firings.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator

from flowrl.graph.replica_pairs import pair_label
from flowrl.runtime.instance import Instance
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Wait
from flowrl.runtime.status import Activity, EdgeEndStats, NodeStats, SiteStatus
from flowrl.runtime.streams import DropOldestQueue


def read_status(scheduler: Scheduler, site: str, at_s: float | None = None) -> SiteStatus:
    """Return the status of a site now, or at the time `at_s` of `time.perf_counter`."""
    current, activity = _activity(scheduler, time.perf_counter() if at_s is None else at_s)
    waits = _waits(scheduler, current, activity.for_s)
    return SiteStatus(
        site,
        activity,
        scheduler.site.rounds,
        sum(s for (kind, _), edges in waits.items() if kind == "idle" for s in edges.values()),
        (*_nodes(scheduler, site, activity, waits), *_served_nodes(scheduler, site, waits)),
        (*_remote_edges(scheduler), *_local_edges(scheduler)),
    )


Waits = dict[tuple[str, str], dict[str, float]]  # by kind and instance: seconds by edge


def _activity(scheduler: Scheduler, now_s: float) -> tuple[Wait | None, Activity]:
    site = scheduler.site
    waiting, last_fired_s = site.waiting, site.last_fired_s
    if waiting is not None:
        wait, since_s = waiting
        for_s = max(now_s - since_s, 0.0)
        return wait, Activity(wait.kind, for_s, wait.instance, wait.edge, wait.peer)
    step = scheduler.current_step
    firing = step.instance if step is not None else None
    instance = firing.key if isinstance(firing, Instance) else ""
    return None, Activity("firing", max(now_s - last_fired_s, 0.0), instance)


def _waits(scheduler: Scheduler, current: Wait | None, for_s: float) -> Waits:
    """Return all waits so far, including the current one."""
    found: Waits = defaultdict(dict)
    for wait in scheduler.site.waits:
        waited_s = wait.waited_s + (for_s if wait is current else 0.0)
        if waited_s:
            edges = found[wait.kind, wait.instance]
            edges[wait.edge] = edges.get(wait.edge, 0.0) + waited_s
    return found


def _nodes(
    scheduler: Scheduler, site: str, activity: Activity, waits: Waits
) -> Iterator[NodeStats]:
    for instance in scheduler.instances.all():
        key = instance.key
        fires_now = activity.kind == "firing" and activity.instance == key
        yield NodeStats(
            key,
            site,
            instance.fired,
            instance.busy_s + (activity.for_s if fires_now else 0.0),
            waits.get(("waiting", key), {}),
            waits.get(("blocked", key), {}),
            instance.ctx.clock.total.train_iters,
        )


def _served_nodes(scheduler: Scheduler, site: str, waits: Waits) -> Iterator[NodeStats]:
    """Yield the services of this site that answered calls of other sites."""
    calls_answered: dict[str, int] = defaultdict(int)
    for wait in scheduler.site.waits:
        if wait.kind == "serving":
            calls_answered[wait.instance] += wait.count
    for service, calls in calls_answered.items():
        busy_s = sum(waits.get(("serving", service), {}).values())
        if busy_s:
            yield NodeStats(service, site, calls, busy_s)


def _remote_edges(scheduler: Scheduler) -> Iterator[EdgeEndStats]:
    for wait in scheduler.site.waits:
        if wait.channel is not None:
            counts = wait.channel.statistics()
            if wait.kind == "blocked":
                limit = wait.channel.limits.tokens
                yield EdgeEndStats(
                    wait.edge, counts.tokens, None, counts.bytes, counts.queued, limit
                )
            else:
                yield EdgeEndStats(wait.edge, None, counts.tokens, None, counts.queued, None)


def _local_edges(scheduler: Scheduler) -> Iterator[EdgeEndStats]:
    """Yield the edges within the site. The number of tokens taken follows from the consumer's firings."""
    seen = set()
    for edge in scheduler.graph.edges:
        for pair, queue in list(scheduler.instances.queues.get(edge.to, {}).items()):
            if type(queue) not in (deque, DropOldestQueue) or id(queue) in seen:
                continue  # only the site's thread may read queues of remote edges
            seen.add(id(queue))
            instances = scheduler.instances.by_node[edge.to.node]
            consumer = next(i for i in instances if i.ctx.replica == pair[2])
            held, taken = len(queue), consumer.fired * scheduler.program.rate(edge.to)
            limit = scheduler.program.capacity[edge.to]
            yield EdgeEndStats(pair_label(edge, pair), taken + held, taken, None, held, limit)
