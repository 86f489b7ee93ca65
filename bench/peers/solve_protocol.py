"""The protocol of `bench solve` and `bench learn`: when a run is evaluated, when it is solved, what the clock counts.

Each library's program runs in that library's own Python, for instance
`python -m bench.peers.sb3_solve cartpole_dqn SEED TIME_LIMIT_S`, and prints one line of JSON. It first trains up to
its first evaluation off the clock, so that imports and compilers are not measured. The clock starts before
envs and model are made, and stops after the evaluation that confirms the goal.

This module imports the standard library only, because no library's Python has the packages of another.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EVAL_SEED = 1_000_000  # the same in every evaluation, so that evaluations are comparable


@dataclass(frozen=True, slots=True)
class Task:
    """An env, and what a run has to reach in it."""

    env: str
    # The mean return of an evaluation, which as many other episodes must confirm.
    goal: float | None
    eval_every_steps: (
        int  # env steps between evaluations; each follows the next update of the weights
    )
    max_steps: int  # env steps of a run, unless the library's settings give a number
    time_limit_s: float
    episodes: int = 20  # in each evaluation, greedy, side by side where the library can


# Without a goal, runs end after `max_steps`, and their time and last evaluation are compared.
TASKS = {
    "cartpole": Task("CartPole-v1", 475, 1000, 300_000, 600),
    "pendulum": Task("Pendulum-v1", -180, 500, 40_000, 600),
    "lunarlander": Task("LunarLander-v3", 200, 10_000, 1_000_000, 3600),
    "hopper": Task("Hopper-v5", None, 10_000, 100_000, 3600),
}

PACKAGES = (
    *("torch", "numpy", "gymnasium", "gym", "stable-baselines3", "sbx-rl", "jax", "tianshou"),
    *("DI-engine", "box2d", "mujoco", "flowrl"),
)

# From a seed to the mean return of the task's number of greedy episodes.
EvaluateFunction = Callable[[int], float]
Report = Mapping[str, Any]
Curve = Sequence[tuple[int, float]]  # env steps and mean returns of evaluations


def task_of(kind: str) -> Task:
    """The task of what is solved, such as `cartpole_dqn`."""
    return TASKS[kind.partition("_")[0]]


class RunMonitor:
    """Evaluates a run when it is due, decides when the run is over, and measures its time."""

    def __init__(
        self, task: Task, time_limit_s: float, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        """Start the clock. A run of more than `time_limit_s` seconds ends with its next evaluation."""
        self._task, self._time_limit_s, self._now_s = task, time_limit_s, now_s
        self._start_s, self._eval_s = now_s(), 0.0
        self._evaluated_at, self._confirmations = 0, 0
        self._curve: list[tuple[int, float]] = []
        self.solved = False

    def is_over(self, env_steps: int, evaluate: EvaluateFunction) -> bool:
        """Evaluate the new weights if that is due; return whether the run is over."""
        if self.solved or env_steps - self._evaluated_at < self._task.eval_every_steps:
            return self.solved
        self._evaluated_at = env_steps
        start_s, goal = self._now_s(), self._task.goal
        mean = evaluate(EVAL_SEED)
        self._curve.append((env_steps, round(mean, 2)))
        self.solved = goal is not None and mean >= goal and self._is_confirmed(evaluate)
        self._eval_s += self._now_s() - start_s
        return self.solved or self._now_s() - self._start_s > self._time_limit_s

    def report(self, env_steps: int) -> Report:
        """Stop the clock, and return the run's report."""
        wall_s = self._now_s() - self._start_s
        return make_report(self.solved, wall_s, self._eval_s, env_steps, self._curve)

    def _is_confirmed(self, evaluate: EvaluateFunction) -> bool:
        self._confirmations += 1
        return bool(evaluate(EVAL_SEED + 1000 * self._confirmations) >= (self._task.goal or 0))


def make_report(solved: bool, wall_s: float, eval_s: float, env_steps: int, curve: Curve) -> Report:
    return {
        "solved": solved,
        "wall_s": round(wall_s, 3),
        "eval_s": round(eval_s, 3),
        "env_steps": env_steps,
        "curve": list(curve),
    }


def main(solve: Callable[[str, int, float], Report]) -> None:
    """Run a library's program: train briefly off the clock, then do the run and print its report.

    `solve` gets what is solved, the seed, and the time limit in seconds.
    """
    kind, seed, time_limit_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    solve(kind, seed + 1, 0.0)
    print(json.dumps({**solve(kind, seed, time_limit_s), "versions": installed_versions()}))


def installed_versions() -> dict[str, str]:
    """The versions of the packages that matter, as far as they are installed."""
    installed = {
        d.name.replace("_", "-").lower(): d.version for d in importlib.metadata.distributions()
    }
    return {name: installed[name.lower()] for name in PACKAGES if name.lower() in installed}
