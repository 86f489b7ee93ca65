"""Which site saves and loads each part of a snapshot."""

from __future__ import annotations

from flowrl.checks.check import CheckedGraph
from flowrl.checks.service_paths import service_paths
from flowrl.core.context import instance_key
from flowrl.graph.replica_pairs import replica_pairs_of
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.snapshot import edge_key, node_key, versions_key


def site_of_parts(checked: CheckedGraph, layout: SiteLayout) -> dict[str, str]:
    """Return the site of each part, by its key."""
    graph, site_of = checked.graph, layout.site_of
    paths = service_paths(graph)
    found = {}
    for name, spec in graph.nodes.items():
        owner = name if spec.fires else paths[name][0]
        for replica in range(spec.replicas):
            found[node_key(instance_key(name, replica))] = site_of[owner, replica]
    for edge in graph.edges:
        if edge.kind == "stream":
            for pair in replica_pairs_of(graph, edge):
                found[edge_key(edge.to, pair)] = site_of[edge.to.node, pair[2]]
        elif edge.kind == "state":
            found[versions_key(edge.source)] = site_of[edge.source.node, 0]
    return found
