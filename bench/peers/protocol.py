"""How every library is measured: when it is evaluated, what solved means, what the clock counts.

Each library's program is run by that library's own Python, for instance
`python -m bench.peers.sb3_solve dqn SEED CAP_S`, and prints one line of JSON. It first trains for a
moment, up to its first evaluation, so that imports and compilers are not on the clock. The clock
begins before envs and model are made, and ends with the evaluation that confirms the goal.

Imports the standard library only: no library that is measured has another's packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

ENV = "CartPole-v1"
GOAL = 475.0  # mean return of greedy episodes, and again in as many others
EPISODES = 20  # in each evaluation, side by side
EVERY_STEPS = 1000  # env steps from one evaluation to the next, or as soon after as weights change
MOST_STEPS = 300_000  # env steps of a run, where the library's settings say nothing
EVAL_SEED = 1_000_000  # of every evaluation, so that evaluations can be compared

PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "tianshou", "flowrl")

Play = Callable[[int], float]  # the mean return of EPISODES greedy episodes that follow from a seed
Report = Mapping[str, Any]


class Judge:
    """Says when to evaluate and when a run is over, and holds the clock, which begins now."""

    def __init__(self, cap_s: float, now_s: Callable[[], float] = time.perf_counter) -> None:
        """A run of more than `cap_s` seconds ends with its next evaluation."""
        self._cap_s, self._now_s = cap_s, now_s
        self._begun_s, self._eval_s = now_s(), 0.0
        self._evaluated_at, self._confirmed = 0, 0
        self.solved = False

    def over(self, env_steps: int, play: Play) -> bool:
        """Called when the weights have changed: evaluates if it is time; whether that was all."""
        if self.solved or env_steps - self._evaluated_at < EVERY_STEPS:
            return self.solved
        self._evaluated_at = env_steps
        begun_s = self._now_s()
        self.solved = bool(play(EVAL_SEED) >= GOAL and self._confirmed_by(play))
        self._eval_s += self._now_s() - begun_s
        return self.solved or self._now_s() - self._begun_s > self._cap_s

    def report(self, env_steps: int) -> Report:
        """The run in numbers; the clock stops here."""
        wall_s = self._now_s() - self._begun_s
        return report(self.solved, wall_s, self._eval_s, env_steps)

    def _confirmed_by(self, play: Play) -> bool:
        self._confirmed += 1
        return play(EVAL_SEED + 1000 * self._confirmed) >= GOAL


def report(solved: bool, wall_s: float, eval_s: float, env_steps: int) -> Report:
    """A run in numbers."""
    return {
        "solved": solved,
        "wall_s": round(wall_s, 3),
        "eval_s": round(eval_s, 3),
        "env_steps": env_steps,
    }


def main(solve: Callable[[str, int, float], Report]) -> None:
    """The program of a library: `solve(what, seed, cap_s)` is run twice, and reports once."""
    what, seed, cap_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    solve(what, seed + 1, 0.0)
    print(json.dumps({**solve(what, seed, cap_s), "versions": versions()}))


def versions() -> dict[str, str]:
    """What was measured."""
    found = {d.name.replace("_", "-"): d.version for d in importlib.metadata.distributions()}
    return {name: found[name] for name in PACKAGES if name in found}
