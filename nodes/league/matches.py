"""What a league tells collectors, as a `State`: the matches to play next, and the weights of the opponents in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.state import State

# Opponents are numbered: from 0 on the players that learn, in the order of the league; downwards from FIRST_SCRIPTED
# the collector's scripted ones.
ITSELF = -1  # the player that learns, with the weights with which it plays
FIRST_SCRIPTED = -2

PLAYER_SETTING = (
    "player/"  # before the names of players, in the settings that `flowrl check` compares
)

PLAYERS_FOLDER = "league/players"  # in the run's folder: the weights of versions of players

_TABLE, _WEIGHTS = "table/", "weights/"


class Assignment(NamedTuple):
    """A match to play: the opponent, the version of its weights, and the side of the player that learns."""

    opponent: int
    version: int
    side: int


def versioned_name(name: str, version: int) -> str:
    """How a version of a player is written everywhere."""
    return f"{name}@{version}"


Version = tuple[int, int]  # an opponent's number, and the version of its weights


def matches_state(
    tables: Mapping[str, list[Assignment]], weights: Mapping[Version, State]
) -> State:
    """Make the state from the matches of each player, by name, and the weights of the opponents in them."""
    arrays: dict[str, Array] = {
        _TABLE + name: np.array(table, np.int64).reshape(-1, len(Assignment._fields))
        for name, table in tables.items()
    }
    command: dict[str, float] = {}
    for (opponent, version), state in weights.items():
        prefix = _prefix(opponent, version)
        arrays |= {prefix + name: array for name, array in state.arrays.items()}
        command |= {prefix + name: value for name, value in state.command.items()}
    return State(arrays, command)


def assignments(state: State, player: str | None) -> list[Assignment]:
    """The matches of a player (None: the only one); none before the league's first firing."""
    names = [n.removeprefix(_TABLE) for n in state.arrays if n.startswith(_TABLE)]
    name = names[0] if player is None and len(names) == 1 else player
    if name not in names:
        what = "a collector does not say which player it plays for"
        if player is not None:
            what = f"the league has no player '{player}' that learns"
        raise ValueError(f"{what}; give it `player: {' or '.join(names)}`")
    return [Assignment(*row) for row in state.arrays[_TABLE + name].tolist()]


def opponent_weights(state: State, opponent: int, version: int) -> State:
    """The weights of an opponent."""
    prefix = _prefix(opponent, version)
    arrays = {n.removeprefix(prefix): a for n, a in state.arrays.items() if n.startswith(prefix)}
    command = {n.removeprefix(prefix): v for n, v in state.command.items() if n.startswith(prefix)}
    return State(arrays, command, version)


def _prefix(opponent: int, version: int) -> str:
    return f"{_WEIGHTS}{opponent}@{version}/"
