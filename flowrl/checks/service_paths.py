"""The path of links by which a firing node reaches each service, for saving its state."""

from __future__ import annotations

from flowrl.graph.model import Graph, link_edges

# The name of a node that fires, and the names of the services from there to the last one.
ServicePath = tuple[str, ...]


def service_paths(graph: Graph) -> dict[str, ServicePath]:
    """Return for each node that does not fire the shortest path from a firing node, the first in the graph's order.

    The calls of a service belong to the firings of its clients. So its state between two rounds is known at the site of
    such a client, and not at its own, which may be called for later rounds already. A node that nobody calls has only
    itself in its path.
    """
    names = list(graph.nodes)
    links = sorted(link_edges(graph), key=lambda edge: names.index(edge.to.node))
    paths: dict[str, ServicePath] = {n: (n,) for n, spec in graph.nodes.items() if spec.fires}
    found = dict(paths)
    while found:
        found = {
            edge.source.node: (*path, edge.source.node)
            for edge in reversed(links)
            if (path := found.get(edge.to.node)) and edge.source.node not in paths
        }
        paths |= found
    return {n: paths.get(n, (n,)) for n, spec in graph.nodes.items() if not spec.fires}
