"""Which instance lives on which site, and what kind of thing a site is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flowrl.errors import UsageError
from flowrl.graph import Graph, linked_groups
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
    _links_stay(graph, where)
    return Layout(kinds, where)


def _links_stay(graph: Graph, where: Mapping[Instance, str]) -> None:
    """Linked nodes share a site: calls between sites are not there yet."""
    for group in linked_groups(graph):
        homes = {where[name, 0] for name in group}
        if len(homes) > 1:
            names = ", ".join(sorted(group))
            raise UsageError(
                f"placement: {names} are linked and put on different sites; put them on one"
            )
