"""What a league has found out: its players with ratings, who won against whom, and who became whose ancestor."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flowrl.core.errors import UsageError
from flowrl.core.text_table import WIDTH, table_lines
from flowrl.core.wording import count_text
from flowrl.ratings.elo import EloRating, elo_ratings
from flowrl.ratings.games import Game, GameCounts, count_games
from flowrl.ratings.trueskill import Skill, trueskill_ratings
from flowrl.render.dot import quoted
from flowrl.runs.league_files import PAYOFF_FILE, LeagueFiles, ListedPlayer, PayoffRow
from flowrl.runs.rating_tables import (
    game_sums,
    interval_text,
    shortened_name,
)

FIXED_SPACE = "\u00a0"
SHOWN_PLAYERS = 20  # the best of them, unless all are asked for
FILLS = {  # by the kind of a player, in DOT
    "main": "#dbe7fb",
    "main_exploiter": "#fdebd0",
    "league_exploiter": "#fbdcd7",
    "historical": "#eceff1",
}


@dataclass(frozen=True)
class LeagueReport:
    """The ratings and the ancestry of a league's players."""

    files: LeagueFiles

    @cached_property
    def players(self) -> Mapping[str, ListedPlayer]:
        """The rated players by label."""
        return self.files.listed()

    @cached_property
    def games(self) -> Sequence[Game]:
        return self.files.games()

    @cached_property
    def counts(self) -> GameCounts:
        return count_games(self.games)

    @cached_property
    def elos(self) -> Mapping[str, EloRating]:
        return elo_ratings(self.counts)

    @cached_property
    def skills(self) -> Mapping[str, Skill]:
        return trueskill_ratings(self.games)

    @cached_property
    def ranking(self) -> list[str]:
        """All players, the best first, and those without a rating at the end."""
        rated = sorted(self.elos.values(), key=lambda rating: (-rating.elo, rating.player))
        names = [rating.player for rating in rated]
        return [*names, *(name for name in self.players if name not in self.elos)]

    @property
    def self_play(self) -> int:
        """The number of games that a player has played against itself."""
        return sum(game.player == game.opponent for game in self.games)

    def notes(self) -> list[str]:
        """What limits the ratings, in sentences."""
        groups = [group for group in self.counts.groups() if len(group) > 1]
        if len(groups) < 2:
            return []
        shown = "; ".join(_shortened_list(group) for group in groups)
        return [f"ratings of these groups cannot be compared, as no game joins them: {shown}"]

    @cached_property
    def main(self) -> str | None:
        """The newest version of the main player."""
        return self.files.main()

    def win_rate_against_main(self, player: str) -> float | None:
        return None if self.main in (None, player) else self.counts.win_rate(player, str(self.main))

    def as_dict(self) -> dict[str, Any]:
        names = self.counts.players
        games = self.counts.games
        return {
            "league": str(self.files.folder),
            "games": len(self.games),
            "self_play": self.self_play,
            "main": self.main,
            "players": [self._player_dict(label) for label in self.ranking],
            "pairs": [
                {
                    "player": names[a],
                    "opponent": names[b],
                    "games": int(games[a, b]),
                    "won": int(self.counts.wins[a, b]),
                    "drawn": int(self.counts.draws[a, b]),
                    "lost": int(self.counts.wins[b, a]),
                }
                for a in range(len(names))
                for b in range(a + 1, len(names))
                if games[a, b]
            ],
            "notes": self.notes(),
        }

    def _player_dict(self, label: str) -> dict[str, Any]:
        player, elo, skill = self.players[label], self.elos.get(label), self.skills.get(label)
        return {
            "player": label,
            "name": player.name,
            "version": player.version,
            "kind": player.kind,
            "parent": player.parent,
            "firing": player.firing,
            "elo": elo and elo.elo,
            "low": elo and elo.low,
            "high": elo and elo.high,
            "trueskill_mean": skill and skill.mean,
            "trueskill_deviation": skill and skill.deviation,
            "against_main": self.win_rate_against_main(label),
            **game_sums(self.counts, label).as_dict(),
        }

    def text(self, every_player: bool = False) -> str:
        """The table of players and their ancestry, for a terminal."""
        listed = self.ranking if every_player else self.ranking[:SHOWN_PLAYERS]
        hidden = len(self.ranking) - len(listed)
        head = (
            f"{count_text(len(self.players), 'player')}, {count_text(len(self.games), 'game')}, of which "
            f"{self.self_play:,} against themselves"
        )
        parts = [head, self._table(listed)]
        if hidden:
            parts[-1] += f"\n… and {count_text(hidden, 'more player')} (--all lists them)"
        if self.main is not None:
            parts.append(f"'vs main' is the mean score against {self.main}.")
        shown = set(self.ranking) if every_player else self._with_ancestors(listed)
        tree = "\n".join(self._tree(shown))
        parts.append(f"who began as a copy of whom:\n{tree}")
        parts += [f"note: {note}" for note in self.notes()]
        return "\n\n".join(parts)

    def ancestry_dot(self) -> str:
        """The ancestry of the players as DOT: an arrow from each parent to those that began as copies of it."""
        lines = ["digraph league {", '  node [shape=box, style="rounded,filled", fontsize=11];']
        for label, player in self.players.items():
            elo = self.elos.get(label)
            about = [player.kind.replace("_", " ")] + ([f"Elo {elo.elo:.0f}"] if elo else [])
            text = quoted("\n".join([label, *filter(None, about)]))
            fill = quoted(FILLS.get(player.kind, "#ffffff"))
            lines.append(f"  {quoted(label)} [label={text}, fillcolor={fill}];")
        for label, player in self.players.items():
            if player.parent is not None:
                lines.append(f"  {quoted(player.parent)} -> {quoted(label)};")
        return "\n".join([*lines, "}"]) + "\n"

    def _table(self, labels: Sequence[str]) -> str:
        head = ["", "player", "kind", "Elo", "95 % interval", "TrueSkill", "games", "vs main"]
        rows = []
        for place, label in enumerate(labels, 1):
            elo, skill = self.elos.get(label), self.skills.get(label)
            against = self.win_rate_against_main(label)
            rows.append(
                [
                    f"{place}",
                    shortened_name(label),
                    self.players[label].kind.replace("_", " "),
                    f"{elo.elo:.0f}" if elo else "-",
                    interval_text(elo) if elo else "-",
                    f"{skill.mean:.1f} ± {skill.deviation:.1f}" if skill else "-",
                    f"{elo.games:,}" if elo else "0",
                    "-" if against is None else f"{against:.2f}",
                ]
            )
        return "\n".join(table_lines([head, *rows], "rll"))

    def _with_ancestors(self, labels: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for label in labels:
            name: str | None = label
            while name is not None and name in self.players and name not in found:
                found.add(name)
                name = self.players[name].parent
        return found

    def _tree(self, shown: set[str]) -> Iterator[str]:
        """The lines of the ancestry. A line goes on from parent to child as long as there is only one child."""
        children: dict[str | None, list[str]] = {}
        for label in self.players:
            if label in shown:
                parent = self.players[label].parent
                known = parent if parent in shown and parent != label else None
                children.setdefault(known, []).append(label)
        # the player, and what its first line and its further lines begin with
        left = [(root, "", "") for root in reversed(children.get(None, []))]
        while left:
            label, first, following = left.pop()
            chain = [label]
            while len(children.get(chain[-1], ())) == 1:
                chain += children[chain[-1]]
            text = " → ".join(map(self._described, chain))
            branches = children.get(chain[-1], [])
            beside = f"{following}{'│  ' if branches else '   '}"
            for line in textwrap.wrap(
                text, WIDTH, initial_indent=first, subsequent_indent=f"{beside} "
            ):
                yield line.replace(FIXED_SPACE, " ").rstrip()
            for child in reversed(branches):
                last = child == branches[-1]
                ahead = following + ("└─ " if last else "├─ ")
                left.append((child, ahead, following + ("   " if last else "│  ")))

    def _described(self, label: str) -> str:
        """A player in the ancestry, with its rating; its spaces keep a line from being broken there."""
        player, elo = self.players[label], self.elos.get(label)
        about = [f"{elo.elo:.0f}"] if elo else []
        if player.parent is not None and player.parent not in self.players:
            about.append(f"from {player.parent}")
        return f"{label} ({', '.join(about)})".replace(" ", FIXED_SPACE) if about else label


def row_of(files: LeagueFiles, number: int) -> PayoffRow:
    """Return a row of the payoff, counted from 1."""
    if not 1 <= number <= len(files.rows):
        has = f"{count_text(len(files.rows), 'row')}" if files.rows else "no row yet"
        raise UsageError(f"--replay {number}: {files.folder / PAYOFF_FILE} has {has}")
    return files.rows[number - 1]


def result_text(row: PayoffRow) -> str:
    """The result of a match, for a terminal."""
    returns = ", ".join(f"{value:g}" for value in row.returns)
    return f"score {row.score:g}, returns {returns}, {count_text(row.length, 'step')}"


def _shortened_list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
