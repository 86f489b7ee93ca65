"""The sites of a placement, before it is known which hosts they are on: what is put on each, replica by replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flowrl.core.errors import UsageError
from flowrl.graph.keywords import ANY_HOST
from flowrl.graph.model import Graph, NodeSpec, link_edges, linked_groups
from flowrl.graph.placement import InstanceId, Placement
from flowrl.graph.places import LOCAL_PLACES, MAIN, Needs, Place

SiteKey = (
    str  # a place and the name of the site, such as `process:collector` and `cpu-*:all`; or `main`
)


@dataclass(frozen=True, slots=True)
class SiteShare:
    """The instances of a site with one replica number. They go to one machine together, and their needs add up."""

    site: SiteKey
    replica: int
    instances: tuple[InstanceId, ...]
    asking: tuple[InstanceId, ...]  # those that have needs; the first one if none has
    needs: Needs
    spread: bool
    has_own_site: bool  # whether no other replica shares its site
    may_be_absent: bool = False  # whether the run may begin without it

    @property
    def machine(self) -> str:
        """The hosts, or the local place, without the name of the site."""
        return self.site.partition(":")[0]

    @property
    def is_local(self) -> bool:
        return self.machine in LOCAL_PLACES


def without_hosts(placement: Placement) -> Placement:
    """The placement in a run that no host joins: what any host may do, a process of this machine does."""
    return {
        instance: replace(place, word=f"process{place.word.removeprefix(ANY_HOST)}")
        if place.machine == ANY_HOST
        else place
        for instance, place in placement.items()
    }


def host_places(graph: Graph, placement: Placement) -> list[str]:
    """The places of a placement that are hosts, without the names of shared sites."""
    placed = _places(graph, placement).values()
    return sorted({place.machine for place in placed if not place.is_local})


def nodes_on_hosts(graph: Graph, placement: Placement) -> frozenset[str]:
    """The nodes of which a replica may be on another machine."""
    placed = _places(graph, placement)
    return frozenset(node for (node, _), place in placed.items() if not place.is_local)


def shares_by_site(graph: Graph, placement: Placement) -> dict[SiteKey, list[SiteShare]]:
    """What is put on each site, in the order of the graph. The main site comes first, if it is used."""
    placed, heads = _places(graph, placement), _group_heads(graph)
    members: dict[SiteKey, dict[int, list[InstanceId]]] = {}
    if any(place.word == MAIN for place in placed.values()):
        members[MAIN] = {}
    for instance in _instances(graph):
        key = _site_key(placed[instance].word, heads[instance[0]])
        members.setdefault(key, {}).setdefault(instance[1], []).append(instance)
    return {
        key: [_share(graph, key, replica, found, placed) for replica in sorted(found)]
        for key, found in members.items()
    }


def placed_shares(graph: Graph, placement: Placement) -> list[SiteShare]:
    """What is put on all sites, see `shares_by_site`."""
    return [share for shares in shares_by_site(graph, placement).values() for share in shares]


def _share(
    graph: Graph,
    key: SiteKey,
    replica: int,
    members: Mapping[int, list[InstanceId]],
    placed: Placement,
) -> SiteShare:
    instances = members[replica]
    places = [placed[instance] for instance in instances]
    label = key.partition(":")[2]
    # A site that is named after one of its nodes was given no name of its own, so it is not shared.
    has_own_site = any(node == label for found in members.values() for node, _ in found)
    head = next((i for i in instances if i[0] == label), instances[0])
    asking = tuple(i for i in instances if placed[i].asks) or (head,)
    needs = sum((place.needs for place in places), Needs())
    spread = any(place.spread for place in places)
    is_local = places[0].is_local
    later = [
        spec for node, _ in instances for spec in [graph.nodes[node]] if spec.may_be_absent(replica)
    ]
    if later and not is_local:
        spec = next((spec for spec in later if spec.fires), later[0])
        _require_plain_place(spec, key, needs, has_own_site)
    return SiteShare(
        key,
        replica,
        tuple(instances),
        asking,
        needs,
        spread,
        has_own_site,
        bool(later) and not is_local,
    )


def _require_plain_place(spec: NodeSpec, key: SiteKey, needs: Needs, has_own_site: bool) -> None:
    """Refuse what a place cannot promise to a replica whose host joins later."""
    what = f"placement: {spec.name} has {spec.written_replicas} replicas, and"
    if not has_own_site:
        raise UsageError(
            f"{what} each one that joins needs a site of its own; write '{key.partition(':')[0]}'"
        )
    if needs != Needs():
        raise UsageError(
            f"{what} what a host that joins later has is not known; leave out its needs ({needs}), and let only hosts "
            "join that have them, or write one number of replicas"
        )


def _instances(graph: Graph) -> Iterator[InstanceId]:
    for name, spec in graph.nodes.items():
        for replica in range(spec.replicas):
            yield name, replica


def _places(graph: Graph, placement: Placement) -> dict[InstanceId, Place]:
    """The place of every instance. Only a node that the placement names has needs of its own."""
    found: dict[InstanceId, Place] = {}
    heads = _group_heads(graph)
    for group in linked_groups(graph):
        names = [n for n in graph.nodes if n in group]
        order = [heads[names[0]], *names]
        for name in names:
            for replica in range(graph.nodes[name].replicas):
                leaders = [placement[n, replica] for n in order if (n, replica) in placement]
                leader = Place(leaders[0].word) if leaders else Place(MAIN)
                found[name, replica] = placement.get((name, replica), leader)
    return found


def _group_heads(graph: Graph) -> dict[str, str]:
    """The node after which the site of each node is named: the first of its linked group that serves no other."""
    serving = {e.source.node for e in link_edges(graph)}
    return {
        name: min((n for n in group if n not in serving), default=min(group))
        for group in linked_groups(graph)
        for name in group
    }


def _site_key(word: str, head: str) -> SiteKey:
    return word if word == MAIN or ":" in word else f"{word}:{head}"
