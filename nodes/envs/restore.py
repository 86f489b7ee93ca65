"""Playing an env's episode again, up to where it was: what a replaced worker's envs come back by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flowrl.batch import Array
from flowrl.nodes.envs.board import BEGIN, STEP
from flowrl.nodes.envs.crew import Crew

RESULT = ("action", "flags", "reward", "total", "last", "seed", "obs")


def play_again(
    crew: Crew, row: int, seed: int, actions: Sequence[Array], failed: Callable[[], bool]
) -> bool:
    """Whether the env of a row, begun and stepped so, sees what its row says that it saw.

    If so, the row is left as it was found. `failed` says whether its worker has ended meanwhile.
    """
    board = crew.board
    found = {name: getattr(board, name)[row].copy() for name in RESULT}

    def done() -> bool:
        return failed() or not board.todo[row]

    board.seed[row], board.pause[row] = seed, 0.0
    for order, action in [(BEGIN, None), *((STEP, action) for action in actions)]:
        if action is not None:
            board.action[row] = action
        crew.order(row, order)
        crew.wait(done)
        if failed() or board.flags[row]:
            return False
    same = np.array_equal(board.obs[row], found["obs"])
    for name, value in found.items():
        getattr(board, name)[row] = value
    return bool(same)
