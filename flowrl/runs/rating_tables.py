"""Ratings and the scores of pairs as tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flowrl.core.text_table import WIDTH, shortened_text, table_lines
from flowrl.ratings.elo import EloRating
from flowrl.ratings.games import GameCounts

LONGEST_NAME = 22  # the middle of a longer one is left out
SCORE_WIDTH = 6


@dataclass(frozen=True, slots=True)
class GameSums:
    """How many games a player has won, drawn and lost."""

    games: int
    won: int
    drawn: int
    lost: int

    @property
    def score(self) -> float:
        """The mean score of a game."""
        return (self.won + self.drawn / 2) / self.games if self.games else 0.5

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "score": self.score}


def game_sums(counts: GameCounts, player: str) -> GameSums:
    """Add the games of a player against all others."""
    k = counts.index.get(player)
    if k is None:
        return GameSums(0, 0, 0, 0)
    won, drawn, lost = (
        int(row.sum()) for row in (counts.wins[k], counts.draws[k], counts.wins[:, k])
    )
    return GameSums(won + drawn + lost, won, drawn, lost)


def rating_table(ratings: Sequence[EloRating], counts: GameCounts) -> str:
    """A line for each player: the rating with its interval, and the games."""
    head = ["", "player", "Elo", "95 % interval", "games", "won", "drawn", "lost", "score"]
    rows = []
    for place, rating in enumerate(ratings, 1):
        sums = game_sums(counts, rating.player)
        rows.append(
            [
                f"{place}",
                shortened_name(rating.player),
                f"{rating.elo:.0f}",
                interval_text(rating),
                *(f"{number:,}" for number in (sums.games, sums.won, sums.drawn, sums.lost)),
                f"{sums.score:.3f}",
            ]
        )
    return "\n".join(table_lines([head, *rows], "rl"))


def score_table(players: Sequence[str], counts: GameCounts) -> str:
    """The mean scores of all pairs; columns have the numbers of the lines. If there are many, tables follow below."""
    names = [shortened_name(player) for player in players]
    fitting = max((WIDTH - 4 - max(map(len, names))) // SCORE_WIDTH, 1)
    numbers = range(1, len(players) + 1)
    tables = []
    for first in range(0, len(players), fitting):
        columns = slice(first, first + fitting)
        rows = []
        for number, player in zip(numbers, players, strict=True):
            scores = (counts.win_rate(player, other) for other in players[columns])
            cells = ["-" if score is None else f"{score:.2f}" for score in scores]
            rows.append([f"{number}", names[number - 1], *cells])
        head = ["", "", *map(str, numbers[columns])]
        tables.append("\n".join(table_lines([head, *rows], "rl")))
    return "\n\n".join(tables)


def interval_text(rating: EloRating) -> str:
    return f"{rating.low:.0f} to {rating.high:.0f}"


def shortened_name(name: str) -> str:
    return shortened_text(name, LONGEST_NAME)
