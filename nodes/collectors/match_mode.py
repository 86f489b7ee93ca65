"""Acts in matches: each row with the player that has its seat, whose random numbers follow from the match alone.

A player acts on one observation at a time. So its actions depend on the match's seed and on the weights of the players,
and not on the other matches that are played meanwhile; networks return other bits for other numbers of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.reseeding import Reseeding
from flowrl.core.state import State
from flowrl.nodes.policy import Policy, act_mode_state, load_act_mode_state


class MatchGenerators(Reseeding):
    """Replaces the generators of a saved state by those of one seat in one match."""

    def __init__(self, seed: int, seat: int) -> None:
        super().__init__(f"match {seed}, seat {seat}")
        self._replaced = 0

    def _derived(self, saved: str) -> int:
        self._replaced += 1
        digest = hashlib.sha256(f"{self._key}/{self._replaced}".encode()).digest()
        return int.from_bytes(digest[:8], "little")


class Player:
    """An act mode for one row at a time, whose random numbers are those of a seat."""

    def __init__(self, name: str, mode: Any, policy: Policy, memory_of: str = "") -> None:
        """`policy` is that of the rows, which the player gives unless it has a `memory_of` its own.

        That is a prefix of its memory columns among those of all players. Of a player with one, only the actions are
        wanted: its other columns may be those of another policy.
        """
        self.name, self.mode, self.policy = name, mode, policy
        self.gives_rows = not memory_of
        memory: Schema = getattr(mode, "memory", {})
        is_of_rows = self.gives_rows and memory == policy.memory_columns()
        prefix = "" if is_of_rows else f"{memory_of or 'own'}/"
        self.memory_names = {column: prefix + column for column in memory}
        self.memory = {prefix + column: kind for column, kind in memory.items()}

    def seat(self, seed: int, seat: int) -> Seat:
        """The player's seat at the beginning of a match with this seed."""
        return Seat(self, MatchGenerators(seed, seat).generators(act_mode_state(self.mode)))

    def act(self, state: Any, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        """The columns of one step (1, …), by one observation (1, …)."""
        load_act_mode_state(self.mode, state)
        own = {column: memory[name] for column, name in self.memory_names.items()}
        output: dict[str, Array] = self.mode.forward(obs, own) if own else self.mode.forward(obs)
        action = np.asarray(output["action"])
        if action.shape != (1, *self.policy.action.shape):
            raise ValueError(
                f"the player '{self.name}' outputs an action as {action.dtype}{list(action.shape)} for 1 observation; "
                f"it must be {self.policy.action} for each"
            )
        after = {name: output[column] for column, name in self.memory_names.items()}
        others: Iterable[tuple[str, Array]]
        others = output.items() if self.gives_rows else [("action", output["action"])]
        return {**{n: a for n, a in others if n not in self.memory_names}, **after}


@dataclass(slots=True)
class Seat:
    """The seat of one agent in one match: who acts there, and the state of its random numbers."""

    player: Player
    state: Any

    def act(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        """The columns of the next step (1, …)."""
        output = self.player.act(self.state, obs, memory)
        self.state = act_mode_state(self.player.mode)
        return output


class MatchMode:
    """The act mode of all rows of some envs: it lets each row's player act.

    Its memory is that of the rows, and that of all players, which their caller keeps: of an agent that acts in turn, it
    is that of its last turn.
    """

    def __init__(self, policy: Policy, memory_of_players: Schema, rows: int) -> None:
        """The columns are those of `policy`. Columns that a player does not output are zeros."""
        of_rows = policy.memory_columns()
        self.memory = {**of_rows, **memory_of_players}
        self.memory_beside_rows = self.memory.keys() - of_rows.keys()
        self._columns = {**policy.collect_columns(), "action": policy.action, **self.memory}
        self.seats: list[Seat | None] = [None] * rows
        self.ids: Array | None = None  # the rows that act next; None: all

    def load(self, state: State) -> None:
        """Players have weights of their own."""

    def forward(self, obs: Array, memory: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Map observations (B, …) of the rows `ids`, and their memory, to the columns (B, …)."""
        rows = range(len(obs)) if self.ids is None else self.ids.tolist()
        columns = {n: np.zeros((len(rows), *c.shape), c.dtype) for n, c in self._columns.items()}
        remembered = memory or {}
        for k, row in enumerate(rows):
            seat = self.seats[row]
            assert seat is not None  # every row that acts is in a match
            known = {name: remembered[name][k : k + 1].copy() for name in seat.player.memory}
            output = seat.act(obs[k : k + 1].copy(), known)
            for name in columns.keys() & output.keys():
                columns[name][k] = output[name][0]
        return columns
