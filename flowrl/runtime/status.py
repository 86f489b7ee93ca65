"""The status of a run: one tree of records, from a run over its sites to their nodes and edges.

A site reads its own `SiteStatus` (`status_reader`), sends it to the coordinator, and the run puts all of them
together into a `RunStatus`, which it gives to whoever asks (`flowrl top`, `why` and `ps`). `SITE_STATUS` and
`RUN_STATUS` convert them to plain data and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flowrl.core.plain_data import DataCodec

# waiting: for an input or the answer to a call; blocked: on an output; serving: answering a call of another
# site; idle: for a lease; stopped: at the cut
ActivityKind = Literal["starting", "firing", "waiting", "blocked", "serving", "idle", "stopped"]


@dataclass(frozen=True, slots=True)
class Activity:
    """What a site does."""

    kind: ActivityKind
    for_s: float = 0.0
    instance: str = ""  # that fires or waits; several, if any of them may fire: `a, b`
    edge: str = ""  # that it waits for
    peer: str = ""  # the site at the other end of that edge


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What an instance has done, and where its time went."""

    instance: str
    site: str
    fired: int  # of a service that other sites call: calls that it has answered
    busy_s: float  # in firings, without the waits
    waiting_s: Mapping[str, float] = field(default_factory=dict)  # for inputs, by edge
    blocked_s: Mapping[str, float] = field(default_factory=dict)  # on outputs, by edge
    train_iters: int | None = None  # in the causal past of what it holds


@dataclass(frozen=True, slots=True)
class EdgeEndStats:
    """What one site knows of an edge between two instances. The site of a local edge knows all but the bytes."""

    edge: str
    sent: int | None
    taken: int | None
    bytes: int | None  # that were sent
    held: int  # tokens that are sent or received, and not taken
    bound: int | None  # how many it may hold


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """What a site does, and what it has done."""

    site: str
    activity: Activity
    rounds: int = 0  # whole rounds, those of the warm-up included
    idle_s: float = 0.0  # waiting for a lease
    nodes: tuple[NodeStats, ...] = ()
    edge_ends: tuple[EdgeEndStats, ...] = ()
    kind: str = "thread"
    age_s: float = 0.0  # how long ago this was read

    @property
    def fired(self) -> int:
        """All firings of the site: of two statuses, the newer one has more."""
        return sum(node.fired for node in self.nodes)


@dataclass(frozen=True, slots=True)
class EdgeStats:
    """An edge between two instances, by what the sites at both ends know of it."""

    edge: str
    kind: str
    producer: str
    consumer: str
    producer_site: str
    consumer_site: str
    sent: int | None
    taken: int | None
    bytes: int | None
    held: int | None
    bound: int | None
    iters_behind: int | None  # train iterations between the learners and the data on the edge


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What a run does, and how far it is."""

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

    @property
    def nodes(self) -> list[NodeStats]:
        return [node for site in self.sites for node in site.nodes]


SITE_STATUS: DataCodec[SiteStatus] = DataCodec(SiteStatus)
RUN_STATUS: DataCodec[RunStatus] = DataCodec(RunStatus)
