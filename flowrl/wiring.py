"""Making a graph's nodes and connecting them: instances, queues, state feeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flowrl.check import Checked
from flowrl.context import Context
from flowrl.errors import FlowError, NodeError
from flowrl.graph import Edge, NodeSpec, PortRef
from flowrl.node import Facts, Node
from flowrl.ports import In, Out
from flowrl.program import Part
from flowrl.runner import (
    Dropping,
    Meter,
    Push,
    Queue,
    Runner,
    StateFeed,
    Take,
    deal,
    take_list,
    take_one,
)
from flowrl.state import START

Lane = tuple[int, int, int]  # source number, its replica, the consumer's replica


@dataclass
class Wired:
    """The instances of a graph, connected."""

    checked: Checked
    runners: dict[str, list[Runner]] = field(default_factory=dict)  # by node: its replicas in order
    services: dict[str, list[Node]] = field(default_factory=dict)
    feeds: dict[tuple[str, str, int], StateFeed] = field(default_factory=dict)
    queues: dict[PortRef, dict[Lane, Queue]] = field(default_factory=dict)
    dropping: dict[PortRef, list[Dropping]] = field(default_factory=dict)

    def all(self) -> Iterable[Runner]:
        """Every runner."""
        return (r for runners in self.runners.values() for r in runners)

    def connect(self, parts: Iterable[Part]) -> None:
        """Make the edges of these parts active: what was connected otherwise is reconnected."""
        for part in parts:
            for name in part.order:
                for runner in self.runners[name]:
                    runner.wire(self._takes(runner, part), self._pushes(runner, part))

    def close(self) -> list[BaseException]:
        """Close every node, whatever some of them raise; what they raised."""
        raised: list[BaseException] = []
        nodes = [r.node for r in self.all()] + [
            n for nodes in self.services.values() for n in nodes
        ]
        for node in nodes:
            try:
                node.close()
            except Exception as error:  # told by the caller: closing goes on with the others
                raised.append(NodeError(node.ctx.key, "closing", error))
        return raised

    # inputs

    def _takes(self, runner: Runner, part: Part) -> dict[str, Take]:
        takes: dict[str, Take] = {}
        runner.waits_for = []
        streams = {e.to: e for e in part.edges}
        for name, port in runner.spec.cls.ports.items():
            ref = PortRef(runner.spec.name, name)
            if isinstance(port, In) and ref in streams:
                edge = streams[ref]
                lanes = self.queues[ref]
                queues = [q for lane, q in sorted(lanes.items()) if lane[2] == runner.ctx.replica]
                if edge.merge == "any":
                    queues = queues[:1]
                rate = part.rates[ref]
                takes[name] = take_one(queues) if port.rate == 1 else take_list(queues, rate)
                runner.waits_for.append((queues, rate))
            elif port.kind == "state" and (view := self._view(runner, ref)):
                takes[name] = view
        return takes

    def _view(self, runner: Runner, ref: PortRef) -> Take | None:
        edge = next(
            (e for e in self.checked.graph.into(ref.node) if e.to == ref and e.kind == "state"),
            None,
        )
        if edge is None:
            return None
        feed = self.feeds[edge.source.node, edge.source.port, 0]
        return feed.view_newest() if edge.latest or edge.every is not None else feed.view(edge.lag)

    # outputs

    def _pushes(self, runner: Runner, part: Part) -> dict[str, list[Push]]:
        pushes: dict[str, list[Push]] = {}
        for edge in part.edges:
            for number, source in enumerate(edge.sources):
                if source.node == runner.spec.name:
                    pushes.setdefault(source.port, []).append(self._push(runner, edge, number))
        return pushes

    def _push(self, runner: Runner, edge: Edge, number: int) -> Push:
        lanes = self.queues[edge.to]
        queues = [
            q for lane, q in sorted(lanes.items()) if lane[:2] == (number, runner.ctx.replica)
        ]
        if edge.when_full == "drop_oldest":
            dropping = [Dropping(q, self.checked.program.capacity[edge.to]) for q in queues]
            self.dropping.setdefault(edge.to, []).extend(dropping)
            return dropping[0].push
        return queues[0].append if len(queues) == 1 else deal(queues)


def make(checked: Checked, seed: int, tell: Callable[[str], None] = lambda line: None) -> Wired:
    """Make every instance of a sound graph, and connect those that fire in rounds."""
    wired = Wired(checked)
    meter = Meter()
    graph = checked.graph
    try:
        for name in _links_first(checked):
            spec = graph.nodes[name]
            for replica in range(spec.replicas):
                context = context_of(checked, spec, replica, seed)
                node = _make_node(wired, spec, context)
                if spec.cls.fire is Node.fire:
                    wired.services.setdefault(name, []).append(node)
                else:
                    wired.runners.setdefault(name, []).append(Runner(spec, node, context, meter))
    except BaseException:
        wired.close()
        raise
    for edge in graph.edges:
        if edge.kind == "stream":
            wired.queues[edge.to] = _lanes(checked, edge)
        elif edge.kind == "state":
            _feed(wired, edge)
    parts = [checked.program.round, *(p.part for p in checked.program.paced)]
    wired.connect(parts)
    return wired


def context_of(checked: Checked, spec: NodeSpec, replica: int, seed: int) -> Context:
    """What an instance is told of its surroundings."""
    graph, program = checked.graph, checked.program
    part = program.part_of(spec.name)
    facts = checked.facts.get(spec.name, Facts())
    streams = {e.to.port: e for e in graph.into(spec.name) if e.kind == "stream"}
    inputs = {}
    for port, edge in streams.items():
        source = checked.facts.get(edge.source.node)
        inputs[port] = source.outs.get(edge.source.port) if source else None
    rates = {ref.port: rate for ref, rate in part.rates.items() if ref.node == spec.name}
    for port, kind in spec.cls.ports.items():
        if isinstance(kind, In | Out):
            rates.setdefault(port, spec.rate(port) or 1)
    return Context(
        spec.name,
        replica,
        seed,
        graph.torch_threads,
        inputs=inputs,
        outs=dict(facts.outs),
        rates=rates,
        wanted=part.active_outputs(spec.name),
    )


def _make_node(wired: Wired, spec: NodeSpec, context: Context) -> Node:
    links: dict[str, Any] = {}
    for edge in wired.checked.graph.into(spec.name):
        if edge.kind == "link":
            links[edge.to.port] = _service(wired, edge.source.node, context.replica)
    try:
        return spec.cls(config=spec.config, context=context, **links)
    except FlowError:
        raise
    except Exception as error:
        raise NodeError(context.key, "being made", error) from error


def _service(wired: Wired, name: str, replica: int) -> Node:
    if name in wired.services:
        return wired.services[name][replica]
    return wired.runners[name][replica].node


def _links_first(checked: Checked) -> list[str]:
    """Services before their clients, else in the order of the file."""
    graph = checked.graph
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        for edge in graph.into(name):
            if edge.kind == "link":
                visit(edge.source.node)
        order.setdefault(name)

    for name in graph.nodes:
        visit(name)
    return list(order)


def _lanes(checked: Checked, edge: Edge) -> dict[Lane, Queue]:
    """The queues into one input: one for each pair of replicas that talk; `merge: any` shares one."""
    graph = checked.graph
    to = graph.nodes[edge.to.node]
    lanes: dict[Lane, Queue] = {}
    shared: dict[int, Queue] = {}
    for number, source in enumerate(edge.sources):
        replicas = graph.nodes[source.node].replicas
        for a in range(replicas):
            for b in range(to.replicas):
                if replicas == to.replicas and a != b:
                    continue  # equal numbers pair off
                lanes[number, a, b] = (
                    shared.setdefault(b, deque()) if edge.merge == "any" else deque()
                )
    port = to.cls.ports[edge.to.port]
    if isinstance(port, In) and port.initial is not None:
        for queue in lanes.values():
            queue.extend((port.initial(), START) for _ in range(checked.program.initial[edge.to]))
    return lanes


def _feed(wired: Wired, edge: Edge) -> None:
    """The feed of a state output keeps as many versions as its laggard sees."""
    key = (edge.source.node, edge.source.port, 0)
    depth = 0 if edge.latest or edge.every is not None else edge.lag + 1
    feed = wired.feeds.get(key)
    if feed is None or feed.depth < depth:
        runner = wired.runners[edge.source.node][0]
        wired.feeds[key] = StateFeed(
            runner, edge.source.port, max(depth, feed.depth if feed else 0)
        )
