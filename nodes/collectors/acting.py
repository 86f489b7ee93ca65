"""A policy that acts in envs: what each env saw last, and what a recurrent policy remembers of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.nodes.envs.steps import Episode, Steps
from flowrl.nodes.origin import Origin
from flowrl.nodes.policy import AnyActMode


class Taken(NamedTuple):
    """One step of some envs, or of agents that act for themselves."""

    ids: Array | None  # which; None: all, in their order
    columns: dict[str, Array]  # (B, …)
    episodes: list[Episode]  # that ended
    failed: Sequence[int]  # envs whose unfinished episode came to nothing
    absent: Sequence[int] | Array = ()  # where no agent played: they have no row

    def of(self, rows: Array) -> Taken:
        """These rows alone (B,) bool."""
        ids = np.flatnonzero(rows) if self.ids is None else self.ids[rows]
        return self._replace(ids=ids, columns={k: c[rows] for k, c in self.columns.items()})


class Acting:
    """Either all envs take a step together, or some are sent on and received when they are there."""

    def __init__(self, envs: Any, memory: Schema, origin: Origin | None = None) -> None:
        """`memory`: the columns of what the policy of the rows remembers, whoever acts.

        With `origin` rows say where they are from.
        """
        self._origin = origin
        self.envs, self.count = envs, envs.spec().count
        self._row_memory = memory
        self.mode: Any = None
        self.obs: Array | None = None
        self._owned = False  # whether nobody else holds them
        self._unseen: Schema = {}  # what the mode is to give, until its first answer
        self.memory: dict[str, Array] = {}  # of the mode that acts, by env
        self._blank: dict[str, Array] = {}  # memory columns of the rows that it does not have
        self._sent: dict[str, Array] = {}  # what was seen and done in the steps under way, by env
        self.under_way = np.zeros(self.count, np.bool_)

    def let(self, mode: AnyActMode, gives: Schema) -> None:
        """From now on this mode acts, and gives these columns; it remembers nothing."""
        self.mode = mode
        memory: Schema = getattr(mode, "memory", {})
        self._unseen = {**gives, **memory}
        self.memory = self._zeros(memory)
        self._blank = self._zeros({n: c for n, c in self._row_memory.items() if n not in memory})

    def begin(self) -> None:
        """New episodes in all envs."""
        self._forget_steps_under_way()
        self.obs, self._owned = self.envs.reset(), False
        self.memory = {name: np.zeros_like(array) for name, array in self.memory.items()}

    def together(self, ids: Array | None = None) -> Taken:
        """One step of all envs, or of these."""
        seen = self._seen(ids)
        memory = self.memory if ids is None else _at(self.memory, ids)
        acted = self._act(seen, memory)
        stepped: Steps = self.envs.advance(acted["action"], ids)
        beside = self._beside(ids)
        taken = _taken(ids, {**acted, "obs": seen, **beside, **memory}, stepped)
        if ids is None:
            self.obs, self._owned = stepped.obs, False
        else:
            self._own_obs()[ids] = stepped.obs
        if memory:
            self._remember(ids, acted)
            self._forget(taken)
        return taken

    def send(self, ids: Array, shown_all: bool = False) -> None:
        """Let these envs begin a step; `shown_all`: the policy is asked for all, and theirs is taken."""
        seen, memory = self._seen(ids), _at(self.memory, ids)
        if shown_all:
            acted = _at(self._act(self._seen(None), self.memory), ids)
        else:
            acted = self._act(seen, memory)
        self.envs.send(ids, acted["action"])
        self._remember(ids, acted)
        for name, value in {**acted, "obs": seen, **self._beside(ids), **memory}.items():
            if name not in self._sent:
                self._sent[name] = np.zeros((self.count, *value.shape[1:]), value.dtype)
            self._sent[name][ids] = value
        self.under_way[ids] = True

    def receive(self, ids: Array | None = None, least: int = 1) -> Taken:
        """What these envs did; without `ids`, at least so many that are ready first."""
        at, stepped = self.envs.recv(ids, least)
        taken = _taken(at, _at(self._sent, at), stepped)
        self._own_obs()[at] = stepped.obs
        self.under_way[at] = False
        self._forget(taken)
        return taken

    def _beside(self, ids: Array | None) -> dict[str, Array]:
        """The columns that neither the env nor whoever acts gives."""
        blank = self._blank if ids is None else _at(self._blank, ids)
        return blank if self._origin is None else {**blank, **self._origin.step(ids)}

    def _seen(self, ids: Array | None) -> Array:
        if self.obs is None:
            self.begin()
        seen: Any = self.obs
        return seen if ids is None else seen[ids]

    def _own_obs(self) -> Array:
        """The observations, to be written env by env: others may hold what a manager gave."""
        if not self._owned:
            self.obs, self._owned = np.array(self.obs), True
        return self.obs  # type: ignore[return-value]

    def _act(self, obs: Any, memory: Mapping[str, Array]) -> dict[str, Array]:
        acted: dict[str, Array] = (
            self.mode.forward(obs, memory) if memory else self.mode.forward(obs)
        )
        if self._unseen:  # the first answer is looked at closely: numpy would spread what is short
            for name, column in self._unseen.items():
                _demand(name, column, acted, len(obs))
            self._unseen = {}
        return acted

    def _remember(self, ids: Array | None, acted: Mapping[str, Array]) -> None:
        if ids is None:
            self.memory = {name: acted[name] for name in self.memory}
            return
        self.memory = {name: array.copy() for name, array in self.memory.items()}
        for name, array in self.memory.items():
            array[ids] = acted[name]

    def _forget(self, taken: Taken) -> None:
        """Where an episode began, nothing is remembered."""
        over = taken.columns["terminated"] | taken.columns["truncated"]
        if self.memory and (over.any() or len(taken.failed) or len(taken.absent)):
            ended = np.flatnonzero(over) if taken.ids is None else taken.ids[over]
            for array in self.memory.values():
                for at in (ended, taken.failed, taken.absent):
                    array[np.asarray(at, np.int64)] = 0

    def _forget_steps_under_way(self) -> None:
        if self.under_way.any():
            self.envs.recv(np.flatnonzero(self.under_way))
            self.under_way[:] = False

    def _zeros(self, columns: Schema) -> dict[str, Array]:
        return {n: np.zeros((self.count, *c.shape), c.dtype) for n, c in columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on beside the envs and the mode; no step may be under way."""
        memory = {name: array.copy() for name, array in self.memory.items()}
        return {"obs": None if self.obs is None else self.obs.copy(), "memory": memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.obs = None if state["obs"] is None else np.array(state["obs"])
        self._owned = True
        self.memory = {name: np.array(state["memory"][name]) for name in self.memory}


def _at(columns: Mapping[str, Array], ids: Array) -> dict[str, Array]:
    return {name: array[ids] for name, array in columns.items()}


def _taken(ids: Array | None, columns: dict[str, Array], stepped: Steps) -> Taken:
    _, reward, terminated, truncated, next_obs, episodes, broken, absent = stepped
    if len(broken):  # void: neither flag says that an episode ended
        terminated, truncated = terminated.copy(), truncated.copy()
        terminated[broken] = truncated[broken] = False
        broken = [int(k) if ids is None else int(ids[k]) for k in broken]
    columns.update(reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs)
    taken = Taken(ids, columns, episodes, broken)
    if not len(absent):
        return taken
    played = np.ones(len(reward), np.bool_)
    played[absent] = False
    away = np.flatnonzero(~played) if ids is None else ids[~played]
    return taken.of(played)._replace(absent=away)


def _demand(name: str, column: Column, acted: Mapping[str, Array], rows: int) -> None:
    if name not in acted:
        gives = ", ".join(acted) or "nothing"
        raise ValueError(f"a policy's mode gives {gives}; it must give '{name}' ({column}), too")
    given = np.asarray(acted[name])
    # who steps the envs knows which actions are the same in another type
    fits = name == "action" or np.can_cast(given.dtype, column.dtype, "same_kind")
    if given.shape != (rows, *column.shape) or not fits:
        raise ValueError(
            f"a policy's mode gives '{name}' as {given.dtype}{list(given.shape)} for {rows} "
            f"observations; it must be {column} for each"
        )
