"""An env of this process, played again to where it was saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.env_managers.saved_episodes import ENDED_EARLY, TOO_LONG, EnvHistory
from flowrl.nodes.envs.output_checks import check_rewards

ENV_EXCEPTIONS = (Exception, SystemExit)  # an env that calls sys.exit() has failed too


class RestoreFailedError(Exception):
    """What the first step of an env gives that is not where it was saved."""


def replay_history(
    played: EnvHistory,
    make: Callable[[str], None],
    reset: Callable[..., Any],
    step: Callable[[Any], Any],
    observed: Callable[[Any], Array],
) -> str:
    """Why the env is not where it was; nothing: it is. `make` is told what the env carries."""
    if not played.complete:
        return TOO_LONG
    try:
        make(played.carried)
        for seed, actions in played.episodes:
            (seen, _), total, over = reset(seed=seed), 0.0, False
            for action in actions:
                if over:
                    return ENDED_EARLY
                seen, reward, final, cut, _ = step(action)
                total, over = total + float(check_rewards([reward])[0]), bool(final or cut)
        return ENDED_EARLY if over else played.why_not(observed(seen), total)
    except UnsoundError:  # no failure of an env: it was never one
        raise
    except ENV_EXCEPTIONS as error:
        return f"{type(error).__name__} when its episode was played again: {error}"
