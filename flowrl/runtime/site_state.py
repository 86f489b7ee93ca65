"""The state of a site: its position in the serial program, and its waits.

A site is one thread. Only that thread writes the state. Other threads may read it at any time, without a lock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from flowrl.channels import Receiver, Sender

if TYPE_CHECKING:
    from flowrl.runtime.firing_sequence import ScheduleStep

# Positions compare as the serial program orders them. A firing's position is
#     (round, index, replica, firing)
# where `round` counts whole rounds from the start of the warm-up, `index` is the node's index in the order of its
# schedule, and `firing` counts the instance's firings from the start of the run. A firing in a paced schedule has the
# position of the firing that paces it, the schedule's number from 1, and its own three numbers:
#     (round, index, 0, firing, 1 + number, index, replica, firing)
# (The number 0 stands for the versions that the site sends after that firing.) The prefix of a position is the position
# without its last three numbers.
Position = tuple[int, ...]

# waiting: for an input, or for the reply of a service   blocked: an output is full
# serving: answering a call of another site   idle: waiting for a lease   stopped: the run is over
WaitKind = Literal["waiting", "blocked", "serving", "idle", "stopped"]


class Wait:
    """One reason to wait, such as one end of an edge, with the time and the number of an instance's waits for it."""

    __slots__ = ("channel", "count", "edge", "instance", "kind", "peer", "waited_s")

    def __init__(
        self,
        kind: WaitKind,
        instance: str = "",
        edge: str = "",
        peer: str = "",
        channel: Sender | Receiver | None = None,
    ) -> None:
        self.kind: WaitKind = kind
        self.instance, self.edge, self.peer, self.channel = instance, edge, peer, channel
        self.waited_s, self.count = 0.0, 0


class ServiceCalls:
    """The calls of a service by one client of the same site, since the first firing."""

    __slots__ = ("began_s", "busy_s", "count")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count, self.busy_s = 0, 0.0
        self.began_s = 0.0  # of the current call; 0: there is none


class SiteState:
    """The position of a site in the program, the end of its last firing, its waits, and its services."""

    __slots__ = (
        "current_step",
        "last_fired_s",
        "phase",
        "position_prefix",
        "restarts",
        "round",
        "rounds",
        "service_calls",
        "waiting",
        "waits",
    )

    def __init__(self) -> None:
        self.phase = ""  # "warm-up 1, ", or empty
        self.round = 0  # within the phase; for error messages
        self.rounds = 0  # completed rounds, those of the warm-up included
        self.position_prefix: Position = (0,)
        self.current_step: ScheduleStep | None = None  # of the innermost schedule
        self.restarts = 0  # how often the site was lost and started again while the others went on
        self.last_fired_s = time.perf_counter()  # the time of the next firing counts from here
        self.waits: list[Wait] = []
        self.service_calls: dict[tuple[str, str], ServiceCalls] = {}  # by service and client
        self.waiting: tuple[Wait, float] | None = None  # the current wait and its start

    @property
    def position(self) -> Position:
        """The position of the current firing, or of the next one; between two rounds, that of the earlier round."""
        step, prefix = self.current_step, self.position_prefix
        if step is None:
            return prefix
        return (*prefix, step.order_index, step.replica, step.instance.fired)
