"""The league: it decides who plays whom, keeps earlier versions of players, and writes down every result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import In, StateIn, StateOut
from flowrl.core.state import State
from flowrl.nodes.league.history import PlayerHistory, loaded_weights, saved_weights
from flowrl.nodes.league.league_config import Iters, LeagueConfig
from flowrl.nodes.league.learning_player import SAVED_ATTRIBUTES, LearningPlayer
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
from flowrl.nodes.league.matchmaking import Matchmaker, WinRates

if TYPE_CHECKING:
    from typing_extensions import Self


PAYOFF_FILE, PLAYERS_FILE = "league/payoff.jsonl", "league/players.jsonl"
RESULTS, RESETS = "_results", "_resets"  # the ends of the names of a player's ports


class League(Node):
    """Chooses the matches of players that learn, and keeps versions of them as opponents (Vinyals et al. 2019).

    Each player NAME has the ports NAME (its weights), NAME_results (of its matches) and NAME_resets (for the learner of
    an exploiter). All get their matches from `matches`.
    """

    may_end_run = False
    matches = StateOut("matches", about="the next matches of all players, and the opponents")

    class Config(LeagueConfig):
        """What a user can say of a league."""

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
        results = {cls.results_port(name): name for name in config.players}
        return Facts(
            settings={"matches": players}, carries={"matches": carried}, results_of=results
        )

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
        self._players = [LearningPlayer(name, kind) for name, kind in c.players.items()]
        self._rng = self.ctx.rng("matches")
        self._history = PlayerHistory(c.most_players)
        self.win_rates = WinRates(c.decay, c.prior_games)
        kinds = [player.kind for player in self._players]
        self._matchmaker = Matchmaker(c, kinds, self._history, self.win_rates, self._rng)
        self._firings = 0
        self._state = matches_state({name: [] for name in c.players}, {})

    def fire(self, *inputs: Any) -> None:
        """Take in the results of all players, keep versions that are due, and draw the next matches."""
        for number, (weights, results) in enumerate(zip(inputs[::2], inputs[1::2], strict=True)):
            player = self._players[number]
            if player.weights is None:
                self._begin(number, player, weights)
            player.update(weights)
            self._take_in(number, player, results)
        for number, player in enumerate(self._players):
            if self._is_due(number, player):
                self._keep(number, player)
        self._firings += 1
        self._draw_matches(_sides_of(inputs))

    def state(self, port: str) -> State:
        """The next matches, or how often the learner of a player has to begin again."""
        if port == "matches":
            return self._state
        name = port.removesuffix(RESETS)
        resets = next(player.resets for player in self._players if player.name == name)
        return State({}, {"resets": float(resets)})

    # results

    def _take_in(self, number: int, player: LearningPlayer, results: Batch) -> None:
        lines = []
        columns = {key: results[key].tolist() for key in results}
        for k in range(len(results)):
            row = {key: values[k] for key, values in columns.items()}
            opponent = self._name_of(row["opponent"], player)
            is_current = player.begun_at is not None and row["version"] >= player.begun_at
            if row["opponent"] != ITSELF and is_current:
                rated = self._rated_name(opponent, row["opponent_version"])
                self.win_rates.add(player.name, rated, row["score"])
            row = {"player": player.name, **row, "opponent": opponent, "firing": self._firings}
            lines.append(json.dumps(row))
        self.ctx.append_lines(PAYOFF_FILE, lines)
        own = np.array(columns["opponent"]) != ITSELF
        kept = sum(one.number == number for one in self._history)
        metrics = {f"{player.name}/kept": float(kept)}
        if own.any():
            metrics[f"{player.name}/score_mean"] = float(results["score"][own].mean())
        self.ctx.metrics(metrics)

    def _name_of(self, opponent: int, player: LearningPlayer) -> str:
        if opponent <= FIRST_SCRIPTED:
            return str(self.config.scripted[FIRST_SCRIPTED - opponent])
        return player.name if opponent == ITSELF else self._players[opponent].name

    def _rated_name(self, opponent: str, version: int) -> str:
        """The name of an opponent in the win rates: NAME@VERSION of one that was kept, else NAME."""
        full = versioned_name(opponent, version)
        return full if self._history.knows(full) else opponent

    # versions that are kept

    def _begin(self, number: int, player: LearningPlayer, weights: State) -> None:
        """Write down a player with its first weights. Those of a main player are the first opponent of all."""
        if number == 0:
            for name in self.config.scripted:
                self._write_player(name, 0, "scripted", None)
        full = versioned_name(player.name, weights.version)
        self._write_player(player.name, weights.version, player.kind, None)
        self._save(full, weights)
        if player.kind == "main":
            self._history.add(number, full, weights)
        player.parent = player.first = full
        player.kept_at = weights.version

    def _is_due(self, number: int, player: LearningPlayer) -> bool:
        """Whether the newest version of a player is to be kept: after many train iterations, or by its win rate."""
        c, name = self.config, player.name
        if player.begun_at is None:
            return False
        trained_iters = player.newest.version - player.kept_at
        every, least, rate = c.snapshot_every_iters, c.snapshot_least_iters, c.snapshot_win_rate
        if every is not None and trained_iters >= _iters_of(every, name):
            return True
        if rate is None or trained_iters < _iters_of(least, name):
            return False
        rates = self._matchmaker.rates_to_beat(number, self._newest_versions())
        return bool(len(rates)) and bool((rates >= rate).all())

    def _keep(self, number: int, player: LearningPlayer) -> None:
        weights = player.newest
        full = versioned_name(player.name, weights.version)
        self._write_player(player.name, weights.version, "historical", player.parent)
        self._save(full, weights)
        if (dropped := self._history.add(number, full, weights)) is not None:
            self.win_rates.forget(dropped.name)
        player.parent, player.kept_at = full, weights.version
        if player.kind != "main" and self.config.reset_exploiters:
            player.begin_again()
            self.win_rates.forget(player.name)

    def _write_player(self, name: str, version: int, kind: str, parent: str | None) -> None:
        row = {"name": name, "version": version, "kind": kind, "parent": parent}
        self.ctx.append_lines(PLAYERS_FILE, [json.dumps({**row, "firing": self._firings})])

    def _save(self, name: str, weights: State) -> None:
        self.ctx.save_checkpoint(name, replace(weights, whole=None), folder=PLAYERS_FOLDER)

    # matches

    def _draw_matches(self, sides: int) -> None:
        """Draw the next matches of all players. Their state has the weights of the opponents in them."""
        newest = self._newest_versions()
        tables = {
            player.name: self._matchmaker.draw_matches(number, newest, sides)
            for number, player in enumerate(self._players)
        }
        wanted = {(a.opponent, a.version) for table in tables.values() for a in table}
        known = {(one.number, one.version): one.state for one in self._history}
        for number, player in enumerate(self._players):
            known[number, player.newest.version] = player.newest
        weights = {key: known[key] for key in sorted(wanted) if key in known}
        self._state = matches_state(tables, weights)

    def _newest_versions(self) -> list[Version]:
        """The newest version of each player, by its number."""
        return [(n, player.newest.version) for n, player in enumerate(self._players)]

    # saving

    def state_dict(self) -> dict[str, Any]:
        players = self._players
        weights = [None if one.weights is None else saved_weights(one.weights) for one in players]
        return {
            "rng": self._rng.bit_generator.state,
            "history": self._history.state_dict(),
            "rates": self.win_rates.state_dict(),
            "weights": weights,
            "firings": self._firings,
            **{
                key: [getattr(one, name) for one in players]
                for key, name in SAVED_ATTRIBUTES.items()
            },
            "state": saved_weights(self._state),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._history.load_state_dict(state["history"])
        self.win_rates.load_state_dict(state["rates"])
        self._firings = int(state["firings"])
        for number, player in enumerate(self._players):
            weights = state["weights"][number]
            player.weights = None if weights is None else loaded_weights(weights)
            for key, name in SAVED_ATTRIBUTES.items():
                setattr(player, name, state[key][number])
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
