"""A part as steps: what fires how often, and what may be put around a firing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowrl.core.state import EMPTY_CLOCK
from flowrl.runtime.instance import Instance
from flowrl.runtime.streams import Push

Fire = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """One instance's firings in a part."""

    order_index: int  # its node's place in the part's order
    replica: int
    fire: Fire
    times: int
    who: Instance | RemoteFirings


@dataclass(frozen=True, slots=True)
class RoundStop:
    """Where a round is left: after so many firings of an instance."""

    order_index: int
    replica: int
    firings: int


@dataclass(slots=True)
class RemoteFirings:
    """A node that fires elsewhere and paces what fires here: how often it has fired."""

    fired: int = 0


PacedSteps = tuple[int, int, list[ScheduleStep]]  # a paced part's number, its pace, its steps here


def heard_by(tells: list[Push], fire: Fire) -> Fire:
    """Those who cannot count its firings are told of each, before what it paces here waits for them."""

    def fire_and_tell() -> None:
        fire()
        for tell in tells:
            tell((True, EMPTY_CLOCK))

    return fire_and_tell


def as_often_as(happened: Callable[[], bool], fire: Fire) -> Fire:
    """Whatever has happened elsewhere meanwhile, and nothing is waited for."""

    def fire_for_each() -> None:
        while happened():
            fire()

    return fire_for_each


def if_ready(instance: Instance, fire: Fire) -> Fire:
    """Where tokens may be missing."""

    def fire_if_ready() -> None:
        if instance.ready():
            fire()

    return fire_if_ready


def while_ready(instance: Instance, fire: Fire, after: Fire) -> Fire:
    """No rate says how often: as long as there are tokens."""

    def fire_while_ready() -> None:
        while instance.ready():
            fire()
            after()

    return fire_while_ready


def firings_until(step: ScheduleStep, until: RoundStop | None) -> int:
    """How often a step's instance fires in a round that may be left before its end."""
    if until is None:
        return step.times
    who, last = (step.order_index, step.replica), (until.order_index, until.replica)
    if who == last:
        return until.firings
    return step.times if who < last else 0
