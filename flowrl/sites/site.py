"""A site: walks through the program for the instances that live there, as far as the coordinator grants."""

from __future__ import annotations

import time
import traceback
from collections import deque
from typing import Any

from flowrl.channels import Bound, ChannelError, Exchange
from flowrl.checks.check import Checked
from flowrl.context import Record, Verdict
from flowrl.engine.engine import states_of, teller_of
from flowrl.engine.runner import Runner
from flowrl.engine.walk import Until, Walk
from flowrl.errors import NodeError
from flowrl.runs.environment import limit_threads
from flowrl.sites.cuts import Stop, firings_before
from flowrl.sites.home import WAIT_S, Elsewhere, SiteHome
from flowrl.sites.layout import COORDINATOR, Layout
from flowrl.sites.words import DOWN, FAILED, UP, Told, as_data
from flowrl.state import State

TELL_EVERY_S = 0.05  # how often a site tells how far it is
FLUSH_S = 0.0005  # shorter firings are gathered
CONTROL = Bound(tokens=1 << 16)


class Stopped(BaseException):
    """The coordinator wants no more."""


class SiteWalk(Walk):
    """Reports what happens, and goes no further than granted, nor beyond where it is told to stop."""

    def __init__(
        self, checked: Checked, layout: Layout, name: str, exchange: Exchange, seed: int
    ) -> None:
        self.name, self.exchange = name, exchange
        self._up = exchange.sender(f"{UP}:{name}", COORDINATOR, bound=CONTROL)
        self._down = exchange.receiver(f"{DOWN}:{name}", COORDINATOR, bound=CONTROL)
        self._granted = 0  # rounds that may begin
        self._stop: Stop | None = None
        self._leave = False  # at once, whatever is going on
        self._walking = False
        self._told: list[Told] = []
        self._did: list[list[Any]] = []  # of each round that was not told yet: what collectors did
        self._told_s = 0.0
        exchange.serve(self._hear)
        self._flushed_s = 0.0
        self._home = SiteHome(checked, layout, name, exchange)
        super().__init__(checked, seed, self._home)
        roles = {r.key: r for r in self.wired.all()}
        self._collectors = [r for r in roles.values() if r.role == "collector"]
        self._learners = [r for r in roles.values() if r.role == "learner"]
        self._history: deque[tuple[str, int, dict[str, State]]] = deque(maxlen=4096)
        self._final = 0  # rounds that nobody will go back to

    # what the coordinator says

    def _hear(self) -> None:
        """Take in what was said; called whenever mail has come."""
        while len(self._down):
            word, *values = self._down.take()[0]
            if word == "grant":
                self._granted, self._final = values
            elif word == "stop":
                self._stop = Stop(*values)
                if self._walking and self._is_past(self._stop):
                    raise Stopped  # what it may be waiting for will not come any more
            elif word == "states":
                happened = [*self.happened.lines(), *map(str, self.close())]
                self.say("states", self.states_at(self._stop), happened)
            elif word == "leave":
                self._leave = True
        if self._leave:
            raise Stopped

    def _is_past(self, stop: Stop) -> bool:
        """Whether what goes on now comes after the cut."""
        here = (self.site.rounds, self._slot)
        if here != stop[:2]:
            return here > stop[:2]
        name = self.program.round.order[stop.slot]
        if name in self._sources:
            return self._sources[name].fired > stop.fired
        return all(runner.fired >= stop.fired for runner in self.wired.runners.get(name, ()))

    def say(self, *words: Any) -> None:
        """Tell the coordinator something."""
        self._up.send(list(words))
        self.exchange.flush()

    # hooks

    def before_round(self) -> Until | None:
        """Wait for the grant; find out whether this round is the last."""
        self.exchange.drain()
        rounds = self.site.rounds
        if not self._may_begin():
            self.tell()
            self.exchange.wait_until(self._may_begin, (), WAIT_S)
        if self._stop is None or rounds < self._stop[0]:
            return None
        if rounds > self._stop[0]:
            raise Stopped
        _, slot, fired = self._stop
        if slot == len(self.program.round.order):
            return None  # at the round's end
        return Until(slot, fired - firings_before(self.checked, rounds, slot))

    def _may_begin(self) -> bool:
        return self.site.rounds < self._granted or self._stop is not None

    def after_firing(self) -> None:
        """What was given should not wait for the next firing, if that is a long one."""
        if self.site.last_s - self._flushed_s > FLUSH_S:
            self._flushed_s = self.site.last_s
            self.exchange.flush()

    def after_round(self, warm_up: bool) -> None:
        self._did.append([self.site.rounds, {r.key: list(r.did[:2]) for r in self._collectors}])
        if len(self.graph.role("learner")) > 1:
            self._remember(self._learners)
        if time.perf_counter() - self._told_s > TELL_EVERY_S:
            self.tell()
        if self._stop is not None and self.site.rounds > self._stop[0]:
            raise Stopped

    def after_iteration(self, learner: Runner) -> None:
        """A version that paced others may be where the run is cut: it is remembered until that is settled."""
        paces = [p.every for p in self.program.paced if p.source.node == learner.spec.name]
        if any(learner.fired % every == 0 for every in paces):
            self._remember([learner])

    def _remember(self, learners: list[Runner]) -> None:
        for learner in learners:
            self._history.append((learner.key, self.site.rounds, states_of(learner)))
        while self._history and self._history[0][1] < self._final - 1:
            self._history.popleft()

    def recorded(self, runner: Runner, record: Record) -> None:
        self._told.append(Told(self.position(runner), teller_of(runner), record))
        if isinstance(record, Verdict):
            self.tell()

    # reports

    def tell(self) -> None:
        """How far it is, what collectors did, what nodes recorded, where time went."""
        told, self._told = self._told, []
        did, self._did = self._did, []
        busy = {r.key: [r.fired, r.busy_s] for r in self.wired.all()}
        self.say("progress", self.site.rounds, did, [as_data(t) for t in told], busy)
        self._told_s = time.perf_counter()

    def states_at(self, stop: Stop | None) -> dict[str, State]:
        """The learners' states at the cut: remembered ones, if they have gone on since."""
        found: dict[str, State] = {}
        for learner in self._learners:
            fired = learner.fired if stop is None else self._fired_at(learner, stop)
            found |= self._recalled(learner, fired) or states_of(learner)
        return found

    def _fired_at(self, learner: Runner, stop: Stop) -> int:
        rounds, slot, fired = stop
        own = self.program.round.order.index(learner.spec.name)
        if own == slot:
            return fired
        return firings_before(self.checked, rounds + (own < slot), own)

    def _recalled(self, learner: Runner, fired: int) -> dict[str, State] | None:
        for key, _, states in self._history:
            if key == learner.key and next(iter(states.values())).version == fired:
                return states
        if learner.fired != fired:
            raise AssertionError(
                f"{learner.key}: version {fired} was not kept; it is at {learner.fired}"
            )
        return None

    # the life of a site

    def live(self) -> None:
        """Walk until told to stop, and say what there is at the cut."""
        self.say("ready")
        self._walking = True
        try:
            self.exchange.wait_until(self._may_begin, (), WAIT_S)  # granted once all are ready
            self._home.begin()
            self.walk()
        except Stopped:
            if self._leave:
                return
        self._walking = False
        self.tell()
        self.say("stopped")
        self._wait_to_leave()

    def no_rounds(self) -> None:
        """Nothing fires in rounds: an empty program ends where it begins."""
        raise Stopped

    def _wait_to_leave(self) -> None:
        try:
            self.exchange.wait_until(lambda: self._leave, (), WAIT_S)
        except Stopped:
            return


def run_site(checked: Checked, layout: Layout, name: str, exchange: Exchange, seed: int) -> None:
    """One site from its making to its end; what goes wrong is told to the coordinator."""
    walk: SiteWalk | None = None
    try:
        limit_threads(checked.graph.torch_threads)
        walk = SiteWalk(checked, layout, name, exchange, seed)
        limit_threads(checked.graph.torch_threads)
        walk.live()
    except Stopped:
        pass
    except (Elsewhere, ChannelError) as error:
        _fail(exchange, name, ["lost", str(error)])
    except NodeError as error:
        cause = error.__cause__ or error
        text = "".join(traceback.format_exception(cause))
        _fail(
            exchange,
            name,
            ["node", error.node, error.doing, type(cause).__name__, str(cause), text],
        )
    except BaseException as error:
        _fail(exchange, name, ["site", f"{type(error).__name__}: {error}", traceback.format_exc()])
    finally:
        if walk is not None:
            walk.close()
        exchange.close()


def _fail(exchange: Exchange, name: str, words: list[Any]) -> None:
    """Say what went wrong, on a lane of its own: the other may be full, or not be there yet."""
    sender = exchange.sender(f"{FAILED}:{name}", COORDINATOR, bound=CONTROL)
    try:
        sender.send(words)
        exchange.flush()
        exchange.wait_until(lambda: sender.settled, (sender,), 5.0)
    except (ChannelError, Stopped):
        return  # nobody is left to be told; the coordinator sees that this site has ended
