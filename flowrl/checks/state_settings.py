"""Checks that states come with the settings that their consumers read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.core.errors import Problem, spelling_hint
from flowrl.core.facts import Facts
from flowrl.core.ports import StateOut
from flowrl.graph.model import Edge, Graph, NodeSpec, PortRef


def state_setting_problems(
    graph: Graph, facts: Mapping[str, Facts], is_whole: bool = True
) -> Iterator[Problem]:
    """Yield a problem for each setting that a node needs, and that no state gives it.

    If the graph is not whole, a node that could not be read may give what is not connected. Those of weights that a
    state carries by names are checked with the weights (`checks/weights`).
    """
    edges = {edge.to: edge for edge in graph.edges}
    for name, found in facts.items():
        for port, needed in found.needs_settings.items():
            if port not in graph.nodes[name].cls.ports:
                continue
            edge = edges.get(PortRef(name, port))
            known = None if edge is None else _settings_of(facts, edge)
            for setting, key in needed.items():
                if edge is None:
                    if not is_whole or not graph.nodes[name].cls.ports[port].optional:
                        continue  # which is a problem by itself
                    yield _unconnected(graph, graph.nodes[name], port, setting, key)
                elif known is not None and setting not in known:
                    yield _unknown(graph.nodes[name], edge, setting, key, known)


def _settings_of(facts: Mapping[str, Facts], edge: Edge) -> frozenset[str] | None:
    source = facts.get(edge.source.node)
    return None if source is None else source.settings.get(edge.source.port)


def _unconnected(graph: Graph, spec: NodeSpec, port: str, setting: str, key: str) -> Problem:
    wanted = spec.cls.ports[port].type
    sources = (
        f"add '{other.name}.{output} -> {spec.name}.{port}: {{lag: 1}}'"
        for other in graph.nodes.values()
        for output, kind in other.cls.ports.items()
        if isinstance(kind, StateOut) and kind.type == wanted
    )
    what = (
        f"{key} depends on '{setting}', and the state input '{spec.name}.{port}' is not connected"
    )
    hint = next(sources, f"no node of the graph gives '{wanted}'")
    return Problem(str(spec.location(key)), what, hint)


def _unknown(spec: NodeSpec, edge: Edge, setting: str, key: str, known: frozenset[str]) -> Problem:
    what = f"{key} depends on '{setting}', which {edge.source} does not give"
    return Problem(str(spec.location(key)), what, spelling_hint(setting, known))
