"""Envs that each go on at their own pace, and rows that are, bit by bit, those of all together.

Whose turn it is when depends on the clock, and nothing else may. So the policy is always shown all
envs, whoever waits: numbers of a row depend on how many rows there are, not on what the others hold. And
whatever env comes to its k-th step, its action is drawn from where the policy's generators stood at the
k-th step of all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.acting import Acting, Taken
from flowrl.nodes.envs.steps import Episode


class Draws:
    """Where the generators of an act mode stood at the begin of each round."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._draws = hasattr(mode, "state_dict")
        self._at = 0  # the round that the mode would draw for
        self._begins = [self._now()]

    def _now(self) -> Any:
        return copy.deepcopy(self._mode.state_dict()) if self._draws else None

    def go_to(self, round_: int) -> None:
        """What is drawn next is drawn as in this round; all before it were drawn for."""
        if self._draws and self._at != round_:
            self._mode.load_state_dict(copy.deepcopy(self._begins[round_]))
        self._at = round_

    def drawn(self) -> None:
        """That was this round; it must have taken as much as the first time."""
        if not self._draws:
            return
        now, self._at = self._now(), self._at + 1
        if self._at == len(self._begins):
            self._begins.append(now)
        elif not _same(now, self._begins[self._at]):
            raise ValueError(
                f"{type(self._mode).__name__} draws by what it sees, or keeps what it saw in its "
                "state: `stepping: own_pace` cannot give the rows of `together`; take that"
            )


class OwnPace:
    """So many rounds, in each of which every env takes a step."""

    def __init__(self, acting: Acting, least: int) -> None:
        """`least`: envs that the policy waits for, to serve them at once."""
        self._acting, self._least = acting, least

    def rounds(self, steps: int) -> Iterator[Taken]:
        """Each round as soon as it and all before it are whole. Nothing is under way in the end."""
        acting, given = self._acting, 0
        draws, rounds = Draws(acting.mode), [Round(acting.count) for _ in range(steps)]
        done = np.zeros(acting.count, np.int64)  # steps of each env
        while given < steps:
            self._serve(draws, done, steps)
            under_way = int(acting.under_way.sum())
            taken = acting.receive(least=min(self._least, under_way))
            assert taken.ids is not None  # only what steps all envs together leaves them out
            for round_ in np.unique(done[taken.ids]):
                rounds[round_].take(taken, done[taken.ids] == round_)
            done[taken.ids] += 1
            if len(taken.absent):
                done[taken.absent] += 1
            for whole in rounds[given : int(done.min())]:
                given += 1
                yield whole.taken()
        draws.go_to(steps)

    def _serve(self, draws: Draws, done: Array, steps: int) -> None:
        """Send on whoever waits, round by round: those that are behind first."""
        waiting = np.flatnonzero(~self._acting.under_way & (done < steps))
        for round_ in np.unique(done[waiting]):
            draws.go_to(int(round_))
            self._acting.send(waiting[done[waiting] == round_], shown_all=True)
            draws.drawn()


class Round:
    """One step of every env, put together as they come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._played = np.zeros(count, np.bool_)
        self._columns: dict[str, Array] = {}
        self._episodes: list[Episode] = []
        self._failed: list[int] = []

    def take(self, taken: Taken, mine: Array) -> None:
        """Those rows that are of this round."""
        assert taken.ids is not None
        ids = taken.ids[mine]
        self._played[ids] = True
        for name, value in taken.columns.items():
            if name not in self._columns:
                self._columns[name] = np.empty((self._count, *value.shape[1:]), value.dtype)
            self._columns[name][ids] = value[mine]
        members = set(ids.tolist())
        self._episodes += [episode for episode in taken.episodes if episode.env_id in members]
        self._failed += [env for env in taken.failed if env in members]

    def taken(self) -> Taken:
        """As if all had been stepped together."""
        episodes = sorted(self._episodes, key=lambda episode: episode.env_id)
        taken = Taken(None, self._columns, episodes, sorted(self._failed))
        return taken if self._played.all() else taken.of(self._played)


def _same(one: Any, other: Any) -> bool:
    """Whether two states are equal, arrays by their values."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)
