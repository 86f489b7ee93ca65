"""The league: it decides who plays whom, keeps earlier versions of players, and writes down every result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, model_validator

from flowrl.core.batch import Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.errors import shortened_repr
from flowrl.core.node import Facts, Node, Surroundings, UnsoundError
from flowrl.core.ports import In, StateIn, StateOut
from flowrl.core.state import State
from flowrl.nodes.league.history import PlayerHistory, loaded_weights, saved_weights
from flowrl.nodes.league.matches import (
    FIRST_SCRIPTED,
    ITSELF,
    PLAYER_SETTING,
    PLAYERS_FOLDER,
    Assignment,
    Version,
    matches_state,
    versioned_name,
)
from flowrl.nodes.league.matchmaking import Weighting, WinRates, opponent_probabilities

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal["main", "main_exploiter", "league_exploiter"]


def _checked_iters(value: Any) -> Any:
    each = value.values() if isinstance(value, Mapping) else [value]
    if not all(type(one) is int and one >= 1 for one in each):
        raise ValueError(
            f"{shortened_repr(value)} is neither a number of train iterations from 1, nor one for each player, "
            "such as {main: 10, hunter: 20}"
        )
    return value


# Train iterations: of all players, or of each by its name, as algorithms do more or fewer of them for a token.
Iters = Annotated[int | dict[str, int], BeforeValidator(_checked_iters)]

PAYOFF_FILE, PLAYERS_FILE = "league/payoff.jsonl", "league/players.jsonl"
RESULTS, RESETS = "_results", "_resets"  # the ends of the names of a player's ports

# A main player that an exploiter beats less often than this is played through its earlier versions, as easier targets.
LEAST_WIN_RATE = 0.1
# An earlier version that a main player beats less often than this must be beaten again.
VERIFIED_WIN_RATE = 0.7

# opponents, by number and version, with their names in the win rates
Pool = list[tuple[Version, str]]


class League(Node):
    """Chooses the matches of players that learn, and keeps versions of them as opponents (Vinyals et al. 2019).

    Each player NAME has the ports NAME (its weights), NAME_results (of its matches) and NAME_resets (for the learner of
    an exploiter). All get their matches from `matches`.
    """

    may_end_run = False
    matches = StateOut("matches", about="the next matches of all players, and the opponents")

    class Config(BaseConfig):
        players: dict[str, Kind] = param(
            {"main": "main"},
            "the players that learn, by name: `main` plays everyone, `main_exploiter` the main players, "
            "`league_exploiter` the earlier versions of all",
            min_length=1,
        )
        scripted: list[str] = param(
            [],
            "names of the `opponents` of each collector, in the same order; all play against them",
        )
        self_play: float = param(
            0.35, "the share of a main player's matches against itself and other main players", ge=0
        )
        pfsp: float = param(
            0.5, "the share against opponents that are chosen by win rates", ge=0, le=1
        )
        verification: float = param(
            0.15, "the share against earlier main players that it does not beat reliably", ge=0
        )
        weighting: Weighting = param(
            "squared", "how opponents are chosen by the win rate w: by (1-w)^2, w(1-w), or 1-w"
        )
        snapshot_every_iters: Iters | None = param(
            1000,
            "train iterations after which a version of a player is kept; one number, or one for each player by name",
        )
        snapshot_win_rate: float | None = param(
            None, "a version is also kept if it beats each opponent this often", gt=0.5, le=1
        )
        snapshot_least_iters: Iters = param(
            100,
            "train iterations between two versions that are kept by win rate; one number, or one for each player",
            only_with="snapshot_win_rate",
        )
        most_players: int = param(
            100, "versions that are kept as opponents; then the oldest one makes room", ge=1
        )
        decay: float = param(
            0.99, "the weight of a result after one more match of the pair", gt=0, le=1
        )
        prior_games: float = param(2.0, "drawn matches that each pair begins with", ge=0)
        table: int = param(64, "matches that are drawn for each player in a firing", ge=1)
        reset_exploiters: bool = param(
            True, "an exploiter of which a version was kept begins again with its first weights"
        )

        @model_validator(mode="after")
        def _check(self) -> Self:
            if not math.isclose(self.self_play + self.pfsp + self.verification, 1, abs_tol=1e-6):
                raise ValueError(
                    f"the shares self_play {self.self_play:g}, pfsp {self.pfsp:g} and verification "
                    f"{self.verification:g} of matches do not sum to 1; give all three"
                )
            names = [*self.players, *self.scripted]
            wrong = [name for name in names if not name.isidentifier()]
            if wrong:
                raise ValueError(f"'{wrong[0]}' is no name of letters, digits and _")
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two players have the name '{twice[0]}'; rename one")
            for key in ("snapshot_every_iters", "snapshot_least_iters"):
                given = getattr(self, key)
                if isinstance(given, Mapping) and given.keys() != self.players.keys():
                    raise ValueError(
                        f"{key} has numbers for {', '.join(given) or 'nobody'}, and the players are "
                        f"{', '.join(self.players)}; give one for each, or one number for all"
                    )
            if "main" not in self.players.values():
                raise ValueError(
                    "no player is of the kind `main`, which exploiters play against; add one: "
                    "`players: {main: main, …}`"
                )
            return self

    @classmethod
    def configured(cls, config: Any) -> type[Self]:
        ports: dict[str, Any] = {}
        for name, kind in config.players.items():
            ports[name] = StateIn("weights", about=f"of the learner of {name}")
            ports[name + RESULTS] = In("match_results", about=f"of the collector of {name}")
            if kind != "main":
                ports[name + RESETS] = StateOut(
                    "resets", about="how often the learner has to begin again"
                )
        return cls.with_ports(ports)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        for name in config.players:
            schema = surroundings.inputs.get(name + RESULTS)
            if schema:
                _check_scripted(config, name, schema["opponent"].low)
            _check_resets(config, name, surroundings.connected_outputs)
        players = frozenset(PLAYER_SETTING + name for name in config.players)
        carried = {name: name for name in config.players}
        return Facts(settings={"matches": players}, carries={"matches": carried})

    @classmethod
    def results_port(cls, player: str) -> str:
        """The name of the port for the results of a player."""
        return player + RESULTS

    @classmethod
    def replay_match(
        cls,
        config: Any,
        env: Any,
        collector_config: Any,
        opponent: int,
        side: int,
        seed: int,
        weights: State,
        opponent_weights: State | None,
    ) -> dict[str, Any]:
        """Play a match of a league with this config again, and return its row of results.

        `opponent` is the index of a player that learns, or without `opponent_weights` that of a scripted one.
        """
        from flowrl.nodes.league.replay import replay_matches

        number = FIRST_SCRIPTED - opponent if opponent_weights is None else opponent
        version = 0 if opponent_weights is None else opponent_weights.version
        known = {} if opponent_weights is None else {(number, version): opponent_weights}
        match = Assignment(number, version, side), seed
        results = replay_matches(env, collector_config, [match], weights, known, [*config.players])
        return {name: results[name][0].tolist() for name in results}

    def setup(self) -> None:
        c = self.config
        self._names: list[str] = list(c.players)
        self._kinds: list[Kind] = [c.players[name] for name in self._names]
        count = len(self._names)
        self._rng = self.ctx.rng("matches")
        self._history = PlayerHistory(c.most_players)
        self._rates = WinRates(c.decay, c.prior_games)
        self._weights: list[State | None] = [None] * count
        self._firings = 0
        self._parents: list[str] = [""] * count  # the newest version of each that was kept
        self._firsts: list[str] = [""] * count  # and the first one
        self._kept_at = [0] * count  # the versions of these
        self._resets = [0] * count  # how often the learner of each has to begin again
        # the version with which the learner of each has begun; None: it has to begin again, and has not yet
        self._begun_at: list[int | None] = [0] * count
        self._state = matches_state({name: [] for name in self._names}, {})

    def fire(self, *inputs: Any) -> None:
        """Take in the results of all players, keep versions that are due, and draw the next matches."""
        for number, (weights, results) in enumerate(zip(inputs[::2], inputs[1::2], strict=True)):
            if self._weights[number] is None:
                self._begin(number, weights)
            self._weights[number] = weights
            has_begun_again = weights.command.get("resets", 0) == self._resets[number]
            if self._begun_at[number] is None and has_begun_again:
                self._begun_at[number] = self._kept_at[number] = weights.version
            self._take_in(number, results)
        for number in range(len(self._names)):
            self._keep_if_due(number)
        self._firings += 1
        self._draw_matches(_sides_of(inputs))

    def state(self, port: str) -> State:
        """The next matches, or how often the learner of a player has to begin again."""
        if port == "matches":
            return self._state
        number = self._names.index(port.removesuffix(RESETS))
        return State({}, {"resets": float(self._resets[number])})

    # results

    def _take_in(self, number: int, results: Batch) -> None:
        name, lines = self._names[number], []
        columns = {key: results[key].tolist() for key in results}
        for k in range(len(results)):
            row = {key: values[k] for key, values in columns.items()}
            opponent = self._name_of(row["opponent"], number)
            begun_at = self._begun_at[number]
            is_current = begun_at is not None and row["version"] >= begun_at
            if row["opponent"] != ITSELF and is_current:
                rated = self._rated_name(opponent, row["opponent_version"])
                self._rates.add(name, rated, row["score"])
            lines.append(
                json.dumps({"player": name, **row, "opponent": opponent, "firing": self._firings})
            )
        self.ctx.append_lines(PAYOFF_FILE, lines)
        own = np.array(columns["opponent"]) != ITSELF
        metrics = {f"{name}/kept": float(sum(one.number == number for one in self._history))}
        if own.any():
            metrics[f"{name}/score_mean"] = float(results["score"][own].mean())
        self.ctx.metrics(metrics)

    def _name_of(self, opponent: int, player: int) -> str:
        if opponent <= FIRST_SCRIPTED:
            return str(self.config.scripted[FIRST_SCRIPTED - opponent])
        return self._names[player if opponent == ITSELF else opponent]

    def _rated_name(self, opponent: str, version: int) -> str:
        """The name of an opponent in the win rates: NAME@VERSION of one that was kept, else NAME."""
        full = versioned_name(opponent, version)
        return full if self._history.knows(full) else opponent

    # versions that are kept

    def _begin(self, number: int, weights: State) -> None:
        """Write down a player with its first weights. Those of a main player are the first opponent of all."""
        if number == 0:
            for name in self.config.scripted:
                self._write_player(name, 0, "scripted", None)
        name, kind = self._names[number], self._kinds[number]
        full = versioned_name(name, weights.version)
        self._write_player(name, weights.version, kind, None)
        self._save(full, weights)
        if kind == "main":
            self._history.add(number, full, weights)
        self._parents[number] = self._firsts[number] = full
        self._kept_at[number] = weights.version

    def _keep_if_due(self, number: int) -> None:
        c, weights = self.config, self._newest(number)
        if self._begun_at[number] is None:
            return
        trained_iters, name = weights.version - self._kept_at[number], self._names[number]
        every, least, rate = c.snapshot_every_iters, c.snapshot_least_iters, c.snapshot_win_rate
        is_due = every is not None and trained_iters >= _iters_of(every, name)
        if not is_due and rate is not None and trained_iters >= _iters_of(least, name):
            rates = self._rates_against(number, self._targets(number))
            is_due = bool(len(rates)) and bool((rates >= rate).all())
        if is_due:
            self._keep(number, weights)

    def _keep(self, number: int, weights: State) -> None:
        name = self._names[number]
        full = versioned_name(name, weights.version)
        self._write_player(name, weights.version, "historical", self._parents[number])
        self._save(full, weights)
        if (dropped := self._history.add(number, full, weights)) is not None:
            self._rates.forget(dropped.name)
        self._parents[number], self._kept_at[number] = full, weights.version
        if self._kinds[number] != "main" and self.config.reset_exploiters:
            self._resets[number] += 1
            self._rates.forget(name)
            self._parents[number] = self._firsts[number]
            self._begun_at[number] = None

    def _write_player(self, name: str, version: int, kind: str, parent: str | None) -> None:
        row = {"name": name, "version": version, "kind": kind, "parent": parent}
        self.ctx.append_lines(PLAYERS_FILE, [json.dumps({**row, "firing": self._firings})])

    def _save(self, name: str, weights: State) -> None:
        self.ctx.save_checkpoint(name, replace(weights, whole=None), folder=PLAYERS_FOLDER)

    # matches

    def _draw_matches(self, sides: int) -> None:
        tables = {name: self._table(number, sides) for number, name in enumerate(self._names)}
        wanted = {(a.opponent, a.version) for table in tables.values() for a in table}
        known = {(one.number, one.version): one.state for one in self._history}
        for number in range(len(self._names)):
            newest = self._newest(number)
            known[number, newest.version] = newest
        weights = {key: known[key] for key in sorted(wanted) if key in known}
        self._state = matches_state(tables, weights)

    def _table(self, number: int, sides: int) -> list[Assignment]:
        draw = self._draw_for_main if self._kinds[number] == "main" else self._draw_for_exploiter
        first = int(self._rng.integers(sides))
        return [
            Assignment(*draw(number), side=(first + k) % sides) for k in range(self.config.table)
        ]

    def _draw_for_main(self, number: int) -> Version:
        c, branch = self.config, self._rng.random()
        if branch < c.pfsp:
            return self._draw_by_rates(number, self._pool(), c.weighting)
        if branch < c.pfsp + c.verification:
            pool = [one for one in self._pool(mains_only=True) if one[0][0] >= 0]
            rates = self._rates_against(number, pool)
            unsure = [one for one, w in zip(pool, rates, strict=True) if w < VERIFIED_WIN_RATE]
            if unsure:
                return self._draw_by_rates(number, unsure, "squared")
        return self._draw_main(number)

    def _draw_main(self, number: int) -> Version:
        """One of the newest main players, or the player itself."""
        mains = [n for n, kind in enumerate(self._kinds) if kind == "main"]
        chosen = mains[int(self._rng.integers(len(mains)))]
        if chosen == number:
            return ITSELF, self._newest(number).version
        return chosen, self._newest(chosen).version

    def _draw_for_exploiter(self, number: int) -> Version:
        if self._kinds[number] == "league_exploiter":
            return self._draw_by_rates(number, self._pool(), self.config.weighting)
        main = self._draw_main(number)
        if self._rates.win_rate(self._names[number], self._names[main[0]]) >= LEAST_WIN_RATE:
            return main
        pool = [one for one in self._pool(mains_only=True) if one[0][0] == main[0]]
        return self._draw_by_rates(number, pool, "variance") if pool else main

    def _draw_by_rates(self, number: int, pool: Pool, weighting: Weighting) -> Version:
        chances = opponent_probabilities(self._rates_against(number, pool), weighting)
        return pool[int(self._rng.choice(len(pool), p=chances))][0]

    def _pool(self, mains_only: bool = False) -> Pool:
        """The players that were kept and, unless `mains_only`, the scripted ones."""
        kept: Pool = [
            ((one.number, one.version), one.name)
            for one in self._history
            if not mains_only or self._kinds[one.number] == "main"
        ]
        if mains_only:
            return kept
        scripted = enumerate(self.config.scripted)
        return [*kept, *(((FIRST_SCRIPTED - k, 0), name) for k, name in scripted)]

    def _targets(self, number: int) -> Pool:
        """The opponents that a player must beat so that a version of it is kept by win rate."""
        if self._kinds[number] != "main_exploiter":
            return self._pool()
        mains = [n for n, kind in enumerate(self._kinds) if kind == "main"]
        return [((n, self._newest(n).version), self._names[n]) for n in mains]

    def _rates_against(self, number: int, pool: Pool) -> Any:
        return self._rates.win_rates(self._names[number], [name for _, name in pool])

    def _newest(self, number: int) -> State:
        weights = self._weights[number]
        assert weights is not None  # every firing brings the weights of all
        return weights

    # saving

    def state_dict(self) -> dict[str, Any]:
        weights = [None if one is None else saved_weights(one) for one in self._weights]
        return {
            "rng": self._rng.bit_generator.state,
            "history": self._history.state_dict(),
            "rates": self._rates.state_dict(),
            "weights": weights,
            "firings": self._firings,
            "parents": list(self._parents),
            "firsts": list(self._firsts),
            "kept_at": list(self._kept_at),
            "begun_at": list(self._begun_at),
            "resets": list(self._resets),
            "state": saved_weights(self._state),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._history.load_state_dict(state["history"])
        self._rates.load_state_dict(state["rates"])
        self._weights = [None if one is None else loaded_weights(one) for one in state["weights"]]
        self._firings = int(state["firings"])
        self._parents, self._firsts = list(state["parents"]), list(state["firsts"])
        self._kept_at, self._begun_at = list(state["kept_at"]), list(state["begun_at"])
        self._resets = list(state["resets"])
        self._state = loaded_weights(state["state"])


def _iters_of(given: Iters, player: str) -> int:
    """The train iterations of a player, of whom each may have a number of its own."""
    return given[player] if isinstance(given, dict) else given


def _sides_of(inputs: Sequence[Any]) -> int:
    results: Batch = inputs[1]
    return int(results["returns"].shape[1])


def _check_resets(config: Any, player: str, connected: frozenset[str]) -> None:
    """Refuse an exploiter whose learner would not be told when to begin again."""
    is_reset = config.players[player] != "main" and config.reset_exploiters
    if is_reset and player + RESETS not in connected:
        what = f"the learner of the exploiter {player} is not told when to begin again"
        hint = f"add an edge from '{player}{RESETS}' to `LEARNER.resets`, or give `reset_exploiters: false`"
        raise UnsoundError(what, hint, "players")


def _check_scripted(config: Any, player: str, lowest: Any) -> None:
    """Refuse a collector whose scripted opponents are not those that the league names."""
    found, named = FIRST_SCRIPTED + 1 - int(lowest), len(config.scripted)
    if found != named:
        what = f"the league names {named} scripted opponents, and the collector of {player} has {found}"
        hint = "give the league a name for each of the collector's `opponents`, in their order: `scripted: […]`"
        raise UnsoundError(what, hint, "scripted")
