"""Making a graph's nodes and connecting them: instances, queues, versions of states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.ordering import exclusive_services, services_before_clients
from flowrl.checks.serial_program import Schedule
from flowrl.core.context import Context
from flowrl.core.errors import FlowError, NodeError
from flowrl.core.node import Facts, Node
from flowrl.core.ports import In, Out
from flowrl.graph.model import Edge, NodeSpec, PortRef, link_edges
from flowrl.graph.replica_pairs import ReplicaPair
from flowrl.runtime.edge_factory import EdgeFactory
from flowrl.runtime.instance import RAISED, Instance, SiteState
from flowrl.runtime.local_edges import queues_into
from flowrl.runtime.stale_tokens import stale_token_filters
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import (
    Push,
    Queue,
    Take,
    give_to,
    if_any,
    take_list,
    take_one,
)
from flowrl.runtime.token_hashing import TokenHasher

NOBODY = (
    "a service that several nodes call, or none, can neither count nor tell anything: "
    "it would be of nobody's firing; let its clients do it"
)


@dataclass
class Instances:
    """The instances of a graph, connected."""

    checked: CheckedGraph
    home: EdgeFactory = field(default_factory=EdgeFactory)
    by_node: dict[str, list[Instance]] = field(default_factory=dict)  # by node: its replicas here
    services: dict[tuple[str, int], Node] = field(default_factory=dict)  # nodes only called
    told: dict[tuple[str, int], Context] = field(
        default_factory=dict
    )  # what those tell, also elsewhere
    versions: dict[PortRef, StateVersions] = field(default_factory=dict)
    lanes: dict[PortRef, dict[ReplicaPair, Queue]] = field(default_factory=dict)
    hasher: TokenHasher | None = None  # where tokens are to be hashed
    closed: bool = False
    close_errors: list[NodeError] = field(
        default_factory=list
    )  # what nodes raised while they closed

    @property
    def site(self) -> SiteState:
        """Where in the program this site is."""
        return self.home.site

    def all(self) -> Iterator[Instance]:
        """Every runner, in the order of the file."""
        return (r for name in self.checked.graph.nodes for r in self.by_node.get(name, ()))

    def connect(self, schedules: Iterable[Schedule]) -> None:
        """Make the edges of these parts active: what was connected otherwise is reconnected."""
        for schedule in schedules:
            for name in schedule.order:
                for instance in self.by_node.get(name, ()):
                    waits_for: list[tuple[list[Queue], int]] = []
                    takes = self._takes(instance, schedule, waits_for)
                    instance.wire(takes, self._pushes(instance, schedule), waits_for)
                    instance.drop_old = stale_token_filters(instance, schedule, self._queues_into)

    def dropped(self) -> int:
        """Tokens that were lost on full edges."""
        queues = {id(q): q for lanes in self.lanes.values() for q in lanes.values()}
        return sum(getattr(q, "dropped", 0) for q in queues.values())

    def renew(self, instance: Instance) -> None:
        """A fresh instance in a failed one's place, with fresh services: links make them one."""
        instance.ctx.restarts += 1
        self._close([instance.node])
        instance.renew(_make_node(self, instance.spec, instance.ctx, fresh=True))

    def renew_service(self, name: str, replica: int) -> None:
        """A fresh instance of a service; its client is made after it."""
        old = self.services[name, replica]
        old.ctx.restarts += 1
        self._close([old])
        spec = self.checked.graph.nodes[name]
        self.services[name, replica] = _make_node(self, spec, old.ctx, fresh=True)

    def close(self) -> None:
        """Close every node once, also after one of them has raised; errors go to `close_errors`."""
        if not self.closed:
            self.closed = True
            self._close([*(r.node for r in self.all()), *self.services.values()])

    def _close(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            try:
                node.close()
            except RAISED as error:  # told when the run ends: the others are closed all the same
                self.close_errors.append(NodeError(node.ctx.key, "closing", error))

    # inputs

    def _takes(
        self, instance: Instance, schedule: Schedule, waits_for: list[tuple[list[Queue], int]]
    ) -> dict[str, Take]:
        takes: dict[str, Take] = {}
        name = instance.spec.name
        for edge in schedule.edges:
            if edge.to.node == name:
                queues, rate = (
                    self._queues_into(edge, instance.ctx.replica),
                    schedule.rates[edge.to],
                )
                one = _takes_one(instance.spec, edge.to.port)
                take = take_one(queues) if one else take_list(queues, rate)
                takes[edge.to.port] = (
                    if_any(take, queues, rate) if schedule.any_input_nodes & {name} else take
                )
                waits_for.append((queues, rate))
        for edge in self.checked.graph.edges_into(instance.spec.name):
            if edge.kind == "state":
                take = self._view(edge, instance.ctx.replica)
                hashed = self.hasher and self.hasher.seeing(instance, edge, take)
                takes[edge.to.port] = hashed or take
        return takes

    def _queues_into(self, edge: Edge, replica: int) -> list[Queue]:
        queues = [q for lane, q in sorted(self.lanes[edge.to].items()) if lane[2] == replica]
        return queues[:1] if edge.merge == "any" else queues

    def _view(self, edge: Edge, replica: int) -> Take:
        versions = self.versions.get(edge.source)
        if versions is None:
            return self.home.view(edge, replica)
        return versions.view(edge.lag) if _at_round_ends(edge) else versions.view_newest()

    # outputs

    def _pushes(self, instance: Instance, schedule: Schedule) -> dict[str, list[Push]]:
        pushes: dict[str, list[Push]] = {}
        for edge in schedule.edges:
            for number, source in enumerate(edge.sources):
                if source.node == instance.spec.name:
                    lanes = sorted(self.lanes[edge.to].items())
                    mine = [(ln, q) for ln, q in lanes if ln[:2] == (number, instance.ctx.replica)]
                    push = give_to([queue for _, queue in mine])
                    if self.hasher is not None:
                        push = self.hasher.giving(instance, edge, [lane for lane, _ in mine], push)
                    pushes.setdefault(source.port, []).append(push)
        return pushes


def make_instances(checked: CheckedGraph, seed: int, home: EdgeFactory | None = None) -> Instances:
    """Make the instances of a sound graph that live here, and connect those that fire in rounds."""
    instances = Instances(checked, home or EdgeFactory())
    try:
        _make_nodes(instances, seed)
        for edge in checked.graph.edges:
            if edge.kind == "stream":
                instances.lanes[edge.to] = queues_into(instances, edge)
        _versions(instances)
        program = checked.program
        instances.connect([program.round, *(p.schedule for p in program.paced)])
    except BaseException:
        instances.close()
        raise
    return instances


def context_of(checked: CheckedGraph, spec: NodeSpec, replica: int, seed: int) -> Context:
    """What an instance is told of its surroundings."""
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
        graph.torch_threads,
        inputs=inputs,
        outs=dict(checked.facts.get(spec.name, Facts()).outs),
        rates=rates,
        consumed_outputs=schedule.active_outputs(spec.name),
        effect_timing="later" if spec.fires else "never",
    )


# instances


def _make_nodes(instances: Instances, seed: int) -> None:
    for name in services_before_clients(instances.checked.graph):
        spec = instances.checked.graph.nodes[name]
        for replica in filter(lambda r: instances.home.has(name, r), range(spec.replicas)):
            context = context_of(instances.checked, spec, replica, seed)
            node = _make_node(instances, spec, context)
            if spec.fires:
                instances.by_node.setdefault(name, []).append(
                    Instance(spec, node, context, instances.site)
                )
            else:
                instances.services[name, replica] = node
                instances.told[name, replica] = context
                instances.home.serve(instances, name, replica)
    _tell_services(instances)


def _tell_services(instances: Instances) -> None:
    """What a service tells is told with its client's firings; one of several clients cannot tell."""
    graph = instances.checked.graph
    owned = exclusive_services(graph)
    for instance in instances.all():
        for name in owned[instance.spec.name]:
            context = instances.told[name, instance.ctx.replica]
            instance.services.append(context)
            context.on_pending = instance.ctx.mark_pending
            if context.has_pending:
                instance.ctx.mark_pending()
    tells = {own for name, spec in graph.nodes.items() if spec.fires for own in owned[name]}
    for (name, _), context in instances.told.items():
        if name not in tells:
            context.on_pending = _nobody_to_tell
            if context.has_pending:
                raise NodeError(context.key, "being made", RuntimeError(NOBODY))


def _nobody_to_tell() -> None:
    raise RuntimeError(NOBODY)


def _make_node(instances: Instances, spec: NodeSpec, context: Context, fresh: bool = False) -> Node:
    found: dict[str, Any] = {}
    for edge in link_edges(instances.checked.graph):
        if edge.to.node == spec.name:
            service = _service(instances, edge, context.replica, fresh)
            if getattr(spec.port(edge.to.port), "many", False):
                found.setdefault(edge.to.port, []).append(service)
            else:
                found[edge.to.port] = service
    try:
        return spec.cls(config=spec.config, context=context, **found)
    except FlowError:
        raise
    except RAISED as error:
        raise NodeError(context.key, "being made", error) from error


def _service(instances: Instances, edge: Edge, replica: int, fresh: bool) -> Any:
    """The service of the same replica; anew if `fresh`, unless it fires and has its own life."""
    name = edge.source.node
    if not instances.home.has(name, replica):
        return instances.home.stub(instances, edge, replica, fresh)
    if (name, replica) not in instances.services:
        return next(r.node for r in instances.by_node[name] if r.ctx.replica == replica)
    if fresh:
        instances.renew_service(name, replica)
    return instances.services[name, replica]


# edges


def _versions(instances: Instances) -> None:
    """A state output keeps as many ends of rounds as its laggard looks back."""
    depth: dict[PortRef, int] = {}
    for edge in instances.checked.graph.edges:
        if edge.kind == "state":
            needed = edge.lag + 1 if _at_round_ends(edge) else 0
            depth[edge.source] = max(needed, depth.get(edge.source, 0))
    for source, ends in depth.items():
        # a group of learners is one node to the graph: its replica 0 gives the weights
        if instances.home.has(source.node, 0):
            versions = StateVersions(instances.by_node[source.node][0], source.port, ends)
            instances.versions[source] = versions
    for edge in instances.checked.graph.edges:
        if edge.kind == "state" and edge.source in instances.versions:
            versions = instances.versions[edge.source]
            if edge.every is None:
                versions.readers += instances.home.readers(edge, versions)
            else:
                versions.paced += [(edge.every, t) for t in instances.home.paced(edge, versions)]


def _at_round_ends(edge: Edge) -> bool:
    return not edge.latest and edge.every is None


def _takes_one(spec: NodeSpec, port: str) -> bool:
    """Only a rate that the type writes as 1 gives a token; every other gives a list of them."""
    kind = spec.port(port)
    return isinstance(kind, In) and kind.rate == 1
