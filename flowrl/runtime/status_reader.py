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
    now_s = time.perf_counter() if at_s is None else at_s
    called = _called_services(scheduler, now_s)
    current, activity = _activity(scheduler, now_s, called)
    waits = _waits(scheduler, current, activity.for_s)
    return SiteStatus(
        site,
        activity,
        scheduler.site.rounds,
        sum(s for (kind, _), edges in waits.items() if kind == "idle" for s in edges.values()),
        (
            *_nodes(scheduler, site, activity, waits, called),
            *_services(scheduler, site, waits, called),
        ),
        (*_remote_edges(scheduler), *_local_edges(scheduler)),
    )


Waits = dict[tuple[str, str], dict[str, float]]  # by kind and instance: seconds by edge


class CalledServices:
    """The time and the number of calls between instances of a site. Without the waits in them."""

    def __init__(self) -> None:
        self.busy_s: dict[str, float] = defaultdict(float)  # by service, its own calls included
        self.calls: dict[str, int] = defaultdict(int)  # by service
        self.of_client_s: dict[str, float] = defaultdict(float)
        self.current: tuple[float, str] = 0.0, ""  # the newest call: its begin, and its service


def _called_services(scheduler: Scheduler, now_s: float) -> CalledServices:
    found = CalledServices()
    is_waiting = scheduler.site.waiting is not None
    for (service, client), calls in list(scheduler.site.service_calls.items()):
        began_s = calls.began_s
        lasts_s = max(now_s - began_s, 0.0) if began_s and not is_waiting else 0.0
        found.busy_s[service] += calls.busy_s + lasts_s
        found.calls[service] += calls.count
        found.of_client_s[client] += calls.busy_s + lasts_s
        found.current = max(found.current, (began_s, service if began_s else ""))
    return found


def _activity(
    scheduler: Scheduler, now_s: float, called: CalledServices
) -> tuple[Wait | None, Activity]:
    site = scheduler.site
    waiting, last_fired_s = site.waiting, site.last_fired_s
    if waiting is not None:
        wait, since_s = waiting
        for_s = max(now_s - since_s, 0.0)
        return wait, Activity(wait.kind, for_s, wait.instance, wait.edge, wait.peer)
    step = site.current_step
    firing = step.instance if step is not None else None
    instance = firing.key if isinstance(firing, Instance) else ""
    for_s = max(now_s - last_fired_s, 0.0)
    return None, Activity("firing", for_s, instance, service=called.current[1])


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
    scheduler: Scheduler, site: str, activity: Activity, waits: Waits, called: CalledServices
) -> Iterator[NodeStats]:
    for instance in scheduler.instances.all():
        key = instance.key
        fires_now = activity.kind == "firing" and activity.instance == key
        busy_s = instance.busy_s + (activity.for_s if fires_now else 0.0)
        busy_s += called.busy_s[key] + sum(waits.get(("serving", key), {}).values())
        yield NodeStats(
            key,
            site,
            instance.fired,
            max(busy_s - called.of_client_s[key], 0.0),
            waits.get(("waiting", key), {}),
            waits.get(("blocked", key), {}),
            instance.ctx.clock.total.train_iters,
            parts_s=dict(instance.ctx.parts_s),
        )


def _services(
    scheduler: Scheduler, site: str, waits: Waits, called: CalledServices
) -> Iterator[NodeStats]:
    """Yield the services of this site that answered calls, of this site or of others, and that do not fire."""
    answered, firing = dict(called.calls), scheduler.instances.by_node
    for wait in scheduler.site.waits:
        if wait.kind == "serving":
            answered[wait.instance] = answered.get(wait.instance, 0) + wait.count
    for service, calls in answered.items():
        busy_s = called.busy_s[service] + sum(waits.get(("serving", service), {}).values())
        own_s, fires = busy_s - called.of_client_s[service], service.partition("#")[0] in firing
        if own_s > 0 and not fires:
            yield NodeStats(service, site, calls, own_s, is_service=True)


def _remote_edges(scheduler: Scheduler) -> Iterator[EdgeEndStats]:
    for wait in scheduler.site.waits:
        if wait.channel is not None:
            counts = wait.channel.statistics()
            if wait.kind == "blocked":
                limit = wait.channel.limits.tokens
                yield EdgeEndStats(
                    wait.edge,
                    counts.tokens,
                    None,
                    counts.bytes,
                    counts.wire_bytes,
                    counts.queued,
                    limit,
                )
            else:
                yield EdgeEndStats(wait.edge, None, counts.tokens, None, None, counts.queued, None)


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
            yield EdgeEndStats(pair_label(edge, pair), taken + held, taken, None, None, held, limit)
