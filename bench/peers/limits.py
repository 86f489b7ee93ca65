"""The least time of the published experiment, by simulating the same draws without any overhead.

One policy worker serves whatever is ready, once at least k envs are, for the best k; each env is
stepped on alone, on as many cores as it takes.

    A   an env that ends an episode is reset, and the others go on meanwhile
    H   its next episode was begun beforehand: resets take no time
    D   as H, and of every collection each env gives the same number of samples: what is deterministic
    +   every sleep lasts longer than asked, as it did where nothing but sleeping was done
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from bench.peers.sleeping import ENVS, SAMPLES, Draws

ON_TIME = (0.0,)


def ideal_s(
    size: str,
    resets: float,
    seed: int,
    samples: int,
    hidden: bool,
    late_s: Sequence[float] = ON_TIME,
) -> float:
    """The limit A, or with `hidden` resets H, in seconds for so many samples.

    By as much as one of `late_s`, drawn for each sleep, it lasts too long.
    """
    return min(
        Simulation(size, resets, seed, hidden, k, late_s).samples_s(samples)
        for k in range(1, ENVS + 1)
    )


def even_s(
    size: str, resets: float, seed: int, collects: int, late_s: Sequence[float] = ON_TIME
) -> float:
    """The limit D."""
    return min(
        Simulation(size, resets, seed, True, k, late_s).collects_s(collects)
        for k in range(1, ENVS + 1)
    )


class Simulation:
    """Envs and a policy; it serves whoever is ready, as soon as k are, or all that are left."""

    def __init__(
        self, size: str, resets: float, seed: int, hidden: bool, k: int, late_s: Sequence[float]
    ) -> None:
        self._draws, self._hidden, self._k = Draws(size, resets, seed), hidden, k
        self._steps = [_steps(self._draws, env) for env in range(ENVS)]
        self._late = itertools.cycle(np.random.default_rng(seed).choice(late_s, 1 << 14).tolist())
        self._ready = [0.0] * ENVS  # when each env waits for an action
        self._free = 0.0  # when the policy does nothing

    def samples_s(self, samples: int) -> float:
        """When so many steps were taken, by whichever envs."""
        done: list[float] = []
        while len(done) < samples + ENVS:  # so many more may be done before the last that counts
            done += self._serve(range(ENVS)).values()
        return sorted(done)[samples - 1]

    def collects_s(self, collects: int) -> float:
        """When so many collections were made, each of as many steps of every env."""
        over = 0.0
        for _ in range(collects):
            left = dict.fromkeys(range(ENVS), SAMPLES // ENVS)
            self._ready, self._free = [over] * ENVS, over
            while left:
                for env, done in self._serve(list(left)).items():
                    over = max(over, done)
                    left[env] -= 1
                    if not left[env]:
                        del left[env]
        return over

    def _serve(self, envs: Sequence[int]) -> dict[int, float]:
        """Serve those of these envs that are ready; when their steps are done."""
        ready = sorted(self._ready[env] for env in envs)
        start = max(self._free, ready[min(self._k, len(envs)) - 1])
        self._free = start + self._draws.infer_s() + next(self._late)
        found = {}
        for env in [env for env in envs if self._ready[env] <= start]:
            step_s, reset_s = next(self._steps[env])
            found[env] = self._free + step_s + next(self._late)
            self._ready[env] = found[env] + (0.0 if self._hidden else reset_s)
        return found


def _steps(draws: Draws, env: int) -> itertools.chain[tuple[float, float]]:
    """Of each step of an env: how long it takes, and the reset that follows it."""

    def of(number: int) -> list[tuple[float, float]]:
        taken = [float(s) for s in draws.episode(env, number).steps_s]
        after = draws.episode(env, number + 1).reset_s
        return [*((s, 0.0) for s in taken[:-1]), (taken[-1], after)]

    return itertools.chain.from_iterable(map(of, itertools.count()))
