"""Steps on their way from env managers, here and on other sites; and waiting for whichever come first."""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from flowrl.core.batch import Array
from flowrl.nodes.envs.agent_rows import AgentRows
from flowrl.nodes.envs.steps import Steps

Given = tuple[Array, Steps]  # envs, and their steps


class Here:
    """Of a manager on this site: it computes them when they are taken, or its workers do meanwhile."""

    def __init__(self, manager: Any, ids: Array | None, least: int) -> None:
        self.manager, self._asked = manager, (ids, least)

    def ready(self) -> bool:
        """Whether they can be taken without waiting for workers."""
        ids, least = self._asked
        return not self.has_workers or ids is not None or self.manager.has_ready(least)

    @property
    def has_workers(self) -> bool:
        """Whether somebody else computes them."""
        return hasattr(self.manager, "has_ready")

    def take(self) -> Given:
        """Wait for them, if need be."""
        given: Given = self.manager.recv(*self._asked)
        return given


class Elsewhere:
    """Of a manager on another site, which has been asked for them."""

    def __init__(self, stub: Any, ids: Array | None, least: int) -> None:
        self.call = stub.begin("recv", ids, least)

    def ready(self) -> bool:
        """Whether they are here."""
        return bool(self.call.ready())

    def take(self) -> Given:
        """Wait for them, if need be."""
        given: Given = self.call.take()
        return given


class OfAgents:
    """The same, by agents."""

    def __init__(self, lanes: AgentRows, ids: Array | None, least: int) -> None:
        self._lanes, self.inner = lanes, asked(lanes.envs, *lanes.asked(ids, least))

    def ready(self) -> bool:
        """Whether they can be taken without waiting."""
        return self.inner.ready()

    def take(self) -> Given:
        """Wait for them, if need be."""
        return self._lanes.received(self.inner.take())


Coming = Here | Elsewhere | OfAgents


def asked(manager: Any, ids: Array | None, least: int = 1) -> Coming:
    """Ask for the steps of these envs; without `ids`, of `least` that are ready first."""
    if isinstance(manager, AgentRows):
        return OfAgents(manager, ids, least)
    return (Elsewhere if hasattr(manager, "begin") else Here)(manager, ids, least)


def until_any(coming: Collection[Coming]) -> None:
    """Sleep until some can be taken without waiting."""
    inner = [one.inner if isinstance(one, OfAgents) else one for one in coming]
    workers = [one.manager for one in inner if isinstance(one, Here) and one.has_workers]
    calls = [one.call for one in inner if isinstance(one, Elsewhere)]

    def ready() -> bool:
        return any(one.ready() for one in coming)

    while not ready():
        with ExitStack() as stack:
            listening = [stack.enter_context(manager.listening()) for manager in workers]
            bells = [bell for bell, _ in listening]
            if ready():  # since workers know that they are listened to
                return
            if calls:
                calls[0].until(partial(_woken, bells, ready), calls[1:], bells)
            else:
                _rung(bells, min(nap_s for _, nap_s in listening))


def _woken(bells: Sequence[int], ready: Callable[[], bool]) -> bool:
    return _rung(bells, 0.0) or ready()


def _rung(bells: Sequence[int], longest_s: float) -> bool:
    """Whether one of these can be read by then."""
    poll = select.poll()
    for bell in bells:
        poll.register(bell, select.POLLIN)
    return bool(poll.poll(longest_s * 1000))
