"""Several env managers as one: a policy in one place acts in envs that are stepped in many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.collectors.coming import Coming, asked, until_any
from flowrl.nodes.envs.agent_rows import as_agent_rows
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import COLUMNS, Steps


def joined(specs: Any) -> EnvSpec:
    """What is known of the envs of one manager, or of several together."""
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


def fleet(managers: Any) -> Any:
    """One manager as it is, several as a fleet; a row is what acts for itself."""
    if not isinstance(managers, Sequence):
        return managers if isinstance(managers, Fleet) else as_agent_rows(managers)
    found = [as_agent_rows(manager) for manager in managers]
    return found[0] if len(found) == 1 else Fleet(found)


class Fleet:
    """Envs are counted on from one manager to the next. All managers step at the same time."""

    def __init__(self, managers: Sequence[Any]) -> None:
        self._managers = list(managers)
        specs = [manager.spec() for manager in managers]
        self._spec = joined(specs)
        self._first = np.cumsum([0, *(spec.count for spec in specs)])
        self._of = np.repeat(np.arange(len(specs)), [spec.count for spec in specs])
        self._sent = np.zeros(self._spec.count, np.bool_)
        self._coming: dict[int, Coming] = {}  # by manager: what was asked for, and not taken

    def spec(self) -> EnvSpec:
        """The columns, and how many envs there are in all."""
        return self._spec

    def reset(self) -> Array:
        """New episodes in all envs."""
        for number in sorted(self._coming):
            self._take(number)  # of no use now
        self._sent[:] = False
        return np.concatenate([manager.reset() for manager in self._managers])

    def advance(self, actions: Array, ids: Any = None) -> Steps:
        """Step all envs, or these."""
        at = np.arange(self._spec.count) if ids is None else np.asarray(ids)
        self.send(at, actions)
        return self.recv(at)[1]

    def send(self, ids: Any, actions: Array) -> None:
        """Begin to step these envs."""
        at = np.asarray(ids)
        for number in np.unique(self._of[at]):
            mine = self._of[at] == number
            self._managers[number].send(at[mine] - self._first[number], actions[mine])
        self._sent[at] = True

    def recv(self, ids: Any = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order; without `ids`, of at least `least` that are ready."""
        if ids is None:
            return self._ready(least)
        at = np.asarray(ids)
        numbers = np.unique(self._of[at]).tolist()
        parts = [self._take(number) for number in numbers if number in self._coming]
        early = np.concatenate([np.zeros(0, np.int64), *(got for got, _ in parts)])
        missing = at if not len(early) else at[~np.isin(at, early)]
        if len(missing) + len(early) != len(at):
            raise ValueError(f"envs {at.tolist()} were named; name all that are under way there")
        numbers = np.unique(self._of[missing]).tolist()
        for number in numbers:
            mine = missing[self._of[missing] == number]
            self._coming[number] = asked(self._managers[number], mine - self._first[number])
        parts += [self._take(number) for number in numbers]
        place = np.empty(self._spec.count, np.int64)
        place[at] = np.arange(len(at))
        return at, _reordered(
            [s for _, s in parts], np.concatenate([place[got] for got, _ in parts])
        )

    def _ready(self, least: int) -> tuple[Array, Steps]:
        """Managers are asked all at once, and taken from as they are ready."""
        wanted, parts = min(least, int(self._sent.sum())), []
        if not wanted:
            raise ValueError("no env was sent; send some before they are received")
        while True:
            for number in np.unique(self._of[self._sent]).tolist():
                if number not in self._coming:
                    self._coming[number] = asked(self._managers[number], None)
            ready = [number for number in sorted(self._coming) if self._coming[number].ready()]
            parts += [self._take(number) for number in ready]
            if sum(len(got) for got, _ in parts) >= wanted:
                at = np.concatenate([got for got, _ in parts])
                return at, _reordered([steps for _, steps in parts], np.arange(len(at)))
            if not ready:
                until_any(self._coming.values())

    def _take(self, number: int) -> tuple[Array, Steps]:
        """What was asked of a manager, by the envs of all."""
        got, steps = self._coming.pop(number).take()
        at = np.asarray(got) + self._first[number]
        self._sent[at] = False
        return at, self._counted_on(number, steps)

    def _counted_on(self, number: int, steps: Steps) -> Steps:
        first = int(self._first[number])
        episodes = [e._replace(env_id=e.env_id + first) for e in steps.episodes]
        return steps._replace(episodes=episodes)


def _reordered(parts: Sequence[Steps], places: Array) -> Steps:
    """Steps of several managers as one; `places` says where each row belongs."""
    order = np.argsort(places)
    columns = {n: np.concatenate([getattr(part, n) for part in parts])[order] for n in COLUMNS}
    episodes = [episode for part in parts for episode in part.episodes]
    before = np.cumsum([0, *(len(part.reward) for part in parts)])
    broken, absent = (
        sorted(int(places[before[n] + k]) for n, rows in enumerate(void) for k in rows)
        for void in ([part.failed for part in parts], [part.absent for part in parts])
    )
    return Steps(**columns, episodes=episodes, failed=broken, absent=absent)
