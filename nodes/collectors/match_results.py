"""The results of matches: a row for each, with the versions of both players, the seed and the score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.nodes.collectors.match_rows import EndedMatch
from flowrl.nodes.league.matches import FIRST_SCRIPTED, ITSELF, Assignment


def result_schema(sides: int, scripted: int) -> Schema:
    """The columns of results, with so many scripted opponents."""
    number = Column("int64")
    return {
        "version": number,
        "opponent": Column("int64", low=float(FIRST_SCRIPTED + 1 - scripted)),
        "opponent_version": number,
        "side": number,
        "seed": number,
        "score": Column("float32"),
        "returns": Column("float64", (sides,)),
        "length": number,
    }


def scores(returns: Array, sides: Array) -> Array:
    """The scores of the players on these sides, by the returns of all sides (B, sides).

    The side with the highest return wins (1); if several have it, it is a draw of these (0.5).
    """
    best = returns == returns.max(1, keepdims=True)
    won: Array = best[np.arange(len(returns)), sides]
    return np.where(won, np.where(best.sum(1) == 1, 1.0, 0.5), 0.0)


def match_results(
    ended: Sequence[tuple[Assignment, EndedMatch]], version: int, sides: int, scripted: int
) -> Batch:
    """The rows of matches that the player that learns has played with this version of its weights."""
    returns = np.array([match.returns for _, match in ended]).reshape(len(ended), sides, -1)
    of_sides = returns.sum(2)
    own = np.array([assignment.side for assignment, _ in ended])
    columns = {
        "version": [version] * len(ended),
        "opponent": [a.opponent for a, _ in ended],
        "opponent_version": [version if a.opponent == ITSELF else a.version for a, _ in ended],
        "side": own,
        "seed": [match.seed for _, match in ended],
        "score": scores(of_sides, own),
        "returns": of_sides,
        "length": [match.length for _, match in ended],
    }
    schema = result_schema(sides, scripted)
    return Batch({n: np.array(columns[n], column.dtype) for n, column in schema.items()})
