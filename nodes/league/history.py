"""The versions of players that a league keeps as opponents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.state import State


@dataclass(frozen=True, slots=True)
class HistoricalPlayer:
    """A version of a player that learns, which does not learn any more."""

    number: int  # of the player that learns
    name: str  # NAME@VERSION
    state: State

    @property
    def version(self) -> int:
        return self.state.version


class PlayerHistory:
    """The newest historical players, at most so many; the oldest one makes room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._players: list[HistoricalPlayer] = []

    def __iter__(self) -> Iterator[HistoricalPlayer]:
        return iter(self._players)

    def add(self, number: int, name: str, weights: State) -> HistoricalPlayer | None:
        """Keep the weights of a version; return the player that made room."""
        state = State(weights.arrays, weights.command, weights.version)
        self._players.append(HistoricalPlayer(number, name, state))
        return self._players.pop(0) if len(self._players) > self._most else None

    def knows(self, name: str) -> bool:
        """Whether NAME@VERSION is one of them."""
        return any(player.name == name for player in self._players)

    def state_dict(self) -> list[dict[str, Any]]:
        return [
            {"number": one.number, "name": one.name, **saved_weights(one.state)}
            for one in self._players
        ]

    def load_state_dict(self, saved: list[Mapping[str, Any]]) -> None:
        self._players = [
            HistoricalPlayer(int(one["number"]), str(one["name"]), loaded_weights(one))
            for one in saved
        ]


def saved_weights(state: State) -> dict[str, Any]:
    """A version of weights as data for a snapshot."""
    arrays = {name: np.array(array) for name, array in state.arrays.items()}
    return {"arrays": arrays, "command": dict(state.command), "version": state.version}


def loaded_weights(saved: Mapping[str, Any]) -> State:
    """The version of weights that `saved_weights` returned."""
    arrays = {name: np.array(array) for name, array in saved["arrays"].items()}
    return State(arrays, dict(saved["command"]), int(saved["version"]))
