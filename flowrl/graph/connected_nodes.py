"""What follows for the nodes of a graph from their connections: their replicas, and parameters without an effect."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from flowrl.core.config import dependent_params, replaced_params
from flowrl.core.errors import Problems
from flowrl.graph.model import Graph, PortRef, linked_groups


def share_replicas(graph: Graph, problems: Problems) -> None:
    """Give all nodes of a linked group the number of replicas that one of them has."""
    for group in linked_groups(graph):
        specs = [graph.nodes[name] for name in group]
        counts = {(spec.replicas, spec.least_replicas) for spec in specs} - {(1, None)}
        if len(counts) > 1:
            names = ", ".join(f"{n}: {graph.nodes[n].written_replicas}" for n in sorted(group))
            what = f"linked nodes have different replicas ({names})"
            first = next(n for n in graph.nodes if n in group)
            problems.add(graph.nodes[first].location(), what, "give the number to one of them")
        for spec in specs:
            spec.replicas, spec.least_replicas = next(iter(counts), (1, None))


def clear_replaced_params(graph: Graph, problems: Problems) -> None:
    """Reset the parameters that a connected link takes the place of, and report those that a node gives."""
    edges = {edge.to: edge for edge in graph.edges if edge.kind == "link"}
    for spec in graph.nodes.values():
        unused: dict[str, Any] = {}
        for name, link in replaced_params(type(spec.config)).items():
            edge = edges.get(PortRef(spec.name, link))
            if edge is None:
                continue
            unused[name] = type(spec.config).model_fields[name].default
            written = spec.written.fields.get(name)
            if written is not None and written.value is not None:
                what = f"nodes.{spec.name}: '{name}' has no effect, because of the link {edge}"
                has_own = name in graph.nodes[edge.source.node].cls.Config.model_fields
                hint = "leave it out, or remove the link"
                if has_own:
                    hint = f"give '{name}' to {edge.source.node}, or remove the link"
                problems.add(written.entry_location, what, hint)
        if unused:
            spec.config = spec.config.model_copy(update=unused)


def refuse_params_of_missing_inputs(
    graph: Graph, incomplete: Container[str], problems: Problems
) -> None:
    """Report parameters that have no effect, because the input on which they depend is not connected.

    Edges of `incomplete` nodes may be missing, because they could not be read.
    """
    connected = {edge.to for edge in graph.edges}
    for spec in (s for name, s in graph.nodes.items() if name not in incomplete):
        for name, port in dependent_params(spec.config).items():
            if port in spec.cls.ports and PortRef(spec.name, port) not in connected:
                what = f"nodes.{spec.name}: '{name}' has no effect, because the input '{port}' is not connected"
                problems.add(spec.location(name), what, "leave it out, or connect the input")
