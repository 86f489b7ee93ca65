"""The protocol of `bench solve`: when a run is evaluated, when it is solved, and what the clock counts.

Each library's program runs in that library's own Python, for instance
`python -m bench.peers.sb3_solve dqn SEED TIME_LIMIT_S`, and prints one line of JSON. It first trains up to
its first evaluation off the clock, so that imports and compilers are not measured. The clock starts before
envs and model are made, and stops after the evaluation that confirms the goal.

This module imports the standard library only, because no library's Python has the packages of another.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

ENV = "CartPole-v1"
GOAL = 475.0  # the mean return of greedy episodes, which as many other episodes must confirm
EPISODES = 20  # in each evaluation, side by side
EVAL_EVERY_STEPS = (
    1000  # env steps between evaluations; each follows the next update of the weights
)
MAX_STEPS = 300_000  # env steps of a run, unless the library's settings give a number
EVAL_SEED = 1_000_000  # the same in every evaluation, so that evaluations are comparable

PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "tianshou", "flowrl")

# From a seed to the mean return of EPISODES greedy episodes.
EvaluateFunction = Callable[[int], float]
Report = Mapping[str, Any]


class RunMonitor:
    """Evaluates a run when it is due, decides when the run is over, and measures its time."""

    def __init__(self, time_limit_s: float, now_s: Callable[[], float] = time.perf_counter) -> None:
        """Start the clock. A run of more than `time_limit_s` seconds ends with its next evaluation."""
        self._time_limit_s, self._now_s = time_limit_s, now_s
        self._start_s, self._eval_s = now_s(), 0.0
        self._evaluated_at, self._confirmations = 0, 0
        self.solved = False

    def is_over(self, env_steps: int, evaluate: EvaluateFunction) -> bool:
        """Evaluate the new weights if that is due; return whether the run is over."""
        if self.solved or env_steps - self._evaluated_at < EVAL_EVERY_STEPS:
            return self.solved
        self._evaluated_at = env_steps
        start_s = self._now_s()
        self.solved = bool(evaluate(EVAL_SEED) >= GOAL and self._is_confirmed(evaluate))
        self._eval_s += self._now_s() - start_s
        return self.solved or self._now_s() - self._start_s > self._time_limit_s

    def report(self, env_steps: int) -> Report:
        """Stop the clock, and return the run's report."""
        wall_s = self._now_s() - self._start_s
        return make_report(self.solved, wall_s, self._eval_s, env_steps)

    def _is_confirmed(self, evaluate: EvaluateFunction) -> bool:
        self._confirmations += 1
        return evaluate(EVAL_SEED + 1000 * self._confirmations) >= GOAL


def make_report(solved: bool, wall_s: float, eval_s: float, env_steps: int) -> Report:
    return {
        "solved": solved,
        "wall_s": round(wall_s, 3),
        "eval_s": round(eval_s, 3),
        "env_steps": env_steps,
    }


def main(solve: Callable[[str, int, float], Report]) -> None:
    """Run a library's program: train briefly off the clock, then do the run and print its report.

    `solve` gets the algorithm, the seed, and the time limit in seconds.
    """
    algorithm, seed, time_limit_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    solve(algorithm, seed + 1, 0.0)
    print(json.dumps({**solve(algorithm, seed, time_limit_s), "versions": installed_versions()}))


def installed_versions() -> dict[str, str]:
    """The versions of the packages that matter, as far as they are installed."""
    installed = {d.name.replace("_", "-"): d.version for d in importlib.metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}
