"""The coordinator: starts sites, grants rounds, collects what nodes tell, cuts, and ends everything.

It sees no token. What sites tell is put back into the order of the program, and told to the run once no site can
tell anything before it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from flowrl.channels import Exchange, Mailbox, Receiver, Sender, Threads
from flowrl.channels.folder import SocketFolder
from flowrl.checks.check import Checked
from flowrl.context import Verdict
from flowrl.engine.engine import Account, Cut, Reason, Sink, digest_of
from flowrl.errors import FlowError, NodeError, UsageError
from flowrl.graph import Limits
from flowrl.sites.layout import COORDINATOR, Layout
from flowrl.sites.site import CONTROL, firings_before, run_site
from flowrl.sites.words import DOWN, UP, Told, as_told
from flowrl.state import Count, State
from flowrl.tools.expand import expand

LEASE_S = 0.5  # of work that sites may be ahead of the slowest
LEAST_LEASE = 8  # rounds
START_S = 120.0  # in which every site must be ready
PUMP_S = 0.02
FIRST_CAUSE_S = 1.0  # to hear of a better reason than that a peer is gone
LEAVE_S = 3.0
Stop = tuple[
    int, int, int
]  # a round (those of the warm-up count), a slot, its node's firings in all


class SiteLost(FlowError):
    """A site ended without a word."""


class RemoteTraceback(Exception):
    """Where an error was raised on another site."""


class Coordinator:
    """Runs a sound graph on several sites; the same to a run as the engine of one."""

    def __init__(
        self, checked: Checked, sink: Sink, layout: Layout, seed: int, limits: Limits
    ) -> None:
        self.checked, self.sink, self.layout = checked.demand(), sink, layout
        self.graph, self.program = checked.graph, checked.program
        self.seed, self.limits = seed, limits
        self.names = [name for name in layout.kinds if layout.living(name)]
        self._warm = sum(warm.rounds for warm in self.program.warmup)
        self._granted = self._final = 0
        self._rounds = dict.fromkeys(self.names, 0)  # whole rounds of each site
        self._did: dict[int, dict[str, Count]] = {
            0: {}
        }  # after so many rounds: what collectors did
        self._told: list[Told] = []
        self._accounts: dict[str, Account] = {}
        self._states: dict[str, State] = {}
        self._happened: list[str] = []
        self._waiting = {
            "ready": set(self.names),
            "stopped": set(self.names),
            "states": set(self.names),
        }
        self._stop: Stop | None = None
        self._reason: tuple[Reason, str] = ("done", "")
        self._verdict: Told | None = None
        self._asked: tuple[Reason, str] | None = None
        self._failures: list[FlowError] = []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._folder: SocketFolder | None = None
        self._static_steps = self._steps_of_a_round()

    # what a run asks

    @property
    def done(self) -> Count:
        """What has been done where the run was cut, or so far."""
        rounds, slot, fired = self._stop if self._ended else (self._final, 0, 0)
        order = self.program.round.order
        did: dict[str, Count] = {}
        for key, count in self._did.get(rounds, {}).items():
            did[key] = count
        for key, count in self._did.get(rounds + 1, {}).items():
            if self._ended and order.index(key.partition("#")[0]) < slot:
                did[key] = count
        return Count(
            sum(c.env_steps for c in did.values()),
            sum(c.episodes for c in did.values()),
            self._iterations(rounds, slot, fired),
        )

    def _iterations(self, rounds: int, slot: int, fired: int) -> int:
        own = self._learner_slot
        if own is None:
            return 0
        if own == slot and self._ended:
            return fired
        return firings_before(self.checked, rounds + (self._ended and own < slot), own)

    @property
    def _ended(self) -> bool:
        return self._stop is not None and not self._waiting["stopped"]

    @property
    def _learner_slot(self) -> int | None:
        names = self.graph.role("learner")
        order = self.program.round.order
        return order.index(names[0]) if names and names[0] in order else None

    def accounts(self) -> list[Account]:
        """Each instance, its firings and its time, in the order of the graph."""
        place = {name: at for at, name in enumerate(self.graph.nodes)}
        return sorted(self._accounts.values(), key=lambda a: place[a.key.partition("#")[0]])

    def weights(self) -> dict[str, State]:
        """The learners' states at the cut, by `learner.port`."""
        return self._states

    def digest(self) -> str:
        """The SHA-256 over the learners' weights, sorted by name."""
        return digest_of(self._states)

    def happened_lines(self) -> list[str]:
        """What made this run differ from a deterministic one, and what would not close."""
        return self._happened

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Cut soon (from another thread, or a signal)."""
        self._asked = (reason, why)

    # a run

    def run(self) -> Cut:
        """Start the sites, and let them work up to the earliest cut."""
        self._start()
        self._until(lambda: not self._waiting["ready"], START_S, "to be ready")
        began = time.perf_counter()
        self._stop_where_limits_say()
        while self._waiting["stopped"]:
            self._grant(time.perf_counter() - began)
            self._pump()
            self._tell(final=self._final)
            self._look_for_cuts(time.perf_counter() - began)
        self._tell(final=None)
        self._say("states")
        self._until(lambda: not self._waiting["states"], START_S, "to give its states")
        assert self._stop is not None
        return Cut(*self._reason, self._stop[0] - self._warm, self.done)

    def close(self) -> None:
        """End every site, in bounded time."""
        deadline = time.monotonic() + LEAVE_S
        if hasattr(self, "_exchange"):
            for name in self.names:
                if self._alive(name) is None and self._down[name].ready():
                    self._down[name].send(["leave"])
            self._exchange.flush()
        for process in self._processes.values():
            _end(process, deadline)
        for thread in self._threads.values():
            thread.join(max(deadline - time.monotonic(), 0.1))
        if hasattr(self, "_exchange"):
            self._exchange.close()
            del self._exchange
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    # starting

    def _start(self) -> None:
        run = os.urandom(16)
        threads: Threads = {}
        mailbox = Mailbox(COORDINATOR, run, threads)
        self._exchange = Exchange(mailbox, self._alive)
        addresses = self._addresses(mailbox)
        here = [n for n in self.names if self.layout.kinds[n] == "thread"]
        boxes = {name: Mailbox(name, run, threads) for name in here}
        for name, box in boxes.items():
            if addresses:
                box.listen(addresses[name])
        for name in self.names:
            if name in boxes:
                mailbox.meet(name, boxes[name].address)
                self._introduce(boxes[name], name, boxes, addresses)
            else:
                mailbox.meet(name, addresses[name])
        self._up: dict[str, Receiver] = {}
        self._down: dict[str, Sender] = {}
        self._last: dict[str, Receiver] = {}
        for name in self.names:
            self._up[name] = self._exchange.receiver(f"{UP}:{name}", name, bound=CONTROL)
            self._last[name] = self._exchange.receiver(f"failed:{name}", name, bound=CONTROL)
            self._down[name] = self._exchange.sender(f"{DOWN}:{name}", name, bound=CONTROL)
        for name in self.names:
            if name in boxes:
                self._start_thread(name, Exchange(boxes[name]))
            else:
                self._start_process(name, run, addresses)

    def _addresses(self, mailbox: Mailbox) -> dict[str, str]:
        """Where sites are reached from other processes, if there are any."""
        if "process" not in self.layout.kinds.values():
            return {}
        self._folder = SocketFolder()
        mailbox.listen(self._folder.address(COORDINATOR))
        return {name: self._folder.address(name) for name in (COORDINATOR, *self.names)}

    def _peers(self, name: str) -> list[str]:
        """The sites that a site shares an edge with."""
        where, found = self.layout.where, dict[str, None]()
        for edge in self.graph.edges:
            ends = {where[n, r] for n, r in where if n == edge.to.node}
            starts = {where[n, r] for n, r in where if n in {s.node for s in edge.sources}}
            for a, b in ((ends, starts), (starts, ends)):
                if name in a:
                    found |= dict.fromkeys(sorted(b))
        return [peer for peer in found if peer != name]

    def _introduce(
        self, box: Mailbox, name: str, boxes: Mapping[str, Mailbox], addresses: Mapping[str, str]
    ) -> None:
        box.meet(COORDINATOR, f"thread:{COORDINATOR}")
        for peer in self._peers(name):
            box.meet(peer, boxes[peer].address if peer in boxes else addresses[peer])

    def _start_thread(self, name: str, exchange: Exchange) -> None:
        work = (self.checked, self.layout, name, exchange, self.seed)
        thread = threading.Thread(target=run_site, args=work, name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def _start_process(self, name: str, run: bytes, addresses: Mapping[str, str]) -> None:
        told = {
            "name": name,
            "run": run.hex(),
            "parent": os.getpid(),
            "addresses": addresses,
            "peers": [COORDINATOR, *self._peers(name)],
            "kinds": dict(self.layout.kinds),
            "where": [[n, r, site] for (n, r), site in self.layout.where.items()],
            "graph": expand(self.graph),
            "title": self.graph.name,
            "seed": self.seed,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "flowrl.sites.child"],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_fileno(sys.stderr) else subprocess.DEVNULL,
        )
        self._processes[name] = process
        assert process.stdin is not None
        process.stdin.write(json.dumps(told).encode())
        process.stdin.close()

    # what sites say

    def _pump(self) -> None:
        self._exchange.pump(PUMP_S)
        for name in self.names:
            while len(self._up[name]):
                word, *values = self._up[name].take()[0]
                getattr(self, f"_on_{word}")(name, *values)
            while len(self._last[name]):
                self._failures.append(_failure(name, self._last[name].take()[0]))
        self._look_for_failures()

    def _on_ready(self, name: str) -> None:
        self._waiting["ready"].discard(name)

    def _on_stopped(self, name: str) -> None:
        self._waiting["stopped"].discard(name)

    def _on_states(self, name: str, states: dict[str, State], happened: list[str]) -> None:
        self._states |= states
        self._happened += happened
        self._waiting["states"].discard(name)

    def _on_progress(
        self, name: str, rounds: int, did: list[Any], told: list[Any], busy: dict[str, Any]
    ) -> None:
        self._rounds[name] = rounds
        for at, counts in did:
            found = self._did.setdefault(at, {})
            found |= {key: Count(*count) for key, count in counts.items()}
        for key, (fired, busy_s) in busy.items():
            self._accounts[key] = Account(key, fired, busy_s)
        for told_one in map(as_told, told):
            self._told.append(told_one)
            if isinstance(told_one.record, Verdict):
                self._on_verdict(told_one)
        self._final = min(self._rounds.values())

    def _on_verdict(self, told: Told) -> None:
        if self._verdict is None or told.position < self._verdict.position:
            rounds, slot, _, firing = told.position[:4]
            if self._cut_at((rounds, slot, firing + 1), ("verdict", str(told.record.reason))):  # type: ignore[union-attr]
                self._verdict = told

    # records, in the order of the program

    def _tell(self, final: int | None) -> None:
        """Tell the run what no site can tell anything before; at the end, all up to the cut."""
        now = [t for t in self._told if final is None or t.position[0] < final]
        if not now:
            return
        self._told = [] if final is None else [t for t in self._told if t.position[0] >= final]
        for told in sorted(now, key=lambda t: t.position):
            if self._before_cut(told.position):
                self.sink.record(told.teller, told.record)
        for rounds in [r for r in self._did if final is not None and r < self._settled - 1]:
            del self._did[rounds]

    def _before_cut(self, position: tuple[int, ...]) -> bool:
        if self._stop is None:
            return True
        if self._verdict is not None and position > self._verdict.position:
            return False
        rounds, slot, fired = self._stop
        if position[:2] != (rounds, slot):
            return position[:2] < (rounds, slot)
        return position[3] < fired

    # cuts

    def _stop_where_limits_say(self) -> None:
        limits, order = self.limits, self.program.round.order
        slot = self._learner_slot
        if limits.train_iters is not None and slot is not None:
            n = limits.train_iters
            before = firings_before(self.checked, self._warm, slot)
            if n <= before:
                raise UsageError(
                    f"{n} train iterations end in the warm-up; use the placement 'serial'"
                )
            rounds = self._warm + (n - before - 1) // self.program.round.firings[order[slot]]
            self._cut_at((rounds, slot, n), ("train_iters", f"{n} train iterations were asked for"))
        if limits.rounds is not None:
            end = (self._warm + limits.rounds - 1, len(order), 0)
            self._cut_at(end, ("rounds", f"{limits.rounds} rounds were asked for"))
        if limits.steps is not None and self._static_steps is not None:
            before, each = self._static_steps
            rounds = max(-(-(limits.steps - before) // each), 1) if each else 1
            end = (self._warm + rounds - 1, len(order), 0)
            self._cut_at(end, ("steps", f"{limits.steps} env steps were asked for"))
        if not order:
            self._cut_at((self._warm, 0, 0), ("done", "no node fires in rounds"))

    def _steps_of_a_round(self) -> tuple[int, int] | None:
        """Env steps of the warm-up, and of a round, where every collector's number is fixed."""
        facts, nodes = self.checked.facts, self.graph.nodes
        found = []
        for part in (*(w.part for w in self.program.warmup), self.program.round):
            steps = 0
            for name in part.order:
                if nodes[name].cls.role == "collector":
                    one = facts[name].env_steps
                    if one is None:
                        return None
                    steps += one * part.firings[name] * nodes[name].replicas
            found.append(steps)
        warm = sum(w.rounds * s for w, s in zip(self.program.warmup, found, strict=False))
        return warm, found[-1]

    def _look_for_cuts(self, firing_s: float) -> None:
        limits = self.limits
        if limits.steps is not None and self._static_steps is None and self._final > self._warm:
            did = self._did.get(self._final, {})
            if sum(count.env_steps for count in did.values()) >= limits.steps:
                end = (self._final - 1, len(self.program.round.order), 0)
                self._cut_at(end, ("steps", f"{limits.steps} env steps were asked for"))
        if limits.time_s is not None and firing_s >= limits.time_s and self._asked is None:
            self._asked = ("time", f"{limits.time_s:g} s were asked for")
        if self._asked is not None:
            self._cut_at(self._soon(), self._asked)
            self._asked = None

    def _soon(self) -> Stop:
        """A position that no site has passed, where `--train-iters` cuts again."""
        rounds, slot = max(self._granted, self._warm), self._learner_slot
        if slot is None:
            return rounds, len(self.program.round.order), 0
        return rounds, slot, firings_before(self.checked, rounds + 1, slot)

    def _cut_at(self, stop: Stop, reason: tuple[Reason, str]) -> bool:
        """Cut there, unless an earlier cut is known; whether it will be there."""
        if (
            self._stop is not None
            and self._stop <= stop
            and not (self._stop == stop and reason[0] == "verdict")
        ):
            return False
        self._stop, self._reason = stop, reason
        self._say("stop", *stop)
        return True

    def _grant(self, firing_s: float) -> None:
        """Let sites go on, about as far as they get while this is noticed."""
        rate = self._final / firing_s if firing_s > 0 else 0.0
        lease = max(LEAST_LEASE, int(rate * LEASE_S))
        if (
            self.limits.steps is not None
            and self._static_steps is None
            and self._final >= self._warm
        ):
            lease = 1  # where the cut falls is known only at each round's end
        granted = self._final + lease
        if granted > self._granted:
            self._granted = granted
            self._say("grant", granted, self._settled)

    @property
    def _settled(self) -> int:
        """Rounds that no cut can go back to."""
        return self._final if self._stop is None else min(self._final, self._stop[0])

    def _say(self, *words: Any) -> None:
        for name in self.names:
            self._down[name].send(list(words))
        self._exchange.flush()

    # what can go wrong

    def _until(self, condition: Any, deadline_s: float, what: str) -> None:
        deadline = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > deadline:
                late = ", ".join(sorted(set().union(*self._waiting.values())))
                raise SiteLost(f"site {late} takes more than {deadline_s:g} s {what}")
            self._pump()

    def _alive(self, name: str) -> str | None:
        """Why a site is dead, or None."""
        process = self._processes.get(name)
        if process is not None and process.poll() is not None:
            return _why_ended(process.returncode)
        thread = self._threads.get(name)
        if thread is not None and not thread.is_alive():
            return "its thread has ended"
        return None

    def _look_for_failures(self) -> None:
        """The first cause: what a node raised, before what that did to others."""
        dead = {name: why for name in self.names if (why := self._alive(name)) is not None}
        if not self._failures and not dead:
            return
        deadline = time.monotonic() + FIRST_CAUSE_S
        while not any(isinstance(f, NodeError) for f in self._failures):
            self._exchange.pump(PUMP_S)
            for name in self.names:
                while len(self._last[name]):
                    self._failures.append(_failure(name, self._last[name].take()[0]))
            if time.monotonic() > deadline:
                break
        dead |= {name: why for name in self.names if (why := self._alive(name)) is not None}
        killed = [
            SiteLost(f"site '{n}' has ended: {why}")
            for n, why in dead.items()
            if n in self._processes
        ]
        ordered = sorted(self._failures, key=lambda f: not isinstance(f, NodeError))
        raised = [f for f in ordered if isinstance(f, NodeError)] + killed + ordered
        raise raised[0] if raised else SiteLost(f"site '{min(dead)}' has ended: {dead[min(dead)]}")


def _failure(name: str, words: list[Any]) -> FlowError:
    """What a site said when it failed."""
    kind, *told = words
    if kind == "node":
        node, doing, raised, message, text = told
        cause = type(raised, (Exception,), {})(message)
        cause.__cause__ = RemoteTraceback(f"on site '{name}'\n{text}")
        return NodeError(node, doing, cause)
    return SiteLost(f"site '{name}': {told[0]}")


def _why_ended(code: int) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait a little, then be less polite."""
    for ask in (lambda: None, process.terminate, process.kill):
        ask()
        try:
            process.wait(max(deadline - time.monotonic(), 0.2))
            return
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _has_fileno(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True
