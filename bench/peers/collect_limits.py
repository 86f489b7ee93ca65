"""The least possible times of `bench collector`, from a simulation of the same durations without overhead.

One policy worker serves the envs that are ready, as soon as there are at least k of them, for the best k.
Each env steps independently, on as many cores as it takes.

    A   while an env is reset, the others continue
    H   as A, but resets take no time, because the next episode was begun in advance
    D   as H, but each env contributes the same number of samples to each collection, as determinism requires
    +   every sleep lasts longer than requested, as measured in processes that only sleep
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from bench.peers.sleep_experiment import ENVS, SAMPLES, Durations

NO_OVERRUN = (0.0,)


def free_limit_s(
    size: str,
    reset_factor: float,
    seed: int,
    samples: int,
    reset_in_advance: bool,
    overruns_s: Sequence[float] = NO_OVERRUN,
) -> float:
    """The limit A, or H with `reset_in_advance`: the seconds for this number of samples.

    Each sleep overruns by a random choice from `overruns_s`.
    """
    return min(
        Simulation(size, reset_factor, seed, reset_in_advance, k, overruns_s).time_of_samples_s(
            samples
        )
        for k in range(1, ENVS + 1)
    )


def deterministic_limit_s(
    size: str,
    reset_factor: float,
    seed: int,
    collections: int,
    overruns_s: Sequence[float] = NO_OVERRUN,
) -> float:
    """The limit D: the seconds for this number of collections."""
    return min(
        Simulation(size, reset_factor, seed, True, k, overruns_s).time_of_collections_s(collections)
        for k in range(1, ENVS + 1)
    )


class Simulation:
    """Envs, and a policy that serves those that are ready once there are k of them, or all that are left."""

    def __init__(
        self,
        size: str,
        reset_factor: float,
        seed: int,
        reset_in_advance: bool,
        k: int,
        overruns_s: Sequence[float],
    ) -> None:
        self._durations = Durations(size, reset_factor, seed)
        self._reset_in_advance, self._k = reset_in_advance, k
        self._steps = [_steps(self._durations, env) for env in range(ENVS)]
        overruns = np.random.default_rng(seed).choice(overruns_s, 1 << 14)
        self._overruns = itertools.cycle(overruns.tolist())
        self._ready_s = [0.0] * ENVS  # when each env begins to wait for an action
        self._policy_free_s = 0.0

    def time_of_samples_s(self, samples: int) -> float:
        """The time when this number of steps is done, by any envs."""
        done_s: list[float] = []
        while len(done_s) < samples + ENVS:  # steps of one call may end in any order
            done_s += self._serve(range(ENVS)).values()
        return sorted(done_s)[samples - 1]

    def time_of_collections_s(self, collections: int) -> float:
        """The time when this number of collections is done, with equally many steps of every env."""
        end_s = 0.0
        for _ in range(collections):
            steps_left = dict.fromkeys(range(ENVS), SAMPLES // ENVS)
            self._ready_s, self._policy_free_s = [end_s] * ENVS, end_s
            while steps_left:
                for env, done_s in self._serve(list(steps_left)).items():
                    end_s = max(end_s, done_s)
                    steps_left[env] -= 1
                    if not steps_left[env]:
                        del steps_left[env]
        return end_s

    def _serve(self, envs: Sequence[int]) -> dict[int, float]:
        """Call the policy once for the ready ones of these envs; return when each one's step is done."""
        ready_s = sorted(self._ready_s[env] for env in envs)
        start_s = max(self._policy_free_s, ready_s[min(self._k, len(envs)) - 1])
        self._policy_free_s = start_s + self._durations.next_inference_s() + next(self._overruns)
        done_s = {}
        for env in [env for env in envs if self._ready_s[env] <= start_s]:
            step_s, reset_s = next(self._steps[env])
            done_s[env] = self._policy_free_s + step_s + next(self._overruns)
            self._ready_s[env] = done_s[env] + (0.0 if self._reset_in_advance else reset_s)
        return done_s


def _steps(durations: Durations, env: int) -> itertools.chain[tuple[float, float]]:
    """The duration of each step of an env, and of the reset after it, which is 0 within an episode."""

    def episode(number: int) -> list[tuple[float, float]]:
        steps_s = [float(s) for s in durations.episode(env, number).steps_s]
        reset_s = durations.episode(env, number + 1).reset_s
        return [*((s, 0.0) for s in steps_s[:-1]), (steps_s[-1], reset_s)]

    return itertools.chain.from_iterable(map(episode, itertools.count()))
