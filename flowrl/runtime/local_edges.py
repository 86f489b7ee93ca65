"""The queues into one input: among instances that live here, and at the ends of lanes to other sites."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import NodeError
from flowrl.core.ports import In
from flowrl.core.state import EMPTY_CLOCK
from flowrl.graph.model import Edge
from flowrl.graph.replica_pairs import ReplicaPair, replica_pairs_of
from flowrl.runtime.streams import DropOldestQueue, Queue, Token

if TYPE_CHECKING:
    from flowrl.runtime.instances import Instances


def queues_into(instances: Instances, edge: Edge) -> dict[ReplicaPair, Queue]:
    """The queues into one input: one for each pair of replicas that talk; or all share one."""
    home, pairs = instances.home, replica_pairs_of(instances.checked.graph, edge)
    lanes: dict[ReplicaPair, Queue] = {}
    for lane in pairs:
        gives = home.has(edge.sources[lane[0]].node, lane[1])
        takes = home.has(edge.to.node, lane[2])
        if gives and takes:
            lanes[lane] = _queue(instances.checked, edge)
        elif takes:
            lanes[lane] = home.taking(edge, lane, _initial(instances.checked, edge))
        elif gives:
            lanes[lane] = home.giving(edge, lane)
    return _shared(instances, edge, lanes, len(pairs)) if edge.merge == "any" else lanes


def _shared(
    instances: Instances, edge: Edge, lanes: dict[ReplicaPair, Queue], sources: int
) -> dict[ReplicaPair, Queue]:
    """`merge: any`: each consumer here has one queue of all its sources."""
    home = instances.home
    found = {lane: queue for lane, queue in lanes.items() if not home.has(edge.to.node, lane[2])}
    for replica in {lane[2] for lane in lanes} - {lane[2] for lane in found}:
        mine = [lane for lane in lanes if lane[2] == replica]
        apart = [ln for ln in mine if not home.has(edge.sources[ln[0]].node, ln[1])]
        queue = _queue(instances.checked, edge, sources)
        queues = [queue, *(lanes[lane] for lane in apart)]
        whole = home.joined(edge, replica, queues) if apart else queue
        found |= {lane: whole if lane in apart else queue for lane in mine}
        if apart:  # what is taken is taken from the whole
            found[min(mine)] = whole
    return found


def _queue(checked: CheckedGraph, edge: Edge, sources: int = 1) -> Queue:
    """A queue with the initial tokens of its input."""
    capacity = checked.program.capacity[edge.to] * sources
    queue = DropOldestQueue(capacity) if edge.when_full == "drop_oldest" else deque()
    queue.extend(_initial(checked, edge))
    return queue


def _initial(checked: CheckedGraph, edge: Edge) -> list[Token]:
    port = checked.graph.nodes[edge.to.node].port(edge.to.port)
    if not isinstance(port, In) or port.initial is None:
        return []
    try:
        return [(port.initial(), EMPTY_CLOCK) for _ in range(checked.program.initial[edge.to])]
    except Exception as error:
        doing = f"making the initial tokens of '{edge.to.port}'"
        raise NodeError(edge.to.node, doing, error) from error
