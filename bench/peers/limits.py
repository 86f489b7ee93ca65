"""The least time of the published experiment, by simulating the same draws without any overhead.

One policy worker serves whatever is ready, once at least k envs are, for the best k; each env is
stepped on alone, on as many cores as it takes.

    A   an env that ends an episode is reset, and the others go on meanwhile
    H   its next episode was begun beforehand: resets take no time
    L   all envs step together, resets take no time: the limit of what is deterministic without halves
    S   as H, and every sleep lasts longer than asked, as it did where nothing but sleeping was done
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from bench.peers.sleeping import ENVS, Draws


def ideal_s(size: str, resets: float, seed: int, samples: int, hidden: bool) -> float:
    """The limit A, or with `hidden` resets H, in seconds for so many samples."""
    return min(_served_s(size, resets, seed, samples, hidden, k) for k in range(1, ENVS + 1))


def late_s(size: str, resets: float, seed: int, samples: int, late_s: Sequence[float]) -> float:
    """The limit S: by as much as one of these, drawn for each sleep, it lasts too long."""
    return min(_served_s(size, resets, seed, samples, True, k, late_s) for k in range(1, ENVS + 1))


def together_s(size: str, resets: float, seed: int, samples: int) -> float:
    """The limit L."""
    draws = Draws(size, resets, seed)
    steps = [_steps(draws, env) for env in range(ENVS)]
    rounds = -(-samples // ENVS)
    return sum(draws.infer_s() + max(next(of_env)[0] for of_env in steps) for _ in range(rounds))


def _steps(draws: Draws, env: int) -> itertools.chain[tuple[float, float]]:
    """Of each step of an env: how long it takes, and the reset that follows it."""

    def of(number: int) -> list[tuple[float, float]]:
        taken = [float(s) for s in draws.episode(env, number).steps_s]
        after = draws.episode(env, number + 1).reset_s
        return [*((s, 0.0) for s in taken[:-1]), (taken[-1], after)]

    return itertools.chain.from_iterable(map(of, itertools.count()))


def _served_s(
    size: str,
    resets: float,
    seed: int,
    samples: int,
    hidden: bool,
    k: int,
    late_s: Sequence[float] = (0.0,),
) -> float:
    draws = Draws(size, resets, seed)
    late = np.random.default_rng(seed).choice(late_s, 4 * (samples + ENVS)).tolist()
    steps = [_steps(draws, env) for env in range(ENVS)]
    ready = [0.0] * ENVS  # when each env waits for an action
    free, done = 0.0, []  # when the policy is, and when steps were
    while len(done) < samples + ENVS:  # so many more may be done before the last that counts
        start = max(free, sorted(ready)[k - 1])
        served = [env for env in range(ENVS) if ready[env] <= start]
        free = start + draws.infer_s() + late.pop()
        for env in served:
            step_s, reset_s = next(steps[env])
            done.append(free + step_s + late.pop())
            ready[env] = done[-1] + (0.0 if hidden else reset_s)
    return sorted(done)[samples - 1]
