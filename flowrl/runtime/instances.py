"""Makes the instances of a site, and connects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import lags_behind_firings
from flowrl.checks.serial_program import Schedule
from flowrl.core.context import instance_key
from flowrl.core.errors import NodeError
from flowrl.core.ports import In, StateOut
from flowrl.core.saved_state import SavedState
from flowrl.core.state import State
from flowrl.graph.model import Edge, NodeSpec, PortRef
from flowrl.graph.replica_pairs import ReplicaPair
from flowrl.runtime.edge_factory import EdgeFactory, reads_round_ends
from flowrl.runtime.group_firing import GroupFiring
from flowrl.runtime.instance import Instance
from flowrl.runtime.lagged_versions import lagged_versions
from flowrl.runtime.linked_nodes import LinkedNodes
from flowrl.runtime.stale_tokens import stale_token_filters
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import (
    Push,
    PushInTurn,
    PushParts,
    Queue,
    Take,
    take_if_ready,
    take_list,
    take_one,
)
from flowrl.runtime.token_hashing import TokenHasher
from flowrl.runtime.token_summary import PeekRequest, TokenSummary, summarise


class Instances:
    """The instances of a checked graph that live on one site, with the queues and versions that they share."""

    def __init__(
        self,
        checked: CheckedGraph,
        seed: int,
        edges: EdgeFactory,
        on_making: Callable[[str], None] = lambda instance: None,
        continues: bool = False,
    ) -> None:
        """Make the nodes, the queues and the versions of states, and connect the instances."""
        self.checked = checked
        self.site = edges.site
        self._edges = edges
        self._hasher: TokenHasher | None = None
        self._nodes = LinkedNodes(checked, edges)
        try:
            self._nodes.make_all(seed, on_making, continues)
            self.by_node = self._make_instances()
            streams = [edge for edge in checked.graph.edges if edge.kind == "stream"]
            self.queues: dict[PortRef, dict[ReplicaPair, Queue]] = {
                edge.to: edges.make_queues(edge) for edge in streams
            }
            self.versions = self._make_versions()
            self.groups = self._make_groups()
            self.connect(checked.program.schedules)
        except BaseException:
            self._nodes.close()
            raise

    def all(self) -> Iterator[Instance]:
        """Iterate over all instances in the order of the graph."""
        return (r for name in self.checked.graph.nodes for r in self.by_node.get(name, ()))

    def connect(self, schedules: Iterable[Schedule]) -> None:
        """Make the edges of these schedules active, and no others."""
        for schedule in schedules:
            for name in schedule.order:
                for instance in self.by_node.get(name, ()):
                    takes, inputs = self._inputs(instance, schedule)
                    instance.connect(takes, self._outputs(instance, schedule), inputs)
                    instance.stale_filters = stale_token_filters(
                        instance, schedule, self._queues_into
                    )

    def hash_tokens(self, hasher: TokenHasher) -> None:
        """Pass every token that is pushed, and every version that is read, to the hasher."""
        self._hasher = hasher
        self.connect(self.checked.program.schedules)

    def states_of(self, instance: Instance) -> dict[str, State]:
        """Return the newest version of each of an instance's states, by `instance.port`, with its whole state."""
        name, ports = instance.spec.name, instance.spec.cls.ports.items()
        states: dict[str, State] = {}
        for port, kind in ports:
            if not isinstance(kind, StateOut):
                continue
            versions = self.versions.get(PortRef(name, port))
            if versions is None and kind.optional and states:
                continue  # a further output that nobody reads
            if versions is None or versions.instance is not instance:
                versions = StateVersions(instance, port)
            # one of them has the whole state
            newest = versions.newest() if states else versions.newest_whole()
            states[f"{instance.key}.{port}"] = newest
        return states

    def dropped_tokens(self) -> int:
        """Return how many tokens were dropped on full edges."""
        queues = {id(q): q for by_pair in self.queues.values() for q in by_pair.values()}
        return sum(getattr(q, "dropped", 0) for q in queues.values())

    def peek(self, request: PeekRequest, show: Callable[[TokenSummary], None]) -> None:
        """Show a summary of what an instance of this site gives next. Any thread may call this."""
        instance = next((i for i in self.all() if i.key == request.instance), None)
        if instance is None:
            return

        def observe(result: Any) -> None:
            past = instance.ctx.clock.total
            try:
                value = instance.newest_of(request.port, result)
                found = value if value is None else summarise(request, value, instance.fired, past)
            except Exception as error:  # a look must not end the run
                found = summarise(request, error, instance.fired, past)
            if found is None:
                instance.observe_next(observe)
            else:
                show(found)

        instance.observe_next(observe)

    def save_services(self) -> Iterator[tuple[str, SavedState]]:
        """Yield the key and the state of each service whose calls belong to the firings of this site."""
        for path, replica in self._nodes.service_paths():
            yield instance_key(path[-1], replica), self._nodes.save_service(path, replica)

    def save_services_of(self, instance: Instance) -> Iterator[tuple[str, SavedState]]:
        """Yield the key and the state of each service that belongs to an instance."""
        for path, replica in self._nodes.service_paths():
            if (path[0], replica) == (instance.spec.name, instance.ctx.replica):
                if self._nodes.is_remote(path, replica):
                    raise ValueError(f"its service '{path[-1]}' is on another site")
                yield instance_key(path[-1], replica), self._nodes.save_service(path, replica)

    def service_loaders(self) -> Iterator[tuple[str, Callable[[SavedState], None]]]:
        """Yield the key of each such service, and the function that loads its state."""
        for path, replica in self._nodes.service_paths():
            load = partial(self._nodes.load_service, path, replica)
            yield instance_key(path[-1], replica), load

    def recreate_node(self, instance: Instance) -> None:
        """Replace the node of a failed instance by a new one with new services."""
        instance.replace_node(self._nodes.recreate(instance.spec.name, instance.ctx.replica))

    def close(self) -> None:
        """Close every node once. Errors are kept in `close_errors`."""
        for group in self.groups.values():
            group.close()
        self._nodes.close()

    @property
    def close_errors(self) -> list[NodeError]:
        """The errors that nodes raised while they were closed."""
        return self._nodes.close_errors

    def _make_instances(self) -> dict[str, list[Instance]]:
        by_node: dict[str, list[Instance]] = {}
        for name, spec in self.checked.graph.nodes.items():
            for replica in range(spec.replicas if spec.fires else 0):
                if self._edges.is_local(name, replica):
                    node = self._nodes.node(name, replica)
                    instance = Instance(
                        spec, node, node.ctx, self.site, self._learned_columns(name)
                    )
                    instance.services = self._nodes.service_contexts(node.ctx)
                    by_node.setdefault(name, []).append(instance)
        return by_node

    def _make_groups(self) -> dict[str, GroupFiring]:
        graph, found = self.checked.graph, {}
        for name, instances in self.by_node.items():
            if graph.nodes[name].is_group:
                exchange = self._edges.group_exchange(name)
                is_fed_by_replicas = any(
                    graph.nodes[source.node].replicas == graph.nodes[name].replicas
                    for edge in graph.edges_into(name)
                    for source in edge.sources
                    if edge.kind == "stream"
                )
                found[name] = GroupFiring(
                    instances, exchange, graph.torch_threads, is_fed_by_replicas
                )
        return found

    def _learned_columns(self, node: str) -> dict[str, frozenset[str]]:
        """Return the columns of each output that the engine must check, because a learner learns from them."""
        if self.checked.facts[node].checks_numbers:
            return {}
        found = self.checked.learned_columns.items()
        return {output.port: names for output, names in found if output.node == node and names}

    def _make_versions(self) -> dict[PortRef, StateVersions]:
        """Make the versions of the states whose nodes live on this site, with their readers on other sites.

        Replica 0 provides the state of a replicated node.
        """
        edges = [edge for edge in self.checked.graph.edges if edge.kind == "state"]
        depths: dict[PortRef, int] = {}
        lags: dict[PortRef, int] = {}  # of paced nodes, in firings
        for edge in edges:
            if lags_behind_firings(self.checked.program, edge):
                depths.setdefault(edge.source, 0)
                lags[edge.source] = max(edge.lag, lags.get(edge.source, 0))
                continue
            depth = edge.lag + 1 if reads_round_ends(edge) else 0
            depths[edge.source] = max(depth, depths.get(edge.source, 0))
        versions = {
            source: StateVersions(self.by_node[source.node][0], source.port, depth)
            for source, depth in depths.items()
            if self._edges.is_local(source.node, 0)
        }
        for source in lags.keys() & versions.keys():
            versions[source].keep_firings(
                lagged_versions(self.checked.program, self.site, source.node, lags[source])
            )
        for edge in edges:
            if edge.source in versions:
                own = versions[edge.source]
                if edge.every is not None:
                    readers = self._edges.paced_readers(edge, own)
                    own.paced_readers += [(edge.every, send) for send in readers]
                elif edge.source in lags and reads_round_ends(edge):
                    readers = self._edges.lagged_readers(edge, own)
                    own.paced_readers += [(1, send) for send in readers]
                else:
                    own.round_end_readers += self._edges.round_end_readers(edge, own)
        return versions

    # ports

    def _inputs(
        self, instance: Instance, schedule: Schedule
    ) -> tuple[dict[str, Take], list[tuple[list[Queue], int]]]:
        """Return how an instance takes from each input, and the queues of its stream inputs with their rates."""
        takes: dict[str, Take] = {}
        inputs: list[tuple[list[Queue], int]] = []
        name, replica = instance.spec.name, instance.ctx.replica
        for edge in schedule.edges:
            if edge.to.node == name:
                active = edge.with_sources_in(schedule.firings)
                queues, rate = self._queues_into(active, replica), schedule.rates[edge.to]
                one = _takes_one(instance.spec, edge.to.port)
                take = take_one(queues) if one else take_list(queues, rate)
                optional = name in schedule.any_input_nodes
                takes[edge.to.port] = take_if_ready(take, queues, rate) if optional else take
                inputs.append((queues, rate))
        for edge in self.checked.graph.edges_into(name):
            if edge.kind == "state":
                take = self._edges.state_input(edge, replica, self.versions)
                if self._hasher is not None:
                    take = self._hasher.hashed_take(instance, edge, take)
                takes[edge.to.port] = take
        return takes, inputs

    def _outputs(self, instance: Instance, schedule: Schedule) -> dict[str, list[Push]]:
        """Return how an instance pushes to the consumers of each output."""
        pushes: dict[str, list[Push]] = {}
        instance.shared_outputs = []
        for edge in schedule.edges:
            for number, source in enumerate(edge.sources):
                if source.node == instance.spec.name:
                    by_pair = sorted(self.queues[edge.to].items())
                    producer = (number, instance.ctx.replica)
                    own = [(pair, q) for pair, q in by_pair if pair[:2] == producer]
                    push = self._push(instance, edge, own)
                    rounding = self._edges.rounding(edge)
                    if rounding is not None:
                        push = rounding.rounded_push(instance.key, push)
                    pushes.setdefault(source.port, []).append(push)
        return pushes

    def _push(self, instance: Instance, edge: Edge, own: list[tuple[ReplicaPair, Queue]]) -> Push:
        """Return how an instance pushes to its queues of an edge."""
        consumer = self.checked.graph.nodes[edge.to.node]
        if len(own) > 1 and consumer.is_group:
            in_order = edge.to.port in self.checked.facts[consumer.name].needs_order
            return PushParts(
                consumer.name, [self._push(instance, edge, [one]) for one in own], in_order
            )
        push = own[0][1].append
        if len(own) > 1:
            push = shared = PushInTurn([queue for _, queue in own])
            instance.shared_outputs.append(shared)
        if self._hasher is not None:
            push = self._hasher.hashed_push(instance, edge, [pair for pair, _ in own], push)
        return push

    def _queues_into(self, edge: Edge, replica: int) -> list[Queue]:
        """Return the queues of an instance from the sources of an edge, which may be some of those in the graph."""
        whole = next(e for e in self.checked.graph.edges_into(edge.to.node) if e.to == edge.to)
        by_pair = [(p, q) for p, q in sorted(self.queues[edge.to].items()) if p[2] == replica]
        if edge.merge == "any":  # all sources share a queue
            return [by_pair[0][1]]
        return [queue for pair, queue in by_pair if whole.sources[pair[0]] in edge.sources]


def _takes_one(spec: NodeSpec, port: str) -> bool:
    """Return whether a port takes a token instead of a list: only if the port declares the rate 1."""
    kind = spec.port(port)
    return isinstance(kind, In) and kind.rate == 1
