"""The parameters of a league, and what they must have to do with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, model_validator

from flowrl.core.config import Config, param
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import UnsoundError
from flowrl.nodes.league.matchmaking import Kind, Weighting

if TYPE_CHECKING:
    from typing_extensions import Self


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


class LeagueConfig(Config):
    """Who plays whom, and which versions are kept as opponents."""

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
    pfsp: float = param(0.5, "the share against opponents that are chosen by win rates", ge=0, le=1)
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
    def _check_shares(self) -> Self:
        if not math.isclose(self.self_play + self.pfsp + self.verification, 1, abs_tol=1e-6):
            raise UnsoundError(
                f"the shares self_play {self.self_play:g}, pfsp {self.pfsp:g} and verification "
                f"{self.verification:g} of matches do not sum to 1",
                "give all three",
                "self_play",
            )
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [*self.players, *self.scripted]
        wrong = [name for name in names if not name.isidentifier()]
        if wrong:
            key = "players" if wrong[0] in self.players else "scripted"
            raise UnsoundError(f"'{wrong[0]}' is no name of letters, digits and _", "", key)
        if twice := [name for name in names if names.count(name) > 1]:
            what = f"two players have the name '{twice[0]}'"
            raise UnsoundError(what, "rename one", "scripted")
        return self

    @model_validator(mode="after")
    def _check_iters(self) -> Self:
        for key in ("snapshot_every_iters", "snapshot_least_iters"):
            given = getattr(self, key)
            if isinstance(given, Mapping) and given.keys() != self.players.keys():
                raise UnsoundError(
                    f"{key} has numbers for {', '.join(given) or 'nobody'}, and the players are "
                    f"{', '.join(self.players)}",
                    "give one for each, or one number for all",
                    key,
                )
        return self

    @model_validator(mode="after")
    def _check_kinds(self) -> Self:
        kinds = set(self.players.values())
        if "main" not in kinds:
            raise UnsoundError(
                "no player is of the kind `main`, which exploiters play against",
                "add one: `players: {main: main, …}`",
                "players",
            )
        if not self.reset_exploiters and kinds == {"main"}:
            raise UnsoundError(
                "`reset_exploiters` has no effect without a player of the kind `main_exploiter` or "
                "`league_exploiter`",
                "leave it out",
                "reset_exploiters",
            )
        return self
