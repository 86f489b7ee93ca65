"""Makes the nodes of a site, each with the services that it is linked to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.ordering import exclusive_services, services_before_clients
from flowrl.checks.service_paths import ServicePath, service_paths
from flowrl.core.context import Context, ServiceExample, instance_key
from flowrl.core.errors import LOADING_STATE, FlowError, NodeError
from flowrl.core.facts import Facts
from flowrl.core.node import Node
from flowrl.core.ports import In, Link, Out, Service
from flowrl.core.replica_group import ReplicaGroup
from flowrl.core.reseeding import Reseeding
from flowrl.core.saved_state import SavedState
from flowrl.graph.model import Edge, Graph, NodeSpec, client_roles, link_edges
from flowrl.runtime.edge_factory import EdgeFactory, LocalService, Replica
from flowrl.runtime.instance import RAISED
from flowrl.runtime.service_calls import LocalServiceStub
from flowrl.runtime.site_state import ServiceCalls

RESEED = "reseed"  # of a node's part: whether its state gets other random numbers
SHARED_SERVICE_ERROR = (
    "a service with several clients, or with none, can neither count nor record anything, "
    "because it would belong to no firing; let its clients do it"
)


class LinkedNodes:
    """The nodes of a site and their contexts.

    A service with one client belongs to it: it is recreated with its client, and its records are emitted as part of the
    client's firing. A service may also fire. Then it records in its own firings, and is kept when a client fails.
    """

    def __init__(self, checked: CheckedGraph, edges: EdgeFactory) -> None:
        self._checked, self._edges = checked, edges
        self._exclusive = exclusive_services(checked.graph)  # by client
        self._nodes: dict[Replica, Node] = {}
        # Of services, including those on other sites whose records are emitted on this site.
        self._service_contexts: dict[Replica, Context] = {}
        self.close_errors: list[NodeError] = []
        self._is_closed = False

    def make_all(self, seed: int, on_making: Callable[[str], None], continues: bool) -> None:
        """Make all nodes of the site, services before their clients. `on_making` is called before with each one."""
        for name in services_before_clients(self._checked.graph):
            spec = self._checked.graph.nodes[name]
            for replica in range(spec.replicas):
                if self._edges.is_local(name, replica):
                    on_making(instance_key(name, replica))
                    context = context_of(self._checked, spec, replica, seed)
                    context.continues = continues
                    context.site_restarts = self._edges.site.restarts
                    self._nodes[name, replica] = self._make(spec, context)
                    if not spec.fires:
                        self._serve(name, replica, context)
        self._refuse_records_of_shared_services()

    def _serve(self, name: str, replica: int, context: Context) -> None:
        self._service_contexts[name, replica] = context
        service = LocalService(
            (name, replica),
            lambda: self._nodes[name, replica],
            lambda: self.recreate(name, replica),
            lambda path: self.save_service(path, replica),
            lambda path, saved: self.load_service(path, replica, saved),
        )
        self._edges.serve_remote_clients(service, self._service_contexts)

    def node(self, name: str, replica: int) -> Node:
        return self._nodes[name, replica]

    def service_contexts(self, context: Context) -> list[Context]:
        """Return the contexts of the services whose records belong to this client's firings."""
        found = []
        for name in self._exclusive[context.name]:
            service = self._service_contexts[name, context.replica]
            service.on_pending = context.mark_pending
            if service.has_pending:
                context.mark_pending()
            found.append(service)
        return found

    def recreate(self, name: str, replica: int) -> Node:
        """Replace a failed node by a new one with new services, and return it."""
        old = self._nodes[name, replica]
        old.ctx.restarts += 1
        self._close(old)
        node = self._make(self._checked.graph.nodes[name], old.ctx, fresh=True)
        self._nodes[name, replica] = node
        return node

    # the state of services

    def service_paths(self) -> Iterator[tuple[ServicePath, int]]:
        """Yield the path to each service whose calls belong to the firings of this site, and the replica."""
        for path in service_paths(self._checked.graph).values():
            ports = self._checked.graph.nodes[path[-1]].cls.ports.values()
            services = [port for port in ports if isinstance(port, Service)]
            if services and not any(service.stateful for service in services):
                continue  # it has no state
            for replica in range(self._checked.graph.nodes[path[0]].replicas):
                if self._edges.is_local(path[0], replica):
                    yield path, replica

    def save_service(self, path: ServicePath, replica: int) -> SavedState:
        """Return the state of the last service of a path, of which at least the first node is on this site."""
        remote = self._first_remote(path, replica)
        if remote is not None:
            return self._edges.save_remote_service(*remote, replica)
        node = self._nodes[path[-1], replica]
        try:
            saved = SavedState.of({"restarts": node.ctx.restarts, "state": node.state_dict()})
            saved.parts()
            return saved
        except RAISED as error:
            raise NodeError(node.ctx.key, "saving its state", error) from error

    def load_service(self, path: ServicePath, replica: int, saved: SavedState) -> None:
        """Load the state of the last service of a path."""
        remote = self._first_remote(path, replica)
        if remote is not None:
            self._edges.load_remote_service(*remote, replica, saved)
            return
        node = self._nodes[path[-1], replica]
        try:
            data = saved.state_dict()
            node.ctx.restarts = int(data["restarts"])
            load_node_state(node, data)
        except RAISED as error:
            raise NodeError(node.ctx.key, LOADING_STATE, error) from error

    def is_remote(self, path: ServicePath, replica: int) -> bool:
        """Return whether the last service of a path is called on another site."""
        return self._first_remote(path, replica) is not None

    def _first_remote(self, path: ServicePath, replica: int) -> tuple[Edge, ServicePath] | None:
        """Return the first link of a path that leads to another site, and the path from there; None without one."""
        for client, service in pairwise(path):
            if not self._edges.is_local(service, replica):
                links = link_edges(self._checked.graph)
                edge = next(e for e in links if (e.to.node, e.source.node) == (client, service))
                return edge, path[path.index(service) :]
        return None

    def close(self) -> None:
        """Close every node once, even if one of them raises an error. Nodes that fire are closed first."""
        if self._is_closed:
            return
        self._is_closed = True
        nodes = self._checked.graph.nodes
        firing = [
            (name, replica)
            for name, spec in nodes.items()
            for replica in range(spec.replicas)
            if spec.fires and (name, replica) in self._nodes
        ]
        for key in [*firing, *(key for key in self._nodes if key not in set(firing))]:
            self._close(self._nodes[key])

    def _close(self, node: Node) -> None:
        try:
            node.close()
        except RAISED as error:  # reported at the end of the run, after all nodes are closed
            self.close_errors.append(NodeError(node.ctx.key, "closing", error))

    def _make(self, spec: NodeSpec, context: Context, fresh: bool = False) -> Node:
        services: dict[str, Any] = {}
        for edge in link_edges(self._checked.graph):
            if edge.to.node == spec.name:
                service = self._service(edge, context.replica, fresh)
                if getattr(spec.port(edge.to.port), "many", False):
                    services.setdefault(edge.to.port, []).append(service)
                else:
                    services[edge.to.port] = service
        try:
            return spec.cls(config=spec.config, context=context, **services)
        except FlowError:
            raise
        except RAISED as error:
            raise NodeError(context.key, "being made", error) from error

    def _service(self, edge: Edge, replica: int, fresh: bool) -> Any:
        """Return the service of the same replica. With `fresh`, it is recreated if it does not fire."""
        name = edge.source.node
        stub = self._edges.client_stub(edge, replica, self._service_contexts, fresh)
        if stub is not None:
            return stub
        spec, site = self._checked.graph.nodes[name], self._edges.site
        if fresh and not spec.fires:
            self.recreate(name, replica)
        service, port = self._nodes[name, replica], spec.port(edge.source.port)
        assert isinstance(port, Service)
        link = service.ctx.key, instance_key(edge.to.node, replica)
        calls = site.service_calls.setdefault(link, ServiceCalls())
        return LocalServiceStub(service, port.methods, calls, site)

    def _refuse_records_of_shared_services(self) -> None:
        graph = self._checked.graph
        clients = [name for name, spec in graph.nodes.items() if spec.fires]
        owned = {service for name in clients for service in self._exclusive[name]}
        for (name, _), context in self._service_contexts.items():
            if name not in owned:
                context.on_pending = _refuse_record
                if context.has_pending:
                    raise NodeError(context.key, "being made", RuntimeError(SHARED_SERVICE_ERROR))


def load_node_state(node: Node, data: Mapping[str, Any]) -> None:
    """Load the state of a node from the data of its part of a snapshot; in a forked run, with other random numbers."""
    state = data["state"]
    if data.get(RESEED):
        state = node.reseeded(state, Reseeding(f"{node.ctx.seed}/{node.ctx.counted_as}"))
    node.load_state_dict(state)


def context_of(checked: CheckedGraph, spec: NodeSpec, replica: int, seed: int) -> Context:
    """Make the context of an instance from the graph and the facts of its neighbours."""
    graph, schedule = checked.graph, checked.program.schedule_of(spec.name)
    inputs = {}
    for edge in graph.edges_into(spec.name):
        if edge.kind == "stream":
            source = checked.facts.get(edge.source.node, Facts())
            inputs[edge.to.port] = source.outs.get(edge.source.port)
    rates = {n: spec.rate(n) or 1 for n, p in spec.cls.ports.items() if isinstance(p, In | Out)}
    rates |= {ref.port: rate for ref, rate in schedule.rates.items() if ref.node == spec.name}
    return Context(
        spec.name,
        replica,
        seed,
        spec.torch_threads or graph.torch_threads,
        inputs=inputs,
        outs=dict(checked.facts.get(spec.name, Facts()).outs),
        rates=rates,
        client_roles=client_roles(graph).get(spec.name, frozenset()),
        examples=_service_examples(graph, spec),
        consumed_outputs=schedule.active_outputs(spec.name),
        may_end_run=spec.cls.may_end_run,
        effect_timing="later" if spec.fires else "never",
        group=ReplicaGroup(replica, spec.replicas) if spec.is_group else None,
    )


def _service_examples(graph: Graph, spec: NodeSpec) -> dict[str, ServiceExample]:
    """For each optional link that is not connected: the graph's first node with such a service."""
    connected = {edge.to.port for edge in graph.edges_into(spec.name)}
    return {
        name: ServiceExample(other.cls, other.config)
        for name, port in spec.cls.ports.items()
        if isinstance(port, Link) and name not in connected
        for other in reversed([*graph.nodes.values()])
        for service in other.cls.ports.values()
        if isinstance(service, Service) and service.type == port.type
    }


def _refuse_record() -> None:
    raise RuntimeError(SHARED_SERVICE_ERROR)
