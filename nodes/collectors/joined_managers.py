"""Several env managers as one: one policy acts in envs that are stepped in several places.

Managers may be on this site or on others. Each is asked for its steps, and whichever has some ready
first is received from first.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.agent_rows import AgentRows, as_agent_rows
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import COLUMNS, Steps

Received = tuple[Array, Steps]  # ids, and their steps


def join_specs(specs: Any) -> EnvSpec:
    """The spec of the envs of one manager, or of several managers together."""
    if not isinstance(specs, Sequence):
        return specs
    first: EnvSpec = specs[0]
    for spec in specs[1:]:
        if spec.agents != first.agents:
            what = f"env managers have {first.agents} and {spec.agents} agents in each env"
            raise UnsoundError(what, "link managers of like envs")
        if (spec.obs, spec.action) != (first.obs, first.action):
            raise UnsoundError(
                f"env managers differ: {first.obs} and {spec.obs}, {first.action} and "
                f"{spec.action}; one policy acts in all of them",
                "link managers of like envs",
            )
    return replace(first, count=sum(spec.count for spec in specs))


def join_managers(managers: Any) -> Any:
    """One manager, or several as one; its rows are envs, or the agents of envs with several."""
    if not isinstance(managers, Sequence):
        return managers if isinstance(managers, JoinedManagers) else as_agent_rows(managers)
    found = [as_agent_rows(manager) for manager in managers]
    return found[0] if len(found) == 1 else JoinedManagers(found)


class JoinedManagers:
    """Rows are numbered through from one manager to the next. All managers step at the same time."""

    def __init__(self, managers: Sequence[Any]) -> None:
        self._managers = list(managers)
        specs = [manager.spec() for manager in managers]
        self._spec = join_specs(specs)
        self._first_id = np.cumsum([0, *(spec.count for spec in specs)])
        self._manager_of = np.repeat(np.arange(len(specs)), [spec.count for spec in specs])
        self._sent = np.zeros(self._spec.count, np.bool_)
        self._pending: dict[int, PendingReceive] = {}  # by manager: requested, and not received

    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self) -> Array:
        """Begin new episodes in all envs; pending steps are discarded."""
        for number in sorted(self._pending):
            self._receive(number)
        self._sent[:] = False
        return np.concatenate([manager.reset() for manager in self._managers])

    def advance(self, actions: Array, ids: Any = None) -> Steps:
        """Step all envs, or those of `ids`."""
        rows = np.arange(self._spec.count) if ids is None else np.asarray(ids)
        self.send(rows, actions)
        return self.recv(rows)[1]

    def send(self, ids: Any, actions: Array) -> None:
        """Begin to step these envs."""
        rows = np.asarray(ids)
        for number in np.unique(self._manager_of[rows]):
            own = self._manager_of[rows] == number
            self._managers[number].send(rows[own] - self._first_id[number], actions[own])
        self._sent[rows] = True

    def recv(self, ids: Any = None, least: int = 1) -> Received:
        """The steps of `ids`, in this order; without `ids`, of at least `least` that are ready."""
        if ids is None:
            return self._receive_ready(least)
        rows = np.asarray(ids)
        numbers = np.unique(self._manager_of[rows]).tolist()
        parts = [self._receive(number) for number in numbers if number in self._pending]
        early = np.concatenate([np.zeros(0, np.int64), *(received for received, _ in parts)])
        missing = rows if not len(early) else rows[~np.isin(rows, early)]
        if len(missing) + len(early) != len(rows):
            raise ValueError(
                f"envs {rows.tolist()} are not all the pending ones of their managers; name all"
            )
        numbers = np.unique(self._manager_of[missing]).tolist()
        for number in numbers:
            own = missing[self._manager_of[missing] == number]
            own_ids = own - self._first_id[number]
            self._pending[number] = begin_receive(self._managers[number], own_ids)
        parts += [self._receive(number) for number in numbers]
        place = np.empty(self._spec.count, np.int64)
        place[rows] = np.arange(len(rows))
        places = np.concatenate([place[received] for received, _ in parts])
        return rows, _merge_steps([steps for _, steps in parts], places)

    def _receive_ready(self, least: int) -> Received:
        """Request steps of all managers at once, and receive from each as it becomes ready."""
        wanted, parts = min(least, int(self._sent.sum())), []
        if not wanted:
            raise ValueError("no env was sent; send some before they are received")
        while True:
            for number in np.unique(self._manager_of[self._sent]).tolist():
                if number not in self._pending:
                    self._pending[number] = begin_receive(self._managers[number], None)
            ready = [n for n in sorted(self._pending) if self._pending[n].is_ready()]
            parts += [self._receive(number) for number in ready]
            if sum(len(received) for received, _ in parts) >= wanted:
                rows = np.concatenate([received for received, _ in parts])
                return rows, _merge_steps([steps for _, steps in parts], np.arange(len(rows)))
            if not ready:
                wait_for_any(self._pending.values())

    def _receive(self, number: int) -> Received:
        """What was requested of a manager, with ids numbered over all managers."""
        own_ids, steps = self._pending.pop(number).result()
        first = int(self._first_id[number])
        rows = np.asarray(own_ids) + first
        self._sent[rows] = False
        episodes = [e._replace(env_id=e.env_id + first) for e in steps.episodes]
        return rows, steps._replace(episodes=episodes)


def _merge_steps(parts: Sequence[Steps], places: Array) -> Steps:
    """The steps of several managers as one; `places` are the indices of their rows in it."""
    order = np.argsort(places)
    columns = {n: np.concatenate([getattr(part, n) for part in parts])[order] for n in COLUMNS}
    episodes = [episode for part in parts for episode in part.episodes]
    offsets = np.cumsum([0, *(len(part.reward) for part in parts)])
    failed, absent = (
        sorted(int(places[offsets[n] + k]) for n, rows in enumerate(lists) for k in rows)
        for lists in ([part.failed for part in parts], [part.absent for part in parts])
    )
    return Steps(**columns, episodes=episodes, failed=failed, absent=absent)


class LocalReceive:
    """Requested steps of a manager on this site.

    A manager with workers computes them meanwhile; another one computes them when they are received.
    """

    def __init__(self, manager: Any, ids: Array | None, least: int) -> None:
        self.manager, self._ids, self._least = manager, ids, least

    def is_ready(self) -> bool:
        """Whether `result` returns without waiting for workers."""
        if not self.has_workers or self._ids is not None:
            return True
        return bool(self.manager.has_ready(self._least))

    @property
    def has_workers(self) -> bool:
        return hasattr(self.manager, "has_ready")

    def result(self) -> Received:
        received: Received = self.manager.recv(self._ids, self._least)
        return received


class RemoteReceive:
    """Requested steps of a manager on another site."""

    def __init__(self, stub: Any, ids: Array | None, least: int) -> None:
        self.call = stub.begin("recv", ids, least)

    def is_ready(self) -> bool:
        """Whether the answer has arrived."""
        return bool(self.call.ready())

    def result(self) -> Received:
        received: Received = self.call.take()
        return received


class AgentRowsReceive:
    """Requested steps of a manager whose rows are agents."""

    def __init__(self, agent_rows: AgentRows, ids: Array | None, least: int) -> None:
        self._agent_rows = agent_rows
        self.inner = begin_receive(agent_rows.envs, *agent_rows.recv_arguments(ids, least))

    def is_ready(self) -> bool:
        return self.inner.is_ready()

    def result(self) -> Received:
        return self._agent_rows.convert_received(self.inner.result())


PendingReceive = LocalReceive | RemoteReceive | AgentRowsReceive


def begin_receive(manager: Any, ids: Array | None, least: int = 1) -> PendingReceive:
    """Request the steps of `ids`; without `ids`, of at least `least` that are ready first."""
    if isinstance(manager, AgentRows):
        return AgentRowsReceive(manager, ids, least)
    return (RemoteReceive if hasattr(manager, "begin") else LocalReceive)(manager, ids, least)


def wait_for_any(receives: Collection[PendingReceive]) -> None:
    """Sleep until one of these can be received without waiting."""
    inner = [r.inner if isinstance(r, AgentRowsReceive) else r for r in receives]
    managers = [r.manager for r in inner if isinstance(r, LocalReceive) and r.has_workers]
    calls = [r.call for r in inner if isinstance(r, RemoteReceive)]

    def any_ready() -> bool:
        return any(receive.is_ready() for receive in receives)

    while not any_ready():
        with ExitStack() as stack:
            listening = [stack.enter_context(manager.listening()) for manager in managers]
            descriptors = [descriptor for descriptor, _ in listening]
            if any_ready():  # before the workers knew that they must wake this process
                return
            if calls:
                calls[0].until(partial(_is_awake, descriptors, any_ready), calls[1:], descriptors)
            else:
                _poll(descriptors, min(longest_s for _, longest_s in listening))


def _is_awake(descriptors: Sequence[int], any_ready: Callable[[], bool]) -> bool:
    return _poll(descriptors, 0.0) or any_ready()


def _poll(descriptors: Sequence[int], timeout_s: float) -> bool:
    """Whether one of the descriptors becomes readable in this time."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
