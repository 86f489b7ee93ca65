"""Plays matches of a league's run again, from the rows that it has written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowrl.checks.check import check
from flowrl.core.checkpoint import SUFFIX, read_acting
from flowrl.core.errors import RunError
from flowrl.core.project_modules import importable_modules
from flowrl.core.state import State
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Graph, NodeSpec
from flowrl.machine.forked_call import can_fork
from flowrl.machine.numerics import settled_numerics

RESULT = ("seed", "side", "score", "returns", "length")  # of a row: what the match itself decides


def replay_rows(run: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `league/payoff.jsonl` as they are when their matches are played again."""
    loaded = load_graph(run / "graph.yaml")
    checked = check(loaded, in_fork=can_fork(), elsewhere=loaded.graph.nodes).require_sound()
    graph = checked.graph
    with settled_numerics(graph.torch_threads), importable_modules(graph.folders):
        return [_replayed(run, graph, row) for row in rows]


def _replayed(run: Path, graph: Graph, row: Mapping[str, Any]) -> dict[str, Any]:
    league, collector = _players_nodes(run, graph, str(row["player"]))
    edges = graph.edges_into(collector.name)
    managers: Any = graph.nodes[next(e.source.node for e in edges if e.to.port == "envs")].config
    league_config: Any = league.config
    learning, scripted = list(league_config.players), list(league_config.scripted)
    opponent, version = str(row["opponent"]), int(row["opponent_version"])
    if opponent not in learning and opponent not in scripted:
        raise RunError(
            f"{run}: the league has no player '{opponent}'; it has {', '.join([*learning, *scripted])}"
        )
    weights = None if opponent in scripted else _weights(run, opponent, version)
    is_scripted = weights is None
    played = league.cls.replay_match(  # type: ignore[attr-defined]
        league_config,
        managers.env,
        collector.config,
        scripted.index(opponent) if is_scripted else learning.index(opponent),
        int(row["side"]),
        int(row["seed"]),
        _weights(run, str(row["player"]), int(row["version"])),
        weights,
    )
    return {**row, **{name: played[name] for name in RESULT}}


def _players_nodes(run: Path, graph: Graph, player: str) -> tuple[NodeSpec, NodeSpec]:
    """The league of a player, and the collector that plays for it."""
    for spec in graph.nodes.values():
        if not hasattr(spec.cls, "replay_match"):
            continue
        for edge in graph.edges_into(spec.name):
            if edge.to.port == spec.cls.results_port(player):  # type: ignore[attr-defined]
                return spec, graph.nodes[edge.source.node]
    raise RunError(f"{run}: its graph has no league in which '{player}' learns")


def _weights(run: Path, name: str, version: int) -> State:
    path = run / "league" / "players" / f"{name}@{version}{SUFFIX}"
    if not path.is_file():
        raise RunError(
            f"{path}: the weights of {name}@{version} were not kept; `save_versions: true` of a match_collector keeps "
            "those of each version that plays"
        )
    return read_acting(path)[0]
