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

_TABLE, _WEIGHTS = "table/", "weights/"  # table/NUMBER/NAME, weights/NUMBER@VERSION/…


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
    """Make the state from the matches of each player, by name, and the weights of the opponents in them.

    Tables are in the order of the players' numbers.
    """
    arrays: dict[str, Array] = {
        f"{_TABLE}{number}/{name}": np.array(table, np.int64).reshape(-1, len(Assignment._fields))
        for number, (name, table) in enumerate(tables.items())
    }
    command: dict[str, float] = {}
    for (opponent, version), state in weights.items():
        prefix = _prefix(opponent, version)
        arrays |= {prefix + name: array for name, array in state.arrays.items()}
        command |= {prefix + name: value for name, value in state.command.items()}
    return State(arrays, command)


def assignments(state: State, player: str | None) -> list[Assignment]:
    """The matches of a player (None: the only one); none before the league's first firing."""
    numbers = {name: number for number, name in player_names(state).items()}
    name = next(iter(numbers)) if player is None and len(numbers) == 1 else player
    if name not in numbers:
        what = "a collector does not say which player it plays for"
        if player is not None:
            what = f"the league has no player '{player}' that learns"
        raise ValueError(f"{what}; give it `player: {' or '.join(numbers)}`")
    return [Assignment(*row) for row in state.arrays[f"{_TABLE}{numbers[name]}/{name}"].tolist()]


def player_names(state: State) -> dict[int, str]:
    """The names of the players that learn, by their numbers."""
    tables = [name.removeprefix(_TABLE) for name in state.arrays if name.startswith(_TABLE)]
    found = {int(number): name for number, _, name in (table.partition("/") for table in tables)}
    return dict(sorted(found.items()))


def opponent_weights(state: State, opponent: int, version: int) -> State:
    """The weights of an opponent."""
    prefix = _prefix(opponent, version)
    arrays = {n.removeprefix(prefix): a for n, a in state.arrays.items() if n.startswith(prefix)}
    command = {n.removeprefix(prefix): v for n, v in state.command.items() if n.startswith(prefix)}
    return State(arrays, command, version)


def _prefix(opponent: int, version: int) -> str:
    return f"{_WEIGHTS}{opponent}@{version}/"
