"""A site: walks through the program for the instances that live there, as far as the coordinator grants."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from flowrl.channels import Bound, ChannelError, Exchange
from flowrl.checks.check import Checked
from flowrl.checks.losses import starving
from flowrl.context import Record, Verdict
from flowrl.engine.glance import glance_at
from flowrl.engine.guard import Failed
from flowrl.engine.hashing import Hashed
from flowrl.engine.runner import Position, Runner
from flowrl.engine.teller import Teller
from flowrl.engine.walk import Until, Walk
from flowrl.errors import NodeError
from flowrl.runs.environment import limit_threads
from flowrl.sites.cuts import Cuts, firings_before, includes, part_in
from flowrl.sites.free import free_sites
from flowrl.sites.home import SiteHome
from flowrl.sites.layout import COORDINATOR, Layout
from flowrl.sites.recall import Recall
from flowrl.sites.waiting import WAIT_S, Elsewhere
from flowrl.sites.words import DOWN, FAILED, UP, Told, as_data, error_words
from flowrl.state import Count, State

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
        self._settled = 0  # rounds that no cut goes back to
        self._stop: Position | None = None
        self._leave = False  # at once, whatever is going on
        self._asked_states = False
        self._free = name in free_sites(checked, layout)
        self._halted = False  # a free site ends after the firing that it is in
        self._walking = False
        self._told: list[Told] = []
        self._hashed: list[Hashed] = []
        self._did: list[list[Any]] = []  # what collectors and the first learner did, and where
        self._told_s = 0.0
        exchange.serve(self._hear)
        self._flushed_s = 0.0
        self._long_round = False  # something in it took its time
        self._home = SiteHome(checked, layout, name, exchange)
        self._home.waiting.check = self._check
        super().__init__(checked, seed, self._home)
        self._recalls = [
            Recall(checked, self.wired, r) for r in self.wired.all() if r.role == "learner"
        ]
        self._keeping = (
            [] if self._free else self._recalls
        )  # what a free site has done counts whole
        cuts = Cuts(checked, checked.graph.limits)
        self._starves, self._warm_rounds = cuts.learner_starves, cuts.warm_rounds
        self._paced_learners = [r for r in self._keeping if not r.fires_in_rounds]
        for runner in self.wired.all():
            if runner.role == "collector" or runner.key == self.first_learner:
                runner.on_count = self._counted

    # what the coordinator says

    def _hear(self) -> None:
        """Take in what was said; called whenever mail has come."""
        while len(self._down):
            word, *values = self._down.take()[0]
            if word == "grant":
                self._granted, *settled = values
                self._settled = settled[0]
                for recall in self._keeping:
                    recall.settle(*settled)
            elif word == "hash":
                self.hash_tokens(self._hashed.append)
            elif word == "stop":
                self._stop = tuple(values)
            elif word == "halt":
                self._halted = self._free
            elif word == "states":
                self._asked_states = True
            elif word == "leave":
                self._leave = True
        if self._leave:
            raise Stopped

    def _check(self) -> None:
        """Past the cut, what a site would wait for may never come; unless it answers a call."""
        if not self._walking or self._home.waiting.serves:
            return
        if self._halted:
            raise Stopped
        if self._fires_freely or self._stop is None:
            return
        if not includes(self._stop, self.here()):
            raise Stopped

    def say(self, *words: Any) -> None:
        """Tell the coordinator something."""
        self.exchange.wait(self._up, WAIT_S)
        self._up.send(list(words))
        self.exchange.flush()

    # hooks

    def before_round(self) -> Until | None:
        """Wait for the grant; find out whether this round is the last."""
        self.exchange.drain()
        self._do_what_counts()
        if self._fires_freely:
            self._wait_for_tokens()
            return None
        rounds = self.site.rounds
        if not self._may_begin():
            self.tell()
            self._home.waiting.idle(self._may_begin)
        stop = self._stop
        if stop is None or rounds < stop[0]:
            return None
        if rounds > stop[0]:
            raise Stopped
        return self._until(stop) if len(stop) > 1 else None

    @property
    def _fires_freely(self) -> bool:
        """Whether its rounds are its own: the phases of a warm-up are those of all."""
        return self._free and self.site.rounds >= self._warm_rounds

    def _wait_for_tokens(self) -> None:
        """A round in which nothing can fire is not begun."""
        runners = [r for name in self.program.round.order for r in self.wired.runners.get(name, ())]

        def can_fire() -> bool:
            return self._home.heard_of_firings or any(runner.ready() for runner in runners)

        if not can_fire():
            self.tell()
            self._home.wait_for_tokens(can_fire)

    def _do_what_counts(self) -> None:
        """What nodes do outside of the run, as far as no cut can take it back."""
        if self.deeds:
            self.deeds.do(lambda position: self._free or position[0] < self._settled)

    def _until(self, stop: Position) -> Until | None:
        """Where in this round the cut is; what starves fires in its own time, and is not held."""
        rounds, slot, replica, firing = stop[:4]
        part = part_in(self.program, rounds)
        name = part.order[slot]
        before = 0 if name in starving(part) else firings_before(self.program, rounds, name)
        return Until(slot, replica, firing + 1 - before)

    def _may_begin(self) -> bool:
        rounds, stop = self.site.rounds, self._stop
        return rounds < self._granted or (stop is not None and rounds > stop[0])

    def after_round(self, warm_up: bool) -> None:
        self._do_what_counts()
        for recall in self._keeping:
            recall.after_round()
        if (
            self._long_round
        ):  # the states that it ended with should not wait for the next one's firings
            self._long_round = False
            self.exchange.flush()
        if time.perf_counter() - self._told_s > TELL_EVERY_S:
            self.tell()
        if self._stop is not None and self.site.rounds > self._stop[0] and not self._fires_freely:
            raise Stopped

    def after_firing(self) -> None:
        if self._halted:
            raise Stopped
        for recall in self._paced_learners:
            recall.after_firing()
        self._end_at_verdict()
        # what was given should not wait for the next firing, if that is a long one
        if self.site.last_s - self._flushed_s > FLUSH_S:
            self._flushed_s = self.site.last_s
            self._long_round = True
            self.exchange.flush()

    def _end_at_verdict(self) -> None:
        """The run is cut here, or earlier; but a free site goes on until it is told: others may wait for it."""
        if self._verdict is not None and self.has_verdict and not self._fires_freely:
            raise Stopped

    def after_iteration(self, learner: Runner) -> None:
        for recall in self._keeping:
            if recall.learner is learner:
                recall.after_iteration()
        self._end_at_verdict()
        first = self._starves and learner.key == self.first_learner
        if first and learner.fired == self.graph.limits.train_iters:
            at = (*self.site.at, learner.slot, 0, learner.fired - 1)
            self.tell()
            self.say("reached", list(at), learner.fired)
            raise Stopped

    def _counted(self, runner: Runner, count: Count) -> None:
        self._did.append([list(self.position(runner)), list(count)])

    def recorded(self, runner: Runner, teller: Teller, record: Record | Failed) -> None:
        super().recorded(runner, teller, record)
        self._told.append(Told(self.position(runner), teller, record))
        if isinstance(record, Verdict):
            self.tell()

    # reports

    def tell(self) -> None:
        """How far it is, what was done, what nodes recorded, where time went."""
        self.exchange.wait(self._up, WAIT_S)  # where it is told to stop, it still has all to tell
        told, self._told = self._told, []
        did, self._did = self._did, []
        if self._hashed:
            hashed, self._hashed[:] = [[list(h.position), *h[1:]] for h in self._hashed], []
            self.say("hashed", hashed)
        seen = glance_at(self).as_data()
        self.say("progress", self.site.rounds, did, [as_data(t) for t in told], seen)
        self._told_s = time.perf_counter()

    def states_at(self, cut: Position) -> dict[str, State]:
        """The learners' states at the cut."""
        if self._free:
            return {key: s for recall in self._recalls for key, s in recall.states().items()}
        return {key: s for recall in self._recalls for key, s in recall.at(cut).items()}

    # the life of a site

    def live(self) -> None:
        """Walk until told to stop, and say what there is at the cut."""
        self.say("ready")
        self._walking = True
        self.exchange.serve(self._check)  # again, after a call that the end had to wait for
        try:
            self.site.last_s = time.perf_counter()
            self._home.waiting.idle(self._may_begin)  # granted once all are ready
            self._home.begin()
            self.walk()
        except Stopped:
            if self._leave:
                return
        self._walking = False
        if self._free:
            self._home.take_no_more()
        self.tell()
        self.say("stopped")
        self._tell_states()

    def no_rounds(self) -> None:
        """Nothing fires in rounds: an empty program ends where it begins."""
        raise Stopped

    def _tell_states(self) -> None:
        """Once the cut is known to all; then there is nothing more to do."""
        try:
            idle = self._home.waiting.idle
            idle(lambda: self._asked_states, "stopped")
            assert self._stop is not None
            cut = self._stop
            self.deeds.do(lambda position: self._free or includes(cut, position))
            self.tell()  # where time went: services have answered calls since they had stopped
            lines = self._home.happened_lines()
            self.say("states", self.states_at(self._stop), self.wired.dropped(), lines)
            self.say("closed", [str(error) for error in self.close()])
            idle(lambda: self._leave, "stopped")
        except Stopped:
            return


def run_site(
    checked: Checked,
    layout: Layout,
    name: str,
    exchange: Exchange,
    seed: int,
    made: Callable[[SiteWalk], None] = lambda walk: None,
) -> None:
    """One site from its making to its end; what goes wrong is told to the coordinator.

    `made` is called with the site's walk, for whoever looks at it.
    """
    walk: SiteWalk | None = None
    try:
        limit_threads(checked.graph.torch_threads)
        walk = SiteWalk(checked, layout, name, exchange, seed)
        made(walk)
        limit_threads(checked.graph.torch_threads)
        walk.live()
    except Stopped:
        pass
    except (Elsewhere, ChannelError) as error:
        _fail(exchange, name, ["lost", str(error), traceback.format_exc()])
    except NodeError as error:
        _fail(exchange, name, ["node", *error_words(error)])
    except BaseException as error:
        _fail(exchange, name, ["site", f"{type(error).__name__}: {error}", traceback.format_exc()])
    finally:
        if walk is not None:
            walk.close()
        exchange.close(drop=True)  # what the coordinator had to know, it has


def _fail(exchange: Exchange, name: str, words: list[Any]) -> None:
    """Say what went wrong, on a lane of its own: the other may be full, or not be there yet."""
    sender = exchange.sender(f"{FAILED}:{name}", COORDINATOR, bound=CONTROL)
    try:
        sender.send(words)
        exchange.flush()
        exchange.wait_until(lambda: sender.settled, (sender,), 5.0)
    except (ChannelError, Stopped):
        return  # nobody is left to be told; the coordinator sees that this site has ended
