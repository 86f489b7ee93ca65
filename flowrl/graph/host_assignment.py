"""Which host takes which share of the sites, so that every node has what it needs.

The assignment depends on what the hosts offer, and not on the order in which they have joined. No host is given more
than it has. What the fewest hosts can take is assigned first, then what needs most, then in the order of the graph.
Among the hosts that could take a share, replicas are dealt in turn; where one has no room left, the next one follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from flowrl.core.context import instance_key
from flowrl.core.errors import UsageError
from flowrl.core.wording import count_text, list_text
from flowrl.graph.host_offers import HostOffer, matching_hosts
from flowrl.graph.keywords import ANY_HOST
from flowrl.graph.places import Needs
from flowrl.graph.site_shares import SiteKey, SiteShare
from flowrl.machine.resources import MachineResources

ShareId = tuple[SiteKey, int]  # the site, and the number of the replica


@dataclass(slots=True)
class Room:
    """What a machine has left for other shares."""

    offer: HostOffer
    left: MachineResources
    sites: set[SiteKey] = field(default_factory=set)  # that have a share here

    @property
    def name(self) -> str:
        return self.offer.name

    def could_take(self, needs: Needs) -> bool:
        """Whether the machine has enough as long as nothing is put there."""
        return has_enough(self.offer.resources, needs)

    def can_take(self, share: SiteShare) -> bool:
        is_alone = share.spread or share.may_be_absent
        return has_enough(self.left, share.needs) and not (is_alone and share.site in self.sites)

    def take(self, share: SiteShare) -> tuple[str, ...]:
        """Reserve what a share needs, and return its GPUs."""
        needs, left = share.needs, self.left
        self.sites.add(share.site)
        self.left = MachineResources(
            left.cores - needs.cores,
            left.memory_bytes - needs.memory_bytes,
            left.gpus[needs.gpus :],
        )
        return left.gpus[: needs.gpus]

    def __str__(self) -> str:
        """`gpu-1 (8 cores, 32.0 GB, 1 GPU; left: 4 cores, 32.0 GB, no GPU)`."""
        if self.left == self.offer.resources:
            return str(self.offer)
        return f"{self.name} ({self.offer.resources}; left: {self.left})"


@dataclass(slots=True)
class HostAssignment:
    """The host and the GPUs of each share, and the shares for which no host has room. Some of these may be absent."""

    rooms: list[Room]
    hosts: dict[ShareId, str] = field(default_factory=dict)
    gpus: dict[ShareId, tuple[str, ...]] = field(default_factory=dict)
    unmet: list[SiteShare] = field(default_factory=list)
    absent: set[ShareId] = field(default_factory=set)

    def unmet_text(self) -> str:
        """What is missing, and what the hosts have; empty if nothing is missing."""
        if not self.unmet:
            return ""
        return f"{'; '.join(needs_lines(self.unmet))}; hosts: {list_text(self.rooms)}"


def assign_hosts(shares: Iterable[SiteShare], offers: Sequence[HostOffer]) -> HostAssignment:
    """Assign a host to each share that is not put on the machine of the run.

    Shares that may be absent come last, each on a host without another replica of the same site.
    """
    ordered = [Room(offer, offer.resources) for offer in matching_hosts(ANY_HOST, offers)]
    remote = [share for share in shares if not share.is_local]
    machines = dict.fromkeys(share.machine for share in remote)
    matching = {m: [r for r in ordered if r.offer.matches(m)] for m in machines}
    kinds = dict.fromkeys((share.machine, share.needs) for share in remote)
    able = {(m, needs): [r for r in matching[m] if r.could_take(needs)] for m, needs in kinds}
    done = HostAssignment(ordered)

    def urgency(share: SiteShare) -> tuple[int, ...]:
        needs = share.needs
        hosts = len(able[share.machine, needs])
        return share.may_be_absent, hosts, -needs.gpus, -needs.cores, -needs.memory_bytes

    for share in sorted(remote, key=urgency):
        rooms = able[share.machine, share.needs]
        begin = share.replica % len(rooms) if rooms else 0
        in_turn = [*rooms[begin:], *rooms[:begin]]
        room = next((room for room in in_turn if room.can_take(share)), None)
        identity = share.site, share.replica
        if room is None and share.may_be_absent:
            done.absent.add(identity)
            continue
        if room is None:
            done.unmet.append(share)
            continue
        done.gpus[identity] = room.take(share)
        done.hosts[identity] = room.name
    return done


def assign_local_gpus(
    shares: Iterable[SiteShare], here: MachineResources
) -> dict[ShareId, tuple[str, ...]]:
    """Give the GPUs of this machine to the sites on it. Too few GPUs or too little memory is an error.

    Too few cores is none, because a run on them is only slower (`local_warnings`).
    """
    local = [share for share in shares if share.is_local and share.needs != Needs()]
    if not has_enough(here, replace(sum((share.needs for share in local), Needs()), cores=0)):
        asking = [share for share in local if share.needs.gpus or share.needs.memory_bytes]
        raise UsageError(
            f"placement: {'; '.join(needs_lines(asking))}; this machine has {here}; "
            "name hosts that have more (docs/hosts.md), or ask for less"
        )
    found, left = {}, here.gpus
    for share in local:
        found[share.site, share.replica] = left[: share.needs.gpus]
        left = left[share.needs.gpus :]
    return found


def local_warnings(shares: Iterable[SiteShare], here: MachineResources | None) -> Iterator[str]:
    """What the machine of the run cannot give to the sites on it, without which it can run all the same."""
    local = [share for share in shares if share.is_local]
    cores = sum(share.needs.cores for share in local)
    if here is not None and cores > here.cores:
        yield (
            f"placement: the nodes on this machine need {count_text(cores, 'core')}, and it has {here.cores}; "
            "the run will be slower"
        )
    for line in needs_lines(share for share in local if share.spread):
        yield f"placement: {line}; without hosts, all are on this machine"


def needs_lines(shares: Iterable[SiteShare]) -> list[str]:
    """What shares need, in a line for all replicas that need the same: `learner needs 1 GPU`."""
    groups: dict[tuple[str, SiteKey, Needs, bool], list[SiteShare]] = {}
    for share in shares:
        nodes = ", ".join(dict.fromkeys(node for node, _ in share.asking))
        groups.setdefault((nodes, share.site, share.needs, share.spread), []).append(share)
    return [
        f"{_subject(nodes, found)} {_wants(found[0], len(found))}"
        for (nodes, *_), found in groups.items()
    ]


def _subject(nodes: str, shares: Sequence[SiteShare]) -> str:
    if len(shares) > 1:
        return f"{len(shares)} replicas of {nodes}"
    share = shares[0]
    return ", ".join(instance_key(*instance) for instance in share.asking)


def _wants(share: SiteShare, count: int) -> str:
    """What each of `count` such shares needs."""
    what = str(share.needs) or "a host"
    if count > 1 and share.needs != Needs():
        what += " each"
    if share.spread:
        what += ", each on another host" if count > 1 else " on a host without another replica"
    where = "" if share.is_local or share.machine == ANY_HOST else f" at '{share.machine}'"
    return f"{'need' if count > 1 else 'needs'} {what}{where}"


def has_enough(resources: MachineResources, needs: Needs) -> bool:
    """Whether a machine with these resources can meet the needs."""
    return (
        needs.cores <= resources.cores
        and needs.memory_bytes <= resources.memory_bytes
        and needs.gpus <= len(resources.gpus)
    )
