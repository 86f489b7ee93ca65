"""Starting sites, talking with them, and ending them, whatever state they are in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flowrl.channels import Exchange, Mailbox, Sender, Threads
from flowrl.channels.folder import SocketFolder
from flowrl.checks.check import Checked
from flowrl.errors import FlowError, NodeError
from flowrl.sites.layout import COORDINATOR, Layout
from flowrl.sites.processes import Processes, loads_of
from flowrl.sites.site import CONTROL, SiteWalk, run_site
from flowrl.sites.words import DOWN, FAILED, UP, RemoteTraceback, raised_there
from flowrl.tools.expand import expand

PUMP_S = 0.02
FIRST_CAUSE_S = 1.0  # to hear of a better reason than that a peer is gone
LEAVE_S = 3.0


class SiteLost(FlowError):
    """A site ended without a word, or lost another."""


class Sites:
    """The sites of a run, as the coordinator sees them."""

    def __init__(self, checked: Checked, layout: Layout, seed: int) -> None:
        self.checked, self.layout, self.seed = checked, layout, seed
        self.names = [name for name in layout.kinds if layout.living(name)]
        self._run = os.urandom(16)
        self._processes = Processes()
        self._threads: dict[str, threading.Thread] = {}
        self._folder = SocketFolder() if "process" in layout.kinds.values() else None
        names = (COORDINATOR, *self.names) if self._folder else ()
        self._addresses = {n: self._folder.address(n) for n in names if self._folder}
        threads: Threads = {}
        self._boxes = {n: self._box(n, threads) for n in (COORDINATOR, *self._kind("thread"))}
        self._exchange = Exchange(self._boxes[COORDINATOR], self.dead)
        self._down: dict[str, Sender] = {}
        self.walks: dict[str, SiteWalk] = {}  # of the sites in this process
        self._closed = False

    def _kind(self, kind: str) -> list[str]:
        return [name for name in self.names if self.layout.kinds[name] == kind]

    def _box(self, name: str, threads: Threads) -> Mailbox:
        box = Mailbox(name, self._run, threads)
        if name in self._addresses:
            box.listen(self._addresses[name])
        return box

    # starting

    def start(self) -> None:
        """Start all; they are at work when they say so."""
        for name, box in self._boxes.items():
            for peer in self.names if name == COORDINATOR else self._peers(name):
                box.meet(peer, self._address(peer))
        exchange = self._exchange
        self._up = {n: exchange.receiver(f"{UP}:{n}", n, bound=CONTROL) for n in self.names}
        self._last = {n: exchange.receiver(f"{FAILED}:{n}", n, bound=CONTROL) for n in self.names}
        self._down = {n: exchange.sender(f"{DOWN}:{n}", n, bound=CONTROL) for n in self.names}
        if self._folder is not None:
            self._start_processes()
        for name in self._kind("thread"):
            self._start_thread(name)

    def _address(self, name: str) -> str:
        return self._boxes[name].address if name in self._boxes else self._addresses[name]

    def _peers(self, name: str) -> list[str]:
        """The coordinator, and the sites that a site shares an edge with."""
        homes: dict[str, set[str]] = {}
        for (node, _), site in self.layout.where.items():
            homes.setdefault(node, set()).add(site)
        found = {COORDINATOR}
        for edge in self.checked.graph.edges:
            for source in edge.sources:
                starts, ends = homes[source.node], homes[edge.to.node]
                if name in starts:
                    found |= ends
                if name in ends:
                    found |= starts
        return sorted(found - {name})

    def _start_thread(self, name: str) -> None:
        work = (self.checked, self.layout, name, Exchange(self._boxes[name]), self.seed)
        made = partial(self.walks.__setitem__, name)
        thread = threading.Thread(target=run_site, args=(*work, made), name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def _start_processes(self) -> None:
        told = {
            "run": self._run.hex(),
            "addresses": self._addresses,
            "kinds": dict(self.layout.kinds),
            "where": [[node, r, site] for (node, r), site in self.layout.where.items()],
            "graph": expand(self.checked.graph),
            "title": self.checked.graph.name,
            "seed": self.seed,
        }
        names = self._kind("process")
        sites = {name: {"peers": self._peers(name)} for name in names}
        loads = {name: loads_of(self.checked, self.layout, name) for name in names}
        self._processes.start(told, sites, loads)

    # talking

    def say(self, *words: Any) -> None:
        """Tell all sites something."""
        for name in self.names:
            self._down[name].send(list(words))
        self._exchange.flush()

    def on_aside(self, hear: Callable[[str, str], None]) -> None:
        """Call this with what is told of a site while it is busy."""
        self._exchange.on_aside = hear

    def heard(self) -> list[tuple[str, list[Any]]]:
        """What sites have said meanwhile; raises what ended one of them."""
        self._exchange.pump(PUMP_S)
        said = []
        for name in self.names:
            while len(self._up[name]):
                said.append((name, self._up[name].take()[0]))
        if any(map(len, self._last.values())) or any(map(self.dead, self.names)):
            raise self._first_cause()
        return said

    def dead(self, name: str) -> str | None:
        """Why a site is dead, or None."""
        thread = self._threads.get(name)
        if thread is not None:
            return None if thread.is_alive() else "its thread has ended"
        return self._processes.why_ended(name)

    def _first_cause(self) -> FlowError:
        """What a node raised comes before a killed process, and that before what either did to others."""
        failures: dict[str, tuple[str, FlowError]] = {}  # by site: what kind, and what
        deadline = time.monotonic() + FIRST_CAUSE_S
        while time.monotonic() < deadline and not any(k == "node" for k, _ in failures.values()):
            self._exchange.pump(PUMP_S)
            for name, lane in self._last.items():
                while len(lane):
                    words = lane.take()[0]
                    failures.setdefault(name, (words[0], _failure(name, words)))
        found = dict(reversed(list(failures.values())))
        dead = {n: why for n in self.names if (why := self.dead(n)) is not None}
        silent = [name for name in dead if name not in failures]
        if "node" not in found and silent:
            return SiteLost(f"site '{silent[0]}' has ended: {dead[silent[0]]}")
        return next(found[kind] for kind in ("node", "site", "lost") if kind in found)

    # ending

    def close(self) -> None:
        """End all, in bounded time."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + LEAVE_S
        for name in self._down:
            if self.dead(name) is None and self._down[name].ready():
                self._down[name].send(["leave"])
        self._exchange.flush()
        self._processes.end(deadline)
        for thread in self._threads.values():
            thread.join(max(deadline - time.monotonic(), 0.1))
        self._exchange.close()
        if self._folder is not None:
            self._folder.close()


def _failure(name: str, words: list[Any]) -> FlowError:
    """What a site said when it failed."""
    kind, *told = words
    if kind == "node":
        error = raised_there(name, told)
        assert isinstance(error, NodeError)
        return error
    what, text = told
    lost = SiteLost(f"site '{name}': {what}")
    lost.__cause__ = RemoteTraceback(f"on site '{name}'\n{text}")
    return lost
