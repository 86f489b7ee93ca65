"""Replays the histories of envs: an env is reset as each episode began, and stepped with its actions.

An env that depends on the arguments of its resets and steps alone is then in the same state as before.
`replay_local_env` replays an env of this process. `replay_in_workers` replays envs of workers, side by side: to restore
saved envs (`SavedEnvsRestorer`), and to recover those of a worker that ended (`worker_recovery.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.action_log import EpisodeActions
from flowrl.nodes.env_managers.env_error import ENV_EXCEPTIONS
from flowrl.nodes.env_managers.env_history import EnvHistory
from flowrl.nodes.env_managers.workers.shared_rows import ENDED, RESET, STEP, SharedRows
from flowrl.nodes.env_managers.workers.worker_pool import WorkerPool
from flowrl.nodes.envs.output_checks import check_rewards

ENDED_EARLY = "its episode ended too early when it was replayed"
TOO_LONG = "its episode was too long to keep all of its actions"


def replay_local_env(
    history: EnvHistory,
    make: Callable[[str], None],
    reset: Callable[..., Any],
    step: Callable[[Any], Any],
    check_obs: Callable[[Any], Array],
) -> str:
    """Replay an env of this process. Return why it is not in the same state; empty if it is.

    `make` makes the env, given what it carried over.
    """
    if not history.complete:
        return TOO_LONG
    try:
        make(history.carried)
        for start, actions in history.episodes:
            (obs, _), episode_return, over = reset(**start.arguments()), 0.0, False
            for action in actions:
                if over:
                    return ENDED_EARLY
                obs, reward, terminated, truncated, _ = step(action)
                episode_return += float(check_rewards([reward])[0])
                over = bool(terminated or truncated)
        return ENDED_EARLY if over else history.compare(check_obs(obs), episode_return)
    except UnsoundError:  # not a failure of the env: it cannot work at all
        raise
    except ENV_EXCEPTIONS as error:
        return f"{type(error).__name__} when its episode was replayed: {error}"


def replay_in_workers(
    pool: WorkerPool, episodes_by_row: Mapping[int, Sequence[EpisodeActions]]
) -> dict[int, float]:
    """Replay the envs of these rows side by side.

    Return, for each env that reached the end of its actions without a failure or an early end, the return of its last
    episode so far.
    """
    shared, returns, command = pool.shared, dict.fromkeys(episodes_by_row, 0.0), RESET
    replays = {row: _write_commands(shared, row, eps) for row, eps in episodes_by_row.items()}
    while True:
        expected_ends = {
            row: ends for row in replays if (ends := next(replays[row], None)) is not None
        }
        if not expected_ends:
            return returns
        rows = np.array(list(expected_ends))
        pool.send_command(rows, command)
        pool.wait(rows)
        for row, ends in expected_ends.items():
            flags = int(shared.flags[row])
            if bool(flags) != ends or flags & ~ENDED:
                del returns[row]
            else:
                returns[row] = 0.0 if ends else returns[row] + float(shared.reward[row])
        replays = {row: replays[row] for row in expected_ends if row in returns}
        command = STEP


def _write_commands(
    shared: SharedRows, row: int, episodes: Sequence[EpisodeActions]
) -> Iterator[bool]:
    """Write the arguments of one command after another; yield whether it should end an episode."""
    shared.write_start(row, episodes[0][0])
    shared.delay_s[row], shared.reward[row] = 0.0, 0.0
    yield False
    for k, (_, actions) in enumerate(episodes, 1):
        for n, action in enumerate(actions, 1):
            shared.action[row] = action
            ends = n == len(actions) and k < len(episodes)
            if ends:
                shared.write_start(row, episodes[k][0])
            yield ends


class SavedEnvsRestorer:
    """Restores saved envs in new workers. The history of env i is replayed in row i."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._lost_rows: dict[int, str] = {}  # rows whose worker ended, and how

    def replace_worker(self, worker: int, reason: str) -> None:
        """Replace a worker that ended or hung."""
        self._pool.discard_worker(worker)
        self._pool.respawn(worker)
        self._lost_rows.update(dict.fromkeys(self._pool.rows_of[worker], reason))

    def restore(self, histories: Sequence[EnvHistory]) -> dict[int, str]:
        """Replay the histories. Return, by env, why it is not in the same state; empty if it is."""
        reasons = {row: TOO_LONG for row, history in enumerate(histories) if not history.complete}
        remaining = dict(enumerate(histories))
        for _ in range(2):  # a worker may be killed from outside
            self._lost_rows.clear()
            complete = {row: history for row, history in remaining.items() if history.complete}
            reasons.update(self._replay(complete))
            remaining = {row: remaining[row] for row in self._lost_rows if row in remaining}
        return {**reasons, **{row: self._lost_rows[row] for row in remaining}}

    def _replay(self, histories: Mapping[int, EnvHistory]) -> dict[int, str]:
        shared = self._pool.shared
        for row, history in histories.items():
            shared.write_carry_over(row, history.carried)
        episodes = {row: history.episodes for row, history in histories.items()}
        returns = replay_in_workers(self._pool, episodes)
        reasons = dict.fromkeys(histories, ENDED_EARLY)
        reasons.update(
            {row: histories[row].compare(shared.obs[row], returns[row]) for row in returns}
        )
        return reasons
