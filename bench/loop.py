"""The engine's cost in a training run: `cartpole_dqn` in the engine, compared with a hand-written loop.

    python -m bench loop [PAIRS]

Both use the same node classes with the same seed, do the same number of train iterations and end with the same
weights. The engine writes its run folder as always; the loop writes nothing. Runs are done in pairs whose order
alternates. The interval is a 95 % bootstrap interval of the median ratio of the pairs.
"""

from __future__ import annotations

import tempfile
import time

import numpy as np

from bench._arguments import benchmark_parser
from flowrl.api import load
from flowrl.checks.check import CheckedGraph
from flowrl.core.state import Clock, Count, State
from flowrl.graph.model import Limits
from flowrl.machine.numerics import reset_numerics
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.edge_factory import EdgeFactory
from flowrl.runtime.executor import weights_digest
from flowrl.runtime.instances import Instances

GRAPH = "cartpole_dqn"
ITERS = 3000


def checked_graph() -> CheckedGraph:
    """The graph with an evaluator that does not end the run."""
    return load(GRAPH, {"evaluator.stop_value": None}).check().require_sound()


def train_in_engine(seed: int) -> tuple[float, str]:
    """Train in the engine; return the seconds without set-up, and the digest."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(checked_graph(), seed=seed, limits=Limits(train_iters=ITERS), out=folder)
        timer = run.watcher = FiringTimer()
        result = run.run()
    return timer.firing_s, result.digest


class FiringTimer(Watcher):
    """Reads how long the run took, including its records and its summary but not its set-up."""

    firing_s = 0.0

    def end(self, run: Run) -> None:
        self.firing_s = run.firing_s


def train_in_loop(seed: int) -> tuple[float, str]:
    """Train in a loop over the nodes; return the seconds without set-up, and the digest."""
    checked = checked_graph()
    instances = Instances(checked, seed, EdgeFactory(checked))
    reset_numerics(1)
    start_s = time.perf_counter()
    state = _loop(instances)
    duration_s = time.perf_counter() - start_s
    instances.close()
    return duration_s, weights_digest({"learner.weights": state})


def _loop(instances: Instances) -> State:
    nodes = {name: replicas[0].node for name, replicas in instances.by_node.items()}
    collector, buffer, learner, evaluator = (
        nodes[n] for n in ("collector", "buffer", "learner", "evaluator")
    )
    program = instances.checked.program
    warm, every, rows = program.warmup[0], program.paced[0].every, collector.config.n_sample
    collector.reconfigure(**warm.phase.settings["collector"])
    buffer.ctx.consumed_outputs = frozenset()
    state = learner.state("weights")
    steps = iters = 0
    for _ in range(warm.rounds):
        buffer.fire(collector.fire(state), None)
        steps += rows
    collector.reconfigure(policy=collector.config.policy)
    buffer.ctx.consumed_outputs = frozenset({"batches"})
    while True:
        batches = buffer.fire(collector.fire(state), None)
        steps += rows
        for batch in batches:
            learner.fire(batch)
            iters += 1
            learner.ctx.clock = Clock({"": Count(steps, 0, iters)})  # exploration depends on it
            if iters % every == 0:
                evaluator.fire(learner.state("weights"))
            if iters == ITERS:
                return learner.state("weights")
        state = learner.state("weights")


def main(arguments: list[str]) -> dict[str, float]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("pairs", nargs="?", type=int, default=12, help="of runs")
    pairs = parser.parse_args(arguments).pairs
    train_in_engine(0), train_in_loop(0)  # fill caches, and import modules
    ratios = []
    for pair in range(pairs):
        functions = (train_in_engine, train_in_loop)
        results = {f: f(pair) for f in (functions if pair % 2 else functions[::-1])}
        (engine_s, engine_digest), (loop_s, loop_digest) = map(results.get, functions)
        if engine_digest != loop_digest:
            raise AssertionError(f"seed {pair}: engine and loop ended with different weights")
        ratios.append(loop_s / engine_s)
    low, high = median_interval(ratios)
    print(f"{GRAPH}, {ITERS} train iterations, {pairs} pairs of runs")
    print(
        f"  the engine has {np.median(ratios):.1%} [{low:.1%}, {high:.1%}] of the loop's speed (target: 97 %)"
    )
    return {"speed": float(np.median(ratios)), "low": low, "high": high}


def median_interval(values: list[float]) -> tuple[float, float]:
    """A 95 % bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (4000, len(values))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))
