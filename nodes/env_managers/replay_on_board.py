"""Envs of workers, played again side by side: each is begun with its seed, and stepped as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.saved_episodes import ENDED_EARLY, TOO_LONG, EnvHistory
from flowrl.nodes.env_managers.workers.shared_rows import ENDED, RESET, STEP, SharedRows
from flowrl.nodes.env_managers.workers.worker_pool import WorkerPool

EpisodeActions = Sequence[
    tuple[int, Sequence[Array] | Array]
]  # seeds and actions; each goes on in the next


def replay_episodes(crew: WorkerPool, plays: Mapping[int, EpisodeActions]) -> dict[int, float]:
    """What the last episode of each of these rows returned so far; of those that came to be in it."""
    board, totals, order = crew.board, dict.fromkeys(plays, 0.0), RESET
    going = {row: _ends(board, row, episodes) for row, episodes in plays.items()}
    while True:
        due = {row: ends for row in going if (ends := next(going[row], None)) is not None}
        if not due:
            return totals
        rows = np.array(list(due))
        crew.order(rows, order)
        crew.wait(rows)
        for row, ends in due.items():
            flags = int(board.flags[row])
            if bool(flags) != ends or flags & ~ENDED:
                del totals[row]
            else:
                totals[row] = 0.0 if ends else totals[row] + float(board.reward[row])
        going, order = {row: going[row] for row in due if row in totals}, STEP


def _ends(board: SharedRows, row: int, episodes: EpisodeActions) -> Iterator[bool]:
    """Write what is to be ordered, one by one: whether an episode ends by it."""
    board.seed[row], board.pause[row], board.reward[row] = episodes[0][0], 0.0, 0.0
    yield False
    for k, (_, actions) in enumerate(episodes, 1):
        for n, action in enumerate(actions, 1):
            board.action[row] = action
            ends = n == len(actions) and k < len(episodes)
            if ends:
                board.seed[row] = episodes[k][0]
            yield ends


class SavedEnvsRestorer:
    """The envs of new workers, on their way to where they were saved."""

    def __init__(self, crew: WorkerPool) -> None:
        self._crew = crew
        self._lost: dict[int, str] = {}  # rows whose worker ended; how

    def lost(self, number: int, why: str) -> None:
        """A worker had to be given up."""
        self._crew.give_up(number)
        self._crew.hire_again(number)
        self._lost.update(dict.fromkeys(self._crew.rows[number], why))

    def why_not(self, plays: Sequence[EnvHistory]) -> dict[int, str]:
        """By env, why it is not where it was; each plays in the row of its number."""
        why = {row: TOO_LONG for row, played in enumerate(plays) if not played.complete}
        left = dict(enumerate(plays))
        for _ in range(2):  # a worker may be killed from outside
            self._lost.clear()
            why.update(self._play({row: p for row, p in left.items() if p.complete}))
            left = {row: left[row] for row in self._lost if row in left}
        return {**why, **{row: self._lost[row] for row in left}}

    def _play(self, plays: Mapping[int, EnvHistory]) -> dict[int, str]:
        board = self._crew.board
        for row, played in plays.items():
            board.carry(row, played.carried)
        totals = replay_episodes(
            self._crew, {row: played.episodes for row, played in plays.items()}
        )
        why = dict.fromkeys(plays, ENDED_EARLY)
        why.update({row: plays[row].why_not(board.obs[row], totals[row]) for row in totals})
        return why
