"""Where a run on several sites is cut, if that is found while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from flowrl.core.state import Count
from flowrl.graph.model import Limits
from flowrl.runtime.control.count_ledger import CountLedger
from flowrl.runtime.control.cuts import CutPlanner
from flowrl.runtime.control.leases import Leases
from flowrl.runtime.control.messages import Command, CutAt, HoldRounds, PositionedCount
from flowrl.runtime.executor import CutReason
from flowrl.runtime.site_state import Position
from flowrl.runtime.sites.launched_sites import LaunchedSites
from flowrl.runtime.sites.run_cut import RunCut

INTERRUPT: CutReason = ("interrupt", "Ctrl-C")
VERDICT: CutReason = ("verdict", "solved")


class FakeSites:
    """Keeps the commands that are sent to all sites."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)


class FakePlanner:
    """Plans a program without a warm-up, in which each round has the same env steps, if they are known."""

    warm_up_rounds = 0

    def __init__(self, limits: Limits, steps_in_round: int | None) -> None:
        self.limits = limits
        self.known_steps = None if steps_in_round is None else (0, steps_in_round)

    def known_cuts(self, may_miss_firings: bool) -> Iterator[tuple[Position, CutReason]]:
        return iter(())

    def round_of(self, steps: int) -> int:
        assert self.known_steps is not None
        return -(-steps // self.known_steps[1]) - 1


class Run:
    """The cut of a run on the sites `a` and `b`, and what it depends on."""

    def __init__(
        self,
        limits: Limits | None = None,
        steps_in_round: int | None = None,
        may_miss_firings: bool = False,
    ) -> None:
        self.leases, self.ledger, self.sites = Leases(["a", "b"]), CountLedger(), FakeSites()
        self.saved_after: list[int] = []
        self.cut = RunCut(
            cast(CutPlanner, FakePlanner(limits or Limits(), steps_in_round)),
            self.leases,
            self.ledger,
            cast(LaunchedSites, self.sites),
            may_miss_firings,
            self.saved_after.append,
        )
        self.cut.announce()

    def find(self, firing_s: float = 1.0) -> Position | None:
        self.cut.find(firing_s, ["a", "b"])
        return self.cut.position

    def complete(self, rounds: int, env_steps: int) -> None:
        """Let both sites complete their rounds up to this number, the last one with these env steps."""
        self.ledger.add([PositionedCount((rounds - 1, 0, 0, 0), Count(env_steps=env_steps))])
        for site in ("a", "b"):
            self.leases.set_rounds(site, rounds)


@pytest.fixture
def run() -> Run:
    return Run()


def test_a_requested_cut_falls_in_the_newest_round_that_any_site_has_begun(run: Run) -> None:
    run.cut.request(INTERRUPT)
    assert run.find() is None
    assert run.sites.sent == [HoldRounds()]
    run.cut.on_rounds_held("a", 5)
    assert run.find() is None
    run.cut.on_rounds_held("b", 3)
    assert run.find() == (4,)
    assert run.saved_after == [5]
    assert run.cut.why == INTERRUPT
    assert CutAt((4,)) in run.sites.sent[1:]


def test_a_site_without_common_rounds_does_not_choose_the_round(run: Run) -> None:
    run.cut.request(INTERRUPT)
    run.find()
    run.cut.on_rounds_held("a", 2)
    run.cut.on_rounds_held("b", None)
    assert run.find() == (1,)


def test_the_answer_of_a_lost_site_is_not_awaited(run: Run) -> None:
    run.cut.request(INTERRUPT)
    run.find()
    run.cut.on_rounds_held("a", 2)
    run.cut.leave_out("b")
    assert run.find() == (1,)


def test_an_earlier_cut_that_is_known_already_ends_the_hold(run: Run) -> None:
    run.cut.cut_at((2, 1, 0, 9), VERDICT)
    run.cut.request(INTERRUPT)
    run.find()
    run.cut.on_rounds_held("a", 5)
    run.cut.on_rounds_held("b", 5)
    assert run.find() == (2, 1, 0, 9)
    assert run.cut.why == VERDICT
    assert run.sites.sent == [CutAt((2, 1, 0, 9)), HoldRounds(), CutAt((2, 1, 0, 9))]


def test_sites_are_told_the_earliest_cut_only(run: Run) -> None:
    run.cut.cut_at((7,), ("rounds", "8 rounds"))
    run.cut.cut_at((9,), INTERRUPT)
    run.cut.cut_at((3, 1, 0, 4), VERDICT)
    assert run.sites.sent == [CutAt((7,)), CutAt((3, 1, 0, 4))]
    assert run.cut.settled(9) == 3


def test_the_time_limit_asks_for_one_cut() -> None:
    run = Run(Limits(time_s=2.0))
    run.find(1.9)
    assert not run.sites.sent
    run.find(2.0)
    assert run.sites.sent == [HoldRounds()]
    for site in ("a", "b"):
        run.cut.on_rounds_held(site, 1)
    assert run.find(2.1) == (0,)
    sent = [*run.sites.sent]
    run.find(2.2)
    assert run.sites.sent == sent


def test_env_steps_whose_number_is_unknown_are_counted() -> None:
    run = Run(Limits(steps=10))
    run.complete(1, env_steps=6)
    assert run.find() is None
    run.complete(2, env_steps=6)
    assert run.find() == (1,)


def test_further_rounds_make_up_for_env_steps_that_a_lost_site_has_missed() -> None:
    run = Run(Limits(steps=30), steps_in_round=10, may_miss_firings=True)
    assert run.leases.last_round == 2
    for rounds, env_steps in ((1, 10), (2, 5), (3, 5)):
        run.complete(rounds, env_steps)
    assert run.find() is None
    assert run.leases.last_round == 3
    run.complete(4, env_steps=10)
    assert run.find() == (3,)
