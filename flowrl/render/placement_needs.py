"""What the nodes of a placement need: site by site, of all hosts together, and what this machine does not have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flowrl.core.wording import count_text
from flowrl.graph.host_assignment import has_enough, needs_lines
from flowrl.graph.model import Graph
from flowrl.graph.placement import Placement
from flowrl.graph.places import Needs
from flowrl.graph.site_shares import SiteShare, shares_by_site
from flowrl.machine.resources import NO_RESOURCES, MachineResources, machine_resources


@dataclass(frozen=True, slots=True)
class SiteNeeds:
    """What the replicas of one site need together."""

    site: str
    shares: tuple[SiteShare, ...]

    @property
    def total(self) -> Needs:
        return sum((share.needs for share in self.shares), Needs())

    @property
    def spread(self) -> bool:
        return any(share.spread for share in self.shares)

    @property
    def least_hosts(self) -> int:
        """The least number of hosts that can take it."""
        if self.shares[0].is_local:
            return 0
        return sum(share.spread for share in self.shares) or 1

    @property
    def text(self) -> str:
        """`4 replicas, each 2 cores and on another host: 8 cores, 4 hosts`."""
        count, total = len(self.shares), str(self.total)
        if count == 1:
            return total or "a host"
        kinds = dict.fromkeys(str(share.needs) for share in self.shares if str(share.needs))
        each = [
            ", ".join(kinds) if len(kinds) == 1 else "",
            "on another host" if self.spread else "",
        ]
        hosts = count_text(self.least_hosts, "host") if self.spread else ""
        in_all = ", ".join(filter(None, (total, hosts)))
        words = " and ".join(filter(None, each))
        return f"{count} replicas, {f'each {words}' if words else 'together'}: {in_all}"

    def as_dict(self) -> dict[str, Any]:
        total = self.total
        return {
            "replicas": len(self.shares),
            "cores": total.cores,
            "memory_bytes": total.memory_bytes,
            "gpus": total.gpus,
            "hosts": self.least_hosts,
        }


@dataclass(frozen=True, slots=True)
class PlacementNeeds:
    """The needs of a placement, and what of the hosts' part would not fit on a machine like this one."""

    rows: tuple[SiteNeeds, ...] = ()
    here: MachineResources = NO_RESOURCES

    def lines(self) -> list[str]:
        """The lines of `flowrl check --placement`."""
        width = max(len(row.site) for row in self.rows)
        lines = [f"  {row.site:<{width}}  {row.text}" for row in self.rows]
        if (total := self._on_hosts) != Needs():
            least = max(row.least_hosts for row in self.rows)
            hosts = count_text(least, "host")
            lines.append(f"  In all, the hosts need {total}; at least {hosts}.")
        if lacking := self.lacking():
            lines.append(
                f"  A host like this machine ({self.here}) has too little: {'; '.join(lacking)}."
            )
        return lines

    @property
    def _on_hosts(self) -> Needs:
        return sum((share.needs for share in self._remote()), Needs())

    def _remote(self) -> Iterable[SiteShare]:
        return (share for row in self.rows for share in row.shares if not share.is_local)

    def lacking(self) -> list[str]:
        """The needs of single nodes on hosts that this machine could not meet."""
        return needs_lines(s for s in self._remote() if not has_enough(self.here, s.needs))

    def as_dict(self) -> dict[str, Any]:
        return {
            "sites": {row.site: row.as_dict() for row in self.rows},
            "not_like_here": self.lacking(),
        }


def placement_needs(graph: Graph, placement: Placement) -> PlacementNeeds:
    """Collect the needs of a placement. This machine is looked at only if there are some."""
    rows = tuple(
        SiteNeeds(site, tuple(shares))
        for site, shares in shares_by_site(graph, placement).items()
        if any(share.needs != Needs() or share.spread for share in shares)
    )
    return PlacementNeeds(rows, machine_resources()) if rows else PlacementNeeds()
