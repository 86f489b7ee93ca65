"""flowrl with its bundled graphs, under the protocol of `bench solve` and `bench learn`."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from bench.peers.solve_protocol import Curve, Report, Task, main, make_report, task_of
from flowrl.api import load
from flowrl.checks.check import CheckedGraph
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher

# Evaluations in worker processes, which an evaluator on a site of its own asks for. With as many envs as it would
# make itself, the episodes are the same, and so is the run.
WITH_EVAL_ENVS = {
    "nodes": {"eval_envs": {"type": "sync_subprocess_env_manager", "count": 10}},
    "edges": ["evaluator <-> eval_envs"],
}
IN_PROCESSES = "_processes"


class EvalTimer(Watcher):
    """Reads how long the evaluator fired."""

    def end(self, run: Run) -> None:
        self.eval_s = next(a.busy_s for a in run.node_stats() if a.instance == "evaluator")


def solve(kind: str, seed: int, time_limit_s: float) -> Report:
    """Do one run. The evaluator itself confirms a reached goal in new episodes."""
    task, graph = task_of(kind), kind.removesuffix(IN_PROCESSES)
    in_processes = kind.endswith(IN_PROCESSES)
    source: dict[str, Any] = {"extends": graph, **(WITH_EVAL_ENVS if in_processes else {})}
    placement = "processes" if in_processes else "serial"
    # off the clock, because these values are the same for every run
    values = protocol_values(load(source).check().require_sound(), task)
    start_s, timer = time.perf_counter(), EvalTimer()
    limits: dict[str, Any] = {"steps": task.max_steps, "time": time_limit_s}
    if not time_limit_s:
        limits = {"train_iters": values["evaluator.weights.every"]}
    with tempfile.TemporaryDirectory() as folder:
        result = load(source, values).run(
            placement=placement, seed=seed, out=f"{folder}/run", quiet=True, watcher=timer, **limits
        )
        wall_s = time.perf_counter() - start_s
        curve = evaluations(result)
    if in_processes:
        wall_s -= result.setup_s  # in which the processes import, and imports are off the clock
    return make_report(result.status == "solved", wall_s, timer.eval_s, result.env_steps, curve)


def evaluations(result: RunResult) -> Curve:
    """The env steps and mean returns of the evaluations of a run."""
    metrics = result.metrics().get("evaluator", {})
    if not metrics:
        return []
    pairs = zip(metrics["env_steps"].tolist(), metrics["return_mean"].tolist(), strict=True)
    return [(int(env_steps), round(mean, 2)) for env_steps, mean in pairs]


def protocol_values(checked: CheckedGraph, task: Task) -> dict[str, Any]:
    """The values of the graph that the protocol prescribes."""
    firings = checked.program.round.firings
    steps = sum(n * (checked.facts[name].env_steps or 0) for name, n in firings.items())
    every_iters = round(task.eval_every_steps * firings["learner"] / steps)
    return {
        "evaluator.episodes": task.episodes,
        "evaluator.stop_value": task.goal,
        "evaluator.weights.every": max(1, every_iters),
    }


if __name__ == "__main__":
    main(solve)
