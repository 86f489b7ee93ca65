"""Joins several env managers into one, so that one policy acts in all of their envs.

Managers may be on this site or on others. All are asked for steps at once, and steps are received from
each manager as they become ready.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.agent_rows import AgentRows, as_agent_rows
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import COLUMNS, Steps

Received = tuple[Array, Steps]  # ids, and their steps


def join_specs(specs: Any) -> EnvSpec:
    """Join the specs of several managers into one; return the spec of a single manager as it is."""
    if not isinstance(specs, Sequence):
        return specs
    first: EnvSpec = specs[0]
    for spec in specs[1:]:
        if spec.agents != first.agents:
            what = f"env managers have {first.agents} and {spec.agents} agents in each env"
            raise UnsoundError(what, "link managers of the same kind of env")
        if spec.info != first.info:
            what = f"env managers list different info: {dict(first.info)} and {dict(spec.info)}"
            raise UnsoundError(what, "list the same in the `env` of each")
        if (spec.obs, _actions(spec)) != (first.obs, _actions(first)):
            raise UnsoundError(
                f"env managers differ: {first.obs} and {spec.obs}, {first.action} and "
                f"{spec.action}; one policy acts in all of them",
                "link managers of the same kind of env",
            )
    count = sum(spec.count for spec in specs)
    together = {spec.together for spec in specs}
    return replace(
        first,
        count=count,
        together=together.pop() if len(together) == 1 else count,
        takes_options=all(spec.takes_options for spec in specs),
        groups={name: join_specs([spec.groups[name] for spec in specs]) for name in first.groups},
    )


def _actions(spec: EnvSpec) -> list[Column]:
    """The column of actions, and those of groups."""
    return [spec.action, *(group.action for group in spec.groups.values())]


def join_managers(managers: Any) -> Any:
    """Join managers into one, whose ids are those of envs or, in envs with several agents, of agents."""
    if isinstance(managers, JoinedManagers):
        return managers
    several = isinstance(managers, Sequence) and not isinstance(managers, str)
    rows = [_rows_of(manager) for manager in (managers if several else [managers])]
    return rows[0] if len(rows) == 1 else JoinedManagers(rows)


def _rows_of(manager: Any) -> Any:
    if not hasattr(manager, "advance"):
        raise TypeError(
            f"envs is {shortened_repr(manager)}; expected an env manager, such as "
            "SerialEnvManager(env=…, count=8), or a list of them"
        )
    return as_agent_rows(manager)


class JoinedManagers:
    """An env manager made of several. Ids continue from one manager to the next; all step at once."""

    def __init__(self, managers: Sequence[Any]) -> None:
        self.managers = list(managers)
        specs = [manager.spec() for manager in managers]
        self._spec = join_specs(specs)
        self._first_id = np.cumsum([0, *(spec.count for spec in specs)])
        self._manager_of = np.repeat(np.arange(len(specs)), [spec.count for spec in specs])
        self._sent = np.zeros(self._spec.count, np.bool_)
        self.pending: dict[int, PendingReceive] = {}  # by manager: requested steps

    def spec(self) -> EnvSpec:
        return self._spec

    def seed(self, seed: int, dynamic_seeds: bool = True, first_env: int = 0) -> None:
        """Seed the episodes from the next reset on, as if the envs of all managers were those of one."""
        for manager, first_id in zip(self.managers, self._first_id.tolist(), strict=False):
            manager.seed(seed, dynamic_seeds, first_env + first_id // self._spec.agents)

    def set_reset_options(self, options: Mapping[str, float]) -> None:
        """Give each env these options from its next episode on."""
        for manager in self.managers:
            manager.set_reset_options(options)

    def reset(self) -> Array:
        """Begin new episodes in all envs; pending steps are discarded."""
        for number in sorted(self.pending):
            self._receive(number)
        self._sent[:] = False
        return np.concatenate([manager.reset() for manager in self.managers])

    def advance(self, actions: Array, ids: Any = None) -> Steps:
        """Step the envs of `ids` (None: all), and wait for them."""
        rows = np.arange(self._spec.count) if ids is None else np.asarray(ids)
        self.send(rows, actions)
        return self.recv(rows)[1]

    def send(self, ids: Any, actions: Array) -> None:
        """Begin to step these envs."""
        rows = np.asarray(ids)
        for number in np.unique(self._manager_of[rows]):
            own = self._manager_of[rows] == number
            self.managers[number].send(rows[own] - self._first_id[number], actions[own])
        self._sent[rows] = True

    def recv(self, ids: Any = None, least: int = 1) -> Received:
        """Return the steps of `ids`, in this order; without `ids`, the ready ones, at least `least`."""
        if ids is None:
            return self._receive_ready(least)
        rows = np.asarray(ids)
        numbers = np.unique(self._manager_of[rows]).tolist()
        parts = [self._receive(number) for number in numbers if number in self.pending]
        early = np.concatenate([np.zeros(0, np.int64), *(received for received, _ in parts)])
        missing = rows if not len(early) else rows[~np.isin(rows, early)]
        if len(missing) + len(early) != len(rows):
            raise ValueError(
                f"envs {rows.tolist()} are not all pending envs of their managers; name all of them"
            )
        numbers = np.unique(self._manager_of[missing]).tolist()
        for number in numbers:
            own = missing[self._manager_of[missing] == number]
            own_ids = own - self._first_id[number]
            self.pending[number] = begin_receive(self.managers[number], own_ids)
        parts += [self._receive(number) for number in numbers]
        place = np.empty(self._spec.count, np.int64)
        place[rows] = np.arange(len(rows))
        places = np.concatenate([place[received] for received, _ in parts])
        return rows, _merge_steps([steps for _, steps in parts], places)

    def _receive_ready(self, least: int) -> Received:
        """Request steps of all managers at once, and receive from each as it becomes ready."""
        wanted, parts = min(least, int(self._sent.sum())), []
        if not wanted:
            raise ValueError("no env was sent; send envs before receiving their steps")
        while True:
            for number in np.unique(self._manager_of[self._sent]).tolist():
                if number not in self.pending:
                    self.pending[number] = begin_receive(self.managers[number], None)
            ready = [n for n in sorted(self.pending) if self.pending[n].is_ready()]
            parts += [self._receive(number) for number in ready]
            if sum(len(received) for received, _ in parts) >= wanted:
                rows = np.concatenate([received for received, _ in parts])
                return rows, _merge_steps([steps for _, steps in parts], np.arange(len(rows)))
            if not ready:
                wait_for_any(self.pending.values())

    def _receive(self, number: int) -> Received:
        """Receive the requested steps of a manager, with the ids of the joined manager."""
        own_ids, steps = self.pending.pop(number).result()
        first = int(self._first_id[number])
        rows = np.asarray(own_ids) + first
        self._sent[rows] = False
        episodes = [e._replace(env_id=e.env_id + first) for e in steps.episodes]
        return rows, steps._replace(episodes=episodes)


def _merge_steps(parts: Sequence[Steps], places: Array) -> Steps:
    """Merge the steps of several managers; `places` are the indices of their rows in the result."""
    order = np.argsort(places)
    columns = {n: np.concatenate([getattr(part, n) for part in parts])[order] for n in COLUMNS}
    episodes = [episode for part in parts for episode in part.episodes]
    offsets = np.cumsum([0, *(len(part.reward) for part in parts)])
    failed, absent = (
        sorted(int(places[offsets[n] + k]) for n, rows in enumerate(lists) for k in rows)
        for lists in ([part.failed for part in parts], [part.absent for part in parts])
    )
    info = {n: np.concatenate([part.info[n] for part in parts])[order] for n in parts[0].info}
    in_turn = any(part.acted is not None for part in parts)
    acted = np.concatenate([_acted(part) for part in parts])[order] if in_turn else None
    return Steps(**columns, episodes=episodes, failed=failed, absent=absent, info=info, acted=acted)


def _acted(steps: Steps) -> Array:
    """Whether each row's action was taken in this step."""
    if steps.acted is not None:
        return steps.acted
    acted = np.ones(len(steps.reward), np.bool_)
    acted[np.asarray(steps.absent, np.int64)] = False
    return acted


class LocalReceive:
    """Requested steps of a manager on this site.

    A manager with workers computes them meanwhile, any other when they are received.
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
    """Request the steps of `ids`; without `ids`, the first ready ones, at least `least`."""
    if isinstance(manager, AgentRows):
        return AgentRowsReceive(manager, ids, least)
    return (RemoteReceive if hasattr(manager, "begin") else LocalReceive)(manager, ids, least)


def wait_for_any(receives: Collection[PendingReceive]) -> None:
    """Sleep until the steps of at least one manager can be received without waiting."""
    inner = [r.inner if isinstance(r, AgentRowsReceive) else r for r in receives]
    managers = [r.manager for r in inner if isinstance(r, LocalReceive) and r.has_workers]
    calls = [r.call for r in inner if isinstance(r, RemoteReceive)]

    def any_ready() -> bool:
        return any(receive.is_ready() for receive in receives)

    while not any_ready():
        with ExitStack() as stack:
            listening = [stack.enter_context(manager.listening()) for manager in managers]
            descriptors = [descriptor for descriptor, _ in listening]
            if any_ready():  # steps became ready before the workers saw that this process listens
                return
            if calls:
                calls[0].until(partial(_is_awake, descriptors, any_ready), calls[1:], descriptors)
            else:
                _poll(descriptors, min(longest_s for _, longest_s in listening))


def _is_awake(descriptors: Sequence[int], any_ready: Callable[[], bool]) -> bool:
    return _poll(descriptors, 0.0) or any_ready()


def _poll(descriptors: Sequence[int], timeout_s: float) -> bool:
    """Whether one of the descriptors becomes readable within the timeout."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
