"""The results of games between two players, as ratings are computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flowrl.core.batch import Array

WIN, DRAW, LOSS = 1.0, 0.5, 0.0
SCORES = (WIN, DRAW, LOSS)


@dataclass(frozen=True, slots=True)
class Game:
    """Two players, and the score of the first one: 1 for a win, 0.5 for a draw, 0 for a loss."""

    player: str
    opponent: str
    score: float

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise ValueError(
                f"{self.player} against {self.opponent}: the score is {self.score}; expected 1, 0.5 or 0"
            )


@dataclass(frozen=True)
class GameCounts:
    """How many games each pair of players has won and drawn; games against oneself are left out."""

    players: tuple[str, ...]
    wins: Array  # (N, N): of the player of the row against that of the column
    draws: Array  # (N, N), symmetric

    @cached_property
    def games(self) -> Array:
        """The games of each pair (N, N), symmetric."""
        total: Array = self.wins + self.wins.T + self.draws
        return total

    @cached_property
    def index(self) -> dict[str, int]:
        """The row and column of each player."""
        return {player: k for k, player in enumerate(self.players)}

    def win_rate(self, player: str, opponent: str) -> float | None:
        """Return the player's mean score against the opponent; None without a game."""
        a, b = self.index.get(player), self.index.get(opponent)
        if a is None or b is None:
            return None
        games = float(self.games[a, b])
        return float(self.wins[a, b] + self.draws[a, b] / 2) / games if games else None

    def groups(self) -> list[list[str]]:
        """Return the players in groups between which there was no game, in the order of their first players."""
        met = self.games > 0
        left, found = list(range(len(self.players))), []
        while left:
            group, newest = {left[0]}, {left[0]}
            while newest:
                reached = set(np.flatnonzero(met[sorted(newest)].any(axis=0)).tolist())
                newest = reached - group
                group |= newest
            found.append([self.players[k] for k in sorted(group)])
            left = [k for k in left if k not in group]
        return found


def count_games(games: Iterable[Game], players: Sequence[str] = ()) -> GameCounts:
    """Count the games of each pair. The players are these, and then others in the order of their first games."""
    listed = list(games)
    names = dict.fromkeys([*players, *(name for g in listed for name in (g.player, g.opponent))])
    index = {name: k for k, name in enumerate(names)}
    wins, draws = np.zeros((2, len(index), len(index)))
    for game in listed:
        a, b = index[game.player], index[game.opponent]
        if a == b:
            continue
        if game.score == DRAW:
            draws[a, b] += 1
            draws[b, a] += 1
        elif game.score == WIN:
            wins[a, b] += 1
        else:
            wins[b, a] += 1
    return GameCounts(tuple(names), wins, draws)
