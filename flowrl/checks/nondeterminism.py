"""Why two runs of a graph with the same seed may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.core.facts import Facts
from flowrl.graph.model import EDGE_OPTIONS, Graph


def nondeterminism_reasons(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[str]:
    """Yield the reasons why two runs of this graph may differ."""
    for edge in graph.edges:
        several = len(edge.sources) > 1 or graph.nodes[edge.source.node].replicas > 1
        for name, value in edge.changed_options().items():
            option = EDGE_OPTIONS[name]
            if value in option.nondeterminism and (
                several or not option.only_with_several_producers
            ):
                yield f"{edge}: {option.nondeterminism[value]}"
    for name, spec in graph.nodes.items():
        if spec.fires_on_any:
            yield f"{name}: fires on any input (what comes together depends on speed)"
        if spec.on_failure != "stop":
            yield f"{name}: on_failure {spec.on_failure}"
        if name in facts and facts[name].nondeterministic:
            yield f"{name}: {facts[name].nondeterministic}"
