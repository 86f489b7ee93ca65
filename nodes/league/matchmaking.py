"""Chooses opponents by how often a player wins against them: prioritised fictitious self-play (Vinyals et al. 2019).

A win rate counts a draw as half a win. It forgets old games, because players learn, and few games pull it little from
one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.league.history import PlayerHistory
from flowrl.nodes.league.matches import FIRST_SCRIPTED, ITSELF, Assignment, Version

Weighting = Literal["squared", "variance", "linear"]
Kind = Literal["main", "main_exploiter", "league_exploiter"]  # of a player that learns

# A main player that an exploiter beats less often than this is played through its earlier versions, as easier targets.
LEAST_WIN_RATE = 0.1
# An earlier version that a main player beats less often than this must be beaten again.
VERIFIED_WIN_RATE = 0.7

# opponents, by number and version, with their names in the win rates
Pool = list[tuple[Version, str]]


def opponent_probabilities(
    win_rates: Sequence[float] | Array, weighting: Weighting = "squared"
) -> Array:
    """Return the probability of each opponent, against whom the player wins at these rates w.

    It is proportional to (1 − w)² for `squared`, to 1 − w for `linear`, which both prefer strong opponents, and to
    w(1 − w) for `variance`, which prefers equal ones. If all of these are 0, all opponents are equally probable.
    """
    w = np.asarray(win_rates, np.float64)
    if w.ndim != 1 or not len(w):
        raise ValueError(
            f"opponent_probabilities: the win rates have the shape {w.shape}; expected one for each of at least one "
            "opponent"
        )
    if not ((w >= 0) & (w <= 1)).all():
        raise ValueError(f"opponent_probabilities: win rates are from 0 to 1, and these are {w}")
    if weighting == "squared":
        weights = (1 - w) ** 2
    elif weighting == "linear":
        weights = 1 - w
    elif weighting == "variance":
        weights = w * (1 - w)
    else:
        raise ValueError(f"there is no weighting '{weighting}'; known: squared, variance, linear")
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(w), 1 / len(w))


class WinRates:
    """How often players win against each other, by their names."""

    def __init__(self, decay: float = 1.0, prior_games: float = 0.0) -> None:
        """After each further game of a pair, an earlier one counts `decay` times as much.

        A win rate is computed as if `prior_games` further games had been drawn. Without any game it is one half.
        """
        if not 0 < decay <= 1:
            raise ValueError(f"WinRates: decay is {decay}; expected more than 0, and at most 1")
        if not prior_games >= 0:
            raise ValueError(f"WinRates: prior_games is {prior_games}; expected 0 or more")
        self._decay, self._prior_games = decay, prior_games
        self._sums: dict[str, dict[str, tuple[float, float]]] = {}  # decayed games, decayed scores

    def add(self, player: str, opponent: str, score: float) -> None:
        """Count a game: 1 if the player has won, 0.5 for a draw, 0 if the opponent has won."""
        if not 0 <= score <= 1:
            raise ValueError(f"WinRates: the score is {score}; expected 1, 0.5 or 0")
        if player == opponent:
            return  # it wins as often as it loses
        for one, other, gained in ((player, opponent, score), (opponent, player, 1 - score)):
            games, scores = self._sums.setdefault(one, {}).get(other, (0.0, 0.0))
            self._sums[one][other] = (games * self._decay + 1, scores * self._decay + gained)

    def games(self, player: str, opponent: str) -> float:
        """Return the number of games of a pair, in which old games count less."""
        return self._sums.get(player, {}).get(opponent, (0.0, 0.0))[0]

    def win_rate(self, player: str, opponent: str) -> float:
        """Return how often the player wins against the opponent."""
        games, scores = self._sums.get(player, {}).get(opponent, (0.0, 0.0))
        if games + self._prior_games == 0:
            return 0.5
        return (scores + self._prior_games / 2) / (games + self._prior_games)

    def win_rates(self, player: str, opponents: Sequence[str]) -> Array:
        """Return how often the player wins against each opponent."""
        return np.array([self.win_rate(player, opponent) for opponent in opponents], np.float64)

    def forget(self, player: str) -> None:
        """Forget all games of a player, which begins again as another one."""
        self._sums.pop(player, None)
        for sums in self._sums.values():
            sums.pop(player, None)

    def state_dict(self) -> dict[str, dict[str, list[float]]]:
        """The decayed sums of each pair."""
        return {a: {b: [*sums] for b, sums in row.items()} for a, row in self._sums.items()}

    def load_state_dict(self, state: dict[str, dict[str, list[float]]]) -> None:
        """Continue from a state that `state_dict` returned."""
        self._sums = {
            a: {b: (float(games), float(scores)) for b, (games, scores) in row.items()}
            for a, row in state.items()
        }


class Matchmaker:
    """Draws the matches of the players of a league.

    A main player plays against itself and other main players, against opponents that are chosen by win rates, and again
    against earlier main players that it does not beat reliably. Exploiters play against main players, or against the
    earlier versions of all.
    """

    def __init__(
        self,
        config: Any,
        kinds: Sequence[Kind],
        history: PlayerHistory,
        win_rates: WinRates,
        rng: np.random.Generator,
    ) -> None:
        """`config` is that of the league, and `kinds` are those of its players, by their numbers."""
        self._config, self._kinds = config, kinds
        self._names: list[str] = list(config.players)
        self._history, self._win_rates, self._rng = history, win_rates, rng

    def draw_matches(self, number: int, newest: Sequence[Version], sides: int) -> list[Assignment]:
        """Draw the next matches of a player, on each side in turn. `newest` are the newest versions of all players."""
        draw = self._draw_for_main if self._kinds[number] == "main" else self._draw_for_exploiter
        first = int(self._rng.integers(sides))
        return [
            Assignment(*draw(number, newest), side=(first + k) % sides)
            for k in range(self._config.table)
        ]

    def rates_to_beat(self, number: int, newest: Sequence[Version]) -> Array:
        """Return the win rates of a player against those that it must beat, so that a version of it is kept."""
        if self._kinds[number] != "main_exploiter":
            return self._rates_against(number, self._pool())
        mains = [n for n, kind in enumerate(self._kinds) if kind == "main"]
        return self._rates_against(number, [(newest[n], self._names[n]) for n in mains])

    def _draw_for_main(self, number: int, newest: Sequence[Version]) -> Version:
        c, branch = self._config, self._rng.random()
        if branch < c.pfsp:
            return self._draw_by_rates(number, self._pool(), c.weighting)
        if branch < c.pfsp + c.verification:
            pool = self._kept_mains()
            rates = self._rates_against(number, pool)
            unsure = [one for one, w in zip(pool, rates, strict=True) if w < VERIFIED_WIN_RATE]
            if unsure:
                return self._draw_by_rates(number, unsure, "squared")
        main, version = self._draw_main(newest)
        return (ITSELF if main == number else main), version

    def _draw_for_exploiter(self, number: int, newest: Sequence[Version]) -> Version:
        if self._kinds[number] == "league_exploiter":
            return self._draw_by_rates(number, self._pool(), self._config.weighting)
        main = self._draw_main(newest)
        if self._win_rates.win_rate(self._names[number], self._names[main[0]]) >= LEAST_WIN_RATE:
            return main
        pool = [one for one in self._kept_mains() if one[0][0] == main[0]]
        return self._draw_by_rates(number, pool, "variance") if pool else main

    def _draw_main(self, newest: Sequence[Version]) -> Version:
        """Draw one of the newest main players."""
        mains = [n for n, kind in enumerate(self._kinds) if kind == "main"]
        return newest[mains[int(self._rng.integers(len(mains)))]]

    def _draw_by_rates(self, number: int, pool: Pool, weighting: Weighting) -> Version:
        chances = opponent_probabilities(self._rates_against(number, pool), weighting)
        return pool[int(self._rng.choice(len(pool), p=chances))][0]

    def _pool(self) -> Pool:
        """The players that were kept, and the scripted ones."""
        kept: Pool = [((one.number, one.version), one.name) for one in self._history]
        scripted = enumerate(self._config.scripted)
        return [*kept, *(((FIRST_SCRIPTED - k, 0), name) for k, name in scripted)]

    def _kept_mains(self) -> Pool:
        """The main players that were kept."""
        mains = [one for one in self._history if self._kinds[one.number] == "main"]
        return [((one.number, one.version), one.name) for one in mains]

    def _rates_against(self, number: int, pool: Pool) -> Array:
        return self._win_rates.win_rates(self._names[number], [name for _, name in pool])
