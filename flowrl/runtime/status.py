"""The status of a run: one tree of records, from a run over its sites to their nodes and edges.

A site reads its own `SiteStatus` (`status_reader`) and sends it to the coordinator. The run joins them into a
`RunStatus`, which `flowrl top`, `why` and `ps` request. `SITE_STATUS` and `RUN_STATUS` convert them to plain data and
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flowrl.core.plain_data import DataCodec

# waiting: for an input or the reply to a call; blocked: on an output; serving: answering a call of another
# site; idle: waiting for a lease; stopped: at the cut
ActivityKind = Literal["starting", "firing", "waiting", "blocked", "serving", "idle", "stopped"]


@dataclass(frozen=True, slots=True)
class Activity:
    """The current activity of a site."""

    kind: ActivityKind
    for_s: float = 0.0
    instance: str = ""  # the instance that fires or waits; `a, b` if either may fire next
    edge: str = ""  # the edge for which it waits
    peer: str = ""  # the site at the other end of that edge
    service: str = ""  # of the same site, which answers a call of the instance that fires


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The firings of an instance, and its times of firing and waiting."""

    instance: str
    site: str
    fired: int  # firings; of a service: answered calls
    busy_s: float  # in firings, without waits and calls of services; of a service: in calls, without waits
    waiting_s: Mapping[str, float] = field(default_factory=dict)  # for inputs, by edge
    blocked_s: Mapping[str, float] = field(default_factory=dict)  # on outputs, by edge
    train_iters: int | None = None  # in the causal past of its state
    is_service: bool = False
    parts_s: Mapping[str, float] = field(default_factory=dict)  # of busy_s, by part: its policy


@dataclass(frozen=True, slots=True)
class EdgeEndStats:
    """The facts that one site has about an edge between two instances. For a local edge only the bytes are unknown."""

    edge: str
    sent: int | None
    taken: int | None
    bytes: int | None  # of the tokens sent
    wire_bytes: int | None  # sent between machines, if the edge has `compress` or `dtype`
    held: int  # tokens that were sent or received, and not taken
    bound: int | None  # the most tokens that the edge may hold


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """The activity and the statistics of a site."""

    site: str
    activity: Activity
    rounds: int = 0  # whole rounds, those of the warm-up included
    idle_s: float = 0.0  # waiting for a lease
    nodes: tuple[NodeStats, ...] = ()
    edge_ends: tuple[EdgeEndStats, ...] = ()
    kind: str = "thread"
    age_s: float = 0.0  # since the status was read

    @property
    def fired(self) -> int:
        """All firings of the site. The newer one of two statuses has more."""
        return sum(node.fired for node in self.nodes)


@dataclass(frozen=True, slots=True)
class EdgeStats:
    """An edge between two instances, joined from the `EdgeEndStats` of both ends."""

    edge: str
    kind: str
    producer: str
    consumer: str
    producer_site: str
    consumer_site: str
    sent: int | None
    taken: int | None
    bytes: int | None
    wire_bytes: int | None  # sent between machines, if the edge has `compress` or `dtype`
    held: int | None
    bound: int | None
    iters_behind: int | None  # train iterations between the learners and the data on the edge


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host that has joined a run."""

    name: str
    labels: tuple[str, ...]
    address: str
    cores: int
    memory_bytes: int
    gpus: int
    cpu: str
    sites: tuple[str, ...]  # of the run, that it executes
    silent_s: float  # since it was heard of
    why_lost: str = ""  # empty while it is there


@dataclass(frozen=True, slots=True)
class LauncherStatus:
    """What starts some hosts of a run, as it says of itself."""

    label: str
    waiting: str  # why hosts cannot have joined yet
    failure: str  # why no host will come any more
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status and the progress of a run."""

    graph: str
    placement: str
    seed: int
    run_dir: str
    pid: int
    status: str  # starting, running, stopping, or how it ended
    wall_s: float
    firing_s: float
    env_steps: int
    train_iters: int
    episodes: int
    eval_return: float | None
    best_return: float | None
    sites: tuple[SiteStatus, ...]
    edges: tuple[EdgeStats, ...]
    hosts: tuple[HostStatus, ...] = ()
    launchers: tuple[LauncherStatus, ...] = ()
    waits_for: str = ""  # what a run without sites waits for, in words, such as hosts

    @property
    def nodes(self) -> list[NodeStats]:
        return [node for site in self.sites for node in site.nodes]


def in_graph_order(nodes: Iterable[NodeStats], names: Iterable[str]) -> list[NodeStats]:
    """Sort instances by the place of their nodes among `names`."""
    index = {name: number for number, name in enumerate(names)}
    return sorted(nodes, key=lambda node: index[node.instance.partition("#")[0]])


SITE_STATUS: DataCodec[SiteStatus] = DataCodec(SiteStatus)
RUN_STATUS: DataCodec[RunStatus] = DataCodec(RunStatus)
