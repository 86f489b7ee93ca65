"""flowrl on CartPole-v1, with its bundled graphs, measured as the peers are."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from bench.peers.protocol import EPISODES, EVERY_STEPS, GOAL, MOST_STEPS, Report, main, report
from flowrl.api import load
from flowrl.checks.check import CheckedGraph
from flowrl.runs.display import Watcher
from flowrl.runs.run import Run


class Stopwatch(Watcher):
    """Notes how long the evaluator fired."""

    def end(self, run: Run) -> None:
        self.eval_s = next(a.busy_s for a in run.node_stats() if a.instance == "evaluator")


def solve(what: str, seed: int, cap_s: float) -> Report:
    """One run; its evaluator confirms a goal in unseen episodes by itself."""
    name = f"cartpole_{what}"
    sets = protocol(
        load(name).check().require_sound()
    )  # not on the clock: the numbers are the same each time
    begun_s, watch = time.perf_counter(), Stopwatch()
    limits: dict[str, Any] = {"steps": MOST_STEPS, "time": cap_s}
    if not cap_s:
        limits = {"train_iters": sets["evaluator.weights.every"]}
    with tempfile.TemporaryDirectory() as folder:
        end = load(name, sets).run(seed=seed, out=folder + "/run", watcher=watch, **limits)
    return report(
        end.status == "solved", time.perf_counter() - begun_s, watch.eval_s, end.env_steps
    )


def protocol(checked: CheckedGraph) -> dict[str, Any]:
    """The values of a graph that the protocol says."""
    firings = checked.program.round.firings
    steps = sum(n * (checked.facts[name].env_steps or 0) for name, n in firings.items())
    every_iters = round(EVERY_STEPS * firings["learner"] / steps)
    return {
        "evaluator.episodes": EPISODES,
        "evaluator.stop_value": GOAL,
        "evaluator.weights.every": max(1, every_iters),
    }


if __name__ == "__main__":
    main(solve)
