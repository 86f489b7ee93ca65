"""The state of a site: its position in the serial program, and what it waits for.

A site is one thread. Its state is written by that thread alone; others may read it at any time, without a lock.
"""

from __future__ import annotations

import time
from typing import Literal

from flowrl.channels import Receiver, Sender

# Positions compare as the serial program orders them. A firing's position is
#     (round, index, replica, firing)
# where `round` counts whole rounds from the start of the warm-up, `index` is the node's place in the order of its
# schedule, and `firing` counts the instance's firings from the start of the run. A paced schedule adds to the position
# of the firing that paces it the schedule's number, from 1 (0: what the site sends for that firing):
#     (round, index, 0, firing, 1 + number, index, replica, firing)
# All but the last three numbers are the prefix of a position: what is before the schedule's own firings.
Position = tuple[int, ...]

# waiting: for an input, or for the answer of a service   blocked: an output is full
# serving: answering the call of a client on another site   idle: for a lease   stopped: the run is over
WaitKind = Literal["waiting", "blocked", "serving", "idle", "stopped"]


class Wait:
    """One reason to wait, such as one end of an edge: how long and how often an instance waited for it."""

    __slots__ = ("channel", "edge", "kind", "peer", "s", "times", "who")

    def __init__(
        self,
        kind: WaitKind,
        who: str = "",
        edge: str = "",
        peer: str = "",
        channel: Sender | Receiver | None = None,
    ) -> None:
        self.kind: WaitKind = kind
        self.who, self.edge, self.peer, self.channel = who, edge, peer, channel
        self.s, self.times = 0.0, 0


class SiteState:
    """Where in the program a site is, and when its last firing ended."""

    __slots__ = ("last_fired_s", "phase", "position_prefix", "round", "rounds", "waiting", "waits")

    def __init__(self) -> None:
        self.phase = ""  # "warm-up 1, ", or empty
        self.round = 0  # within the phase; for error messages
        self.rounds = 0  # completed rounds, those of the warm-up included
        self.position_prefix: Position = (0,)
        self.last_fired_s = time.perf_counter()  # the next firing's time starts here
        self.waits: list[Wait] = []
        self.waiting: tuple[Wait, float] | None = None  # the wait that goes on, and its start
