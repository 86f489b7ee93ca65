"""Which instance lives on which site, and what kind of thing a site is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flowrl.errors import UsageError
from flowrl.graph import Graph
from flowrl.placement import MAIN, sites

Kind = Literal["thread", "process"]
Instance = tuple[str, int]  # a node, and its replica's number

COORDINATOR = "coordinator"  # the one that fires nothing


@dataclass(frozen=True, slots=True)
class Layout:
    """The sites of a run, in order, and who lives there."""

    kinds: Mapping[str, Kind]
    where: Mapping[Instance, str]

    def living(self, site: str) -> list[Instance]:
        """Who lives on a site."""
        return [instance for instance, at in self.where.items() if at == site]


def layout_of(graph: Graph, placement: Mapping[str, str]) -> Layout:
    """The layout of a placement: replicas of what has a site of its own have sites of their own."""
    kinds: dict[str, Kind] = {}
    where: dict[Instance, str] = {}
    for name, nodes in sites(graph, placement).items():
        place, _, label = name.partition(":")
        if name != MAIN and place not in ("thread", "process"):
            raise UsageError(
                f"placement: {nodes[0]} is put at '{name}', and this version has no hosts; "
                "use thread or process"
            )
        shared = name == MAIN or label not in nodes  # a site that was given a name
        for node in nodes:
            for replica in range(graph.nodes[node].replicas):
                site = name if shared or not replica else f"{name}#{replica}"
                kinds.setdefault(site, "process" if place == "process" else "thread")
                where[node, replica] = site
    _check_links(graph, where)
    return Layout(kinds, where)


def _check_links(graph: Graph, where: Mapping[Instance, str]) -> None:
    """Between sites a service may be called that does nothing else: its firings and its calls have an order."""
    for edge in graph.edges:
        service, client = edge.source.node, edge.to.node
        apart = edge.kind == "link" and where[service, 0] != where[client, 0]
        if apart and graph.nodes[service].fires:
            raise UsageError(
                f"placement: {client} calls {service}, which also fires; put both on one site"
            )
