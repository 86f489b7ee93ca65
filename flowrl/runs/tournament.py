"""Lets trained runs play against each other, each pair from both sides: `flowrl tournament`."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.checkpoint import SUFFIX
from flowrl.core.errors import NodeError, RunError, UsageError
from flowrl.core.facts import UnsoundError
from flowrl.core.project_modules import importable_modules
from flowrl.core.text_table import WIDTH
from flowrl.core.wording import count_text
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Graph
from flowrl.machine.forked_call import can_fork
from flowrl.machine.numerics import settled_numerics
from flowrl.ratings.elo import EloRating, elo_ratings
from flowrl.ratings.games import DRAW, LOSS, WIN, Game, GameCounts, count_games
from flowrl.runs.rating_tables import game_sums, rating_table, score_table
from flowrl.runs.trained_graph import find_trained_graph
from flowrl.runs.trained_policy import TrainedPolicy, policy_of_checkpoint

GAMES = "flowrl.nodes.league.two_sided_games"  # by name, because the engine imports no nodes
DEFAULT_GAMES = 50


@dataclass(frozen=True, slots=True)
class Entrant:
    """A trained policy that takes part, and the graph that it is from."""

    name: str
    checkpoint: Path
    checked: CheckedGraph
    policy: TrainedPolicy


@dataclass(frozen=True, slots=True)
class TournamentGame:
    """One game: who played on which side, the seed of the env's episode, and the result."""

    player: str  # on side 0
    opponent: str  # on side 1
    seed: int
    score: float  # of the player: 1 for a win, 0.5 for a draw, 0 for a loss
    returns: tuple[float, float]
    length: int


@dataclass(frozen=True, slots=True)
class Tournament:
    """All games of a tournament, and what follows from them."""

    entrants: tuple[str, ...]
    env: str
    games: tuple[TournamentGame, ...]
    games_of_side: int  # of each pair
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> GameCounts:
        games = [Game(game.player, game.opponent, game.score) for game in self.games]
        return count_games(games, self.entrants)

    def ratings(self) -> list[EloRating]:
        """Return the ratings, the best first."""
        return sorted(elo_ratings(self.counts).values(), key=lambda r: (-r.elo, r.player))

    def as_dict(self) -> dict[str, Any]:
        counts = self.counts
        return {
            "env": self.env,
            "seed": self.seed,
            "games_of_side": self.games_of_side,
            "ratings": [
                {
                    "player": r.player,
                    "elo": r.elo,
                    "low": r.low,
                    "high": r.high,
                    **game_sums(counts, r.player).as_dict(),
                }
                for r in self.ratings()
            ],
            "games": [
                {
                    "player": g.player,
                    "opponent": g.opponent,
                    "seed": g.seed,
                    "score": g.score,
                    "returns": list(g.returns),
                    "length": g.length,
                }
                for g in self.games
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        counts, ratings = self.counts, self.ratings()
        names = [rating.player for rating in ratings]
        return "\n".join(
            [
                f"{count_text(len(self.entrants), 'player')} in {self.env}, "
                f"{count_text(self.games_of_side, 'game')} of each pair from each side, seed {self.seed}",
                "",
                rating_table(ratings, counts),
                "",
                "the mean score of the row's player against the column's:",
                score_table(names, counts),
                *(f"\n{text}" for text in map(_note_text, self.notes)),
            ]
        )


def play_tournament(
    runs: Sequence[str], games: int = DEFAULT_GAMES, seed: int = 0, explores: bool = False
) -> Tournament:
    """Let the trained policies of runs play `games` games of each pair from each side, in the env of the first run.

    A run is named as for `flowrl eval`. `RUN:CHECKPOINT` names a checkpoint of it, or a player of its league, such as
    `last:main@3`. All pairs play the same episodes. With `explores`, policies act as their collectors do.
    """
    if len(runs) < 2:
        raise UsageError(
            f"tournament: {count_text(len(runs), 'run')} cannot play; name two or more"
        )
    entrants = [read_entrant(text) for text in runs]
    _require_different_names(entrants)
    first = entrants[0]
    env, graph = env_of(first), first.checked.graph
    played: list[TournamentGame] = []
    with settled_numerics(graph.torch_threads), importable_modules(graph.folders):
        with _explained(first, "making its env"):
            made = importlib.import_module(GAMES).TwoSidedGames(env, games, seed, explores)
        try:
            for entrant in entrants:
                with _explained(entrant, "joining the games"):
                    made.require_fit(entrant.policy)
            for (i, a), (j, b) in combinations(enumerate(entrants), 2):
                for (x, one), (y, other) in (((i, a), (j, b)), ((j, b), (i, a))):
                    with _explained(one, f"playing against {other.name}"):
                        results = made.play(one.policy, other.policy, f"{x}/{y}")
                    played += _games_of(one.name, other.name, results)
        finally:
            made.close()
    return Tournament(
        tuple(entrant.name for entrant in entrants),
        _env_name(env),
        tuple(played),
        games,
        seed,
        (*_differences(entrants, env), *_repetitions(played, explores)),
    )


def read_entrant(text: str) -> Entrant:
    """Make the policy of `RUN` or `RUN:CHECKPOINT`."""
    run, _, checkpoint = (text, "", "") if Path(text).exists() else text.partition(":")
    trained = find_trained_graph(run)
    path = _league_player(trained.run, checkpoint) or trained.checkpoint(checkpoint or None)
    loaded = load_graph(trained.graph)
    checked = check(loaded, in_fork=can_fork(), elsewhere=loaded.graph.nodes).require_sound()
    name = trained.run.absolute().name if trained.run is not None else trained.name
    named = f"{name}:{checkpoint}" if checkpoint else name
    return Entrant(named, path, checked, policy_of_checkpoint(checked, path))


def env_of(entrant: Entrant) -> Any:
    """Return the env in which a graph's policy is evaluated, or else the first one of its nodes."""
    graph: Graph = entrant.checked.graph
    names = [*graph.nodes_of_role("evaluator"), *graph.nodes]
    for name in names:
        env = getattr(graph.nodes[name].config, "env", None)
        if env is not None:
            return env
    raise RunError(f"{entrant.name}: no node of its graph has an env to play in")


def _league_player(run: Path | None, checkpoint: str) -> Path | None:
    """The file of a player of a run's league, such as main@3."""
    if run is None or "@" not in checkpoint:
        return None
    path = run / "league" / "players" / f"{checkpoint}{SUFFIX}"
    if not path.is_file():
        known = sorted(p.stem for p in path.parent.glob(f"*{SUFFIX}"))
        shown = f"known: {', '.join(known[-8:])}" if known else "the run has saved none"
        raise UsageError(f"{run}: there is no player {checkpoint} in its league; {shown}")
    return path


def _require_different_names(entrants: Sequence[Entrant]) -> None:
    names = [entrant.name for entrant in entrants]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"tournament: {name} is named twice; name different runs, or different checkpoints as {name}:CHECKPOINT"
            )


@contextmanager
def _explained(entrant: Entrant, doing: str) -> Iterator[None]:
    """Raise an error that names the entrant where a node's code fails."""
    try:
        yield
    except UnsoundError as error:
        raise RunError(f"{entrant.name}: {error}") from error
    except Exception as error:
        raise NodeError(entrant.name, doing, error) from error


def _games_of(player: str, opponent: str, results: Sequence[Any]) -> list[TournamentGame]:
    return [
        TournamentGame(
            player, opponent, game.seed, score_of(*game.returns), game.returns, game.length
        )
        for game in results
    ]


def score_of(own_return: float, other_return: float) -> float:
    """Return the score of a game: who has the higher return has won."""
    if own_return == other_return:
        return DRAW
    return WIN if own_return > other_return else LOSS


def _note_text(note: str) -> str:
    return textwrap.fill(f"note: {note}", WIDTH, break_long_words=False, break_on_hyphens=False)


def _repetitions(played: Sequence[TournamentGame], explores: bool) -> Iterator[str]:
    """A note if no pair has played two different games, so that more games say no more than one."""
    first: dict[tuple[str, str], TournamentGame] = {}
    for game in played:
        known = first.setdefault((game.player, game.opponent), game)
        if replace(game, seed=known.seed) != known:
            return
    if len(played) > len(first):
        remedy = "" if explores else "; --explore lets policies draw their actions"
        yield (
            "every game of a pair from a side went the same way, so more of them say no more than one, and the "
            f"intervals are too short{remedy}"
        )


def _env_name(env: Any) -> str:
    return str(getattr(getattr(env, "config", None), "id", None) or getattr(env, "type", env))


def _differences(entrants: Sequence[Entrant], env: Any) -> Iterator[str]:
    """A note about each entrant that was trained in an env with other settings."""
    for entrant in entrants[1:]:
        own = env_of(entrant)
        if (own.type, own.config) != (env.type, env.config):
            yield f"{entrant.name} was trained in an env with other settings than those of {entrants[0].name}"
