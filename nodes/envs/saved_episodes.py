"""Episodes under way, saved by their seeds and actions: an env that keeps to them is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.batch import Array, Column
from flowrl.nodes.envs.accounts import Accounts
from flowrl.nodes.envs.action_log import ActionLog


def saved(accounts: Accounts, log: ActionLog | None, column: Column) -> dict[str, Any]:
    """Where every env is; without a log, that none has begun."""
    if log is None:
        return {"accounts": accounts.state_dict(), "actions": None}
    played = [log.of(index) for index in range(accounts.count)]
    long = [index for index, (_, complete) in enumerate(played) if not complete]
    if long:
        raise ValueError(f"env {long[0]}: its episode is too long to be saved by its actions")
    actions = [action for taken, _ in played for action in taken]
    wanted = (len(actions), *column.shape)
    kept = np.array(actions, column.dtype).reshape(wanted)
    return {"accounts": accounts.state_dict(), "actions": kept}


def dealt(accounts: Accounts, actions: Any) -> Sequence[Array]:
    """The actions of each env's episode."""
    return np.split(np.asarray(actions), np.cumsum(accounts.lengths)[:-1])


def refuse_other(index: int, was: float, total: float, over: bool) -> None:
    """An env that came to something else when its episode was played again is not restored."""
    if over or total != was:
        raise ValueError(
            f"env {index}: its episode had returned {was:g} so far, and {total:g} "
            f"{'and its end ' if over else ''}when it was played again: it does not follow from "
            "its seed and actions, so it cannot be restored; begin new episodes"
        )
