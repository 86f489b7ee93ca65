"""flowrl on CartPole-v1 with its bundled graphs, under the protocol of `bench solve`."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from bench.peers.solve_protocol import (
    EPISODES,
    EVAL_EVERY_STEPS,
    GOAL,
    MAX_STEPS,
    Report,
    main,
    make_report,
)
from flowrl.api import load
from flowrl.checks.check import CheckedGraph
from flowrl.runs.display import Watcher
from flowrl.runs.run import Run

# Evaluations in worker processes, which an evaluator on a site of its own asks for. With as many envs as it would
# make itself, the episodes are the same, and so is the run.
WITH_EVAL_ENVS = {
    "nodes": {"eval_envs": {"type": "sync_subprocess_env_manager", "count": 10}},
    "edges": ["evaluator <-> eval_envs"],
}


class EvalTimer(Watcher):
    """Reads how long the evaluator fired."""

    def end(self, run: Run) -> None:
        self.eval_s = next(a.busy_s for a in run.node_stats() if a.instance == "evaluator")


def solve(algorithm: str, seed: int, time_limit_s: float) -> Report:
    """Do one run. The evaluator itself confirms a reached goal in new episodes."""
    algorithm, _, in_processes = algorithm.partition("_")
    extends = {"extends": f"cartpole_{algorithm}"}
    graph = {**extends, **WITH_EVAL_ENVS} if in_processes else extends
    placement = in_processes or "serial"
    # off the clock, because these values are the same for every run
    values = protocol_values(load(graph).check().require_sound())
    start_s, timer = time.perf_counter(), EvalTimer()
    limits: dict[str, Any] = {"steps": MAX_STEPS, "time": time_limit_s}
    if not time_limit_s:
        limits = {"train_iters": values["evaluator.weights.every"]}
    with tempfile.TemporaryDirectory() as folder:
        result = load(graph, values).run(
            placement=placement, seed=seed, out=f"{folder}/run", quiet=True, watcher=timer, **limits
        )
    wall_s = time.perf_counter() - start_s
    if in_processes:
        wall_s -= result.setup_s  # in which the processes import, and imports are off the clock
    return make_report(result.status == "solved", wall_s, timer.eval_s, result.env_steps)


def protocol_values(checked: CheckedGraph) -> dict[str, Any]:
    """The values of the graph that the protocol prescribes."""
    firings = checked.program.round.firings
    steps = sum(n * (checked.facts[name].env_steps or 0) for name, n in firings.items())
    every_iters = round(EVAL_EVERY_STEPS * firings["learner"] / steps)
    return {
        "evaluator.episodes": EPISODES,
        "evaluator.stop_value": GOAL,
        "evaluator.weights.every": max(1, every_iters),
    }


if __name__ == "__main__":
    main(solve)
