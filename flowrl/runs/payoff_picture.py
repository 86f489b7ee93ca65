"""Draws who won how often against whom: a square for each pair of players."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flowrl.ratings.games import GameCounts
from flowrl.runs.figure_file import write_figure
from flowrl.runs.rating_tables import shortened_name

MOST_WRITTEN = 16  # players; of more, the scores are not written into the squares
INCHES, LEAST_INCHES, MOST_INCHES = 0.55, 3.0, 14.0  # of a square; of all of them
DARK = 0.38  # distance of a score from one half beyond which its colour needs white text


def draw_payoff(counts: GameCounts, players: Sequence[str], title: str, path: Path) -> Path:
    """Draw the mean score of each row's player against each column's, in this order, as a PNG or SVG file."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n = len(players)
    scores = np.array(
        [[_number(counts.win_rate(a, b)) for b in players] for a in players], np.float64
    ).reshape(n, n)
    side = min(max(INCHES * n, LEAST_INCHES), MOST_INCHES)
    size = min(9.0, 0.7 * 72 * side / max(n, 1))  # of the text, in points
    figure = Figure(figsize=(side + 3.2, side + 1.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = colormaps["RdBu"].with_extremes(bad="#e8eaed")
    image = axes.imshow(np.ma.masked_invalid(scores), cmap=colours, vmin=0, vmax=1)
    names = [shortened_name(player) for player in players]
    axes.set_xticks(range(n), names, rotation=90, fontsize=size)
    axes.set_yticks(range(n), names, fontsize=size)
    axes.set_title(title, fontsize="medium", wrap=True)
    axes.tick_params(length=0)
    axes.set_xlabel("opponent", fontsize="small")
    if n <= MOST_WRITTEN:
        for (row, column), score in np.ndenumerate(scores):
            if not np.isnan(score):
                colour = "white" if abs(score - 0.5) > DARK else "black"
                text = f"{score:.2f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("mean score of the row's player (grey: no game)", fontsize="small")
    write_figure(figure, path)
    return path


def _number(score: float | None) -> float:
    return float("nan") if score is None else score
