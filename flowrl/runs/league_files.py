"""Reads what the league of a run has written: its players, and who played whom with which result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.core.errors import RunError, UsageError
from flowrl.ratings.games import SCORES, Game
from flowrl.runs.folder import read_jsonl

FOLDER, PAYOFF_FILE, PLAYERS_FILE = "league", "payoff.jsonl", "players.jsonl"
MAIN = "main"  # the kind of the players for which the others are


@dataclass(frozen=True, slots=True)
class ListedPlayer:
    """A version of a player, as the league has listed it."""

    name: str
    version: int
    kind: str  # main, main_exploiter, league_exploiter, historical, scripted or frozen
    parent: str | None  # NAME@VERSION of the version that it began as
    firing: int  # of the league

    @property
    def label(self) -> str:
        return player_label(self.name, self.version)


@dataclass(frozen=True, slots=True)
class PayoffRow:
    """A match: who played it, from which seed, and its result for the first player."""

    player: str
    version: int
    opponent: str
    opponent_version: int
    side: int  # of the player
    seed: int  # of the env's episode
    score: float  # 1 for a win, 0.5 for a draw, 0 for a loss
    returns: tuple[float, ...]  # of each side
    length: int
    firing: int  # of the league

    def __str__(self) -> str:
        player = player_label(self.player, self.version)
        opponent = player_label(self.opponent, self.opponent_version)
        return f"{player} against {opponent} from side {self.side}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class LeagueFiles:
    """What a league has written so far."""

    folder: Path
    players: tuple[ListedPlayer, ...]
    rows: tuple[PayoffRow, ...]

    def games(self) -> list[Game]:
        """Return the games between rated players, in their order.

        A player that learns has another version in nearly every match. A version that is not listed is rated together
        with the next one that is, or else with the newest version of that player.
        """
        rated = _RatedVersions(self)
        return [
            Game(
                rated.label(row.player, row.version),
                rated.label(row.opponent, row.opponent_version),
                row.score,
            )
            for row in self.rows
        ]

    def listed(self) -> dict[str, ListedPlayer]:
        """Return the rated players by label, in the order in which they were listed; then those that nobody listed."""
        found = {player.label: player for player in self.players}
        rated = _RatedVersions(self)
        for row in self.rows:
            for name, version in (
                (row.player, row.version),
                (row.opponent, row.opponent_version),
            ):
                label = rated.label(name, version)
                if label not in found:
                    found[label] = self._newest(name, int(label.rpartition("@")[2]), row.firing)
        return found

    def main(self) -> str | None:
        """Return the label of the newest version of the first main player."""
        names = [player.name for player in self.players if player.kind == MAIN]
        labels = [label for label, p in self.listed().items() if names and p.name == names[0]]
        return max(labels, key=lambda label: int(label.rpartition("@")[2])) if labels else None

    def _newest(self, name: str, version: int, firing: int) -> ListedPlayer:
        """The newest version of a player that learns, which follows its last listed one."""
        earlier = [p for p in self.players if p.name == name and p.version <= version]
        if not earlier:
            return ListedPlayer(name, version, "", None, firing)
        first, last = earlier[0], max(earlier, key=lambda p: p.version)
        return ListedPlayer(name, version, first.kind, last.label, firing)


class _RatedVersions:
    """Under which version each version of a player is rated."""

    def __init__(self, files: LeagueFiles) -> None:
        self._listed: dict[str, list[int]] = {}
        self._newest: dict[str, int] = {}
        for player in files.players:
            self._listed.setdefault(player.name, []).append(player.version)
        for row in files.rows:
            for name, version in ((row.player, row.version), (row.opponent, row.opponent_version)):
                self._newest[name] = max(version, self._newest.get(name, version))

    def label(self, name: str, version: int) -> str:
        later = [listed for listed in self._listed.get(name, ()) if listed >= version]
        return player_label(name, min(later) if later else self._newest[name])


def player_label(name: str, version: int) -> str:
    return f"{name}@{version}"


def read_league(run: Path) -> LeagueFiles:
    """Read the league of a run's folder. The run may be writing it."""
    folder = run / FOLDER
    if not (folder / PAYOFF_FILE).is_file() and not (folder / PLAYERS_FILE).is_file():
        raise UsageError(
            f"{run}: the run has no league, as there is no {FOLDER}/{PAYOFF_FILE}; name a run whose graph has a node "
            "of the type league"
        )
    return LeagueFiles(
        folder, tuple(_players(folder / PLAYERS_FILE)), tuple(_payoff(folder / PAYOFF_FILE))
    )


def _players(path: Path) -> list[ListedPlayer]:
    rows = read_jsonl(path) if path.is_file() else []
    found = []
    for number, row in enumerate(rows, 1):
        fields = _Fields(path, number, row)
        parent = None if row.get("parent") is None else fields.text("parent")
        numbers = fields.count("version"), fields.count("firing")
        found.append(
            ListedPlayer(fields.text("name"), numbers[0], fields.text("kind"), parent, numbers[1])
        )
    return found


def _payoff(path: Path) -> list[PayoffRow]:
    rows = read_jsonl(path) if path.is_file() else []
    found = []
    for number, row in enumerate(rows, 1):
        fields = _Fields(path, number, row)
        found.append(
            PayoffRow(
                fields.text("player"),
                fields.count("version"),
                fields.text("opponent"),
                fields.count("opponent_version"),
                fields.count("side"),
                fields.count("seed"),
                fields.number("score", SCORES),
                tuple(fields.numbers("returns")),
                fields.count("length"),
                fields.count("firing"),
            )
        )
    return found


class _Fields:
    """The values of a line of a file, each of which must have its type."""

    def __init__(self, path: Path, number: int, row: dict[str, Any]) -> None:
        self._path, self._number, self._row = path, number, row

    def text(self, name: str) -> str:
        value = self._row.get(name)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, "a text")
        return value

    def count(self, name: str) -> int:
        value = self._row.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "a whole number")
        return value

    def number(self, name: str, allowed: Sequence[float]) -> float:
        value = self._row.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value not in allowed:
            raise self._wrong(name, "1, 0.5 or 0")
        return float(value)

    def numbers(self, name: str) -> list[float]:
        values = self._row.get(name)
        if not isinstance(values, list):
            raise self._wrong(name, "a list of numbers")
        try:
            return [float(value) for value in values]  # JSON has NaN as a text
        except (TypeError, ValueError):
            raise self._wrong(name, "a list of numbers") from None

    def _wrong(self, name: str, expected: str) -> RunError:
        found = f"{self._row[name]!r:.40}" if name in self._row else "missing"
        return RunError(
            f"{self._path}:{self._number}: '{name}' is {found}; expected {expected}; the file is damaged"
        )
