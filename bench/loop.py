"""What the engine costs a training run: `cartpole_dqn` through the engine against a loop written by hand.

    python -m bench loop [PAIRS]

Both use the same node classes with the same seed, do the same number of train iterations and end with the same
weights. The engine writes its run folder as always; the loop writes nothing. Pairs are interleaved, in changing
order; the interval is a 95 % bootstrap of the median of the pairs' ratios.
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np

from flowrl.api import load
from flowrl.checks.check import CheckedGraph
from flowrl.core.state import Clock, Count, State
from flowrl.graph.model import Limits
from flowrl.machine.numerics import reset_numerics
from flowrl.runs.display import Watcher
from flowrl.runs.run import Run
from flowrl.runtime.edge_factory import EdgeFactory
from flowrl.runtime.executor import weights_digest
from flowrl.runtime.instances import Instances

GRAPH = "cartpole_dqn"
ITERS = 3000


def graph() -> CheckedGraph:
    """The graph without its evaluator: evaluating takes the same time in both."""
    return load(GRAPH, {"evaluator.stop_value": None}).check().require_sound()


def through_engine(seed: int) -> tuple[float, str]:
    """Seconds of the program, and the digest."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(graph(), seed=seed, limits=Limits(train_iters=ITERS), out=folder)
        stopwatch = run.watcher = Stopwatch()
        result = run.run()
    return stopwatch.firing_s, result.digest


class Stopwatch(Watcher):
    """Notes how long the program took, its records and its summary included; set-up is the same for both."""

    firing_s = 0.0

    def end(self, run: Run) -> None:
        self.firing_s = run.firing_s


def by_hand(seed: int) -> tuple[float, str]:
    """The same training as a loop over the nodes."""
    checked = graph()
    instances = Instances(checked, seed, EdgeFactory(checked))
    reset_numerics(1)
    start = time.perf_counter()
    state = _train(instances)
    taken = time.perf_counter() - start
    instances.close()
    return taken, weights_digest({"learner.weights": state})


def _train(instances: Instances) -> State:
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
            learner.ctx.clock = Clock({"": Count(steps, 0, iters)})  # what exploration depends on
            if iters % every == 0:
                evaluator.fire(learner.state("weights"))
            if iters == ITERS:
                return learner.state("weights")
        state = learner.state("weights")


def main(arguments: list[str]) -> dict[str, float]:
    """Measure and print."""
    pairs = int(arguments[0]) if arguments else 12
    ratios, same = [], 0
    through_engine(0), by_hand(0)  # imports, caches
    for pair in range(pairs):
        order = (through_engine, by_hand) if pair % 2 else (by_hand, through_engine)
        taken = {f.__name__: f(pair) for f in order}
        ratios.append(taken["by_hand"][0] / taken["through_engine"][0])
        same += taken["by_hand"][1] == taken["through_engine"][1]
    low, high = interval(ratios)
    if same < pairs:
        raise AssertionError(
            f"{pairs - same} of {pairs} pairs ended with other weights: not the same training"
        )
    print(f"{GRAPH}, {ITERS} train iterations, {pairs} interleaved pairs")
    print(
        f"  engine / hand-written loop: {np.median(ratios):.1%} of its speed [{low:.1%}, {high:.1%}] (target: 97 %)"
    )
    return {"speed": float(np.median(ratios)), "low": low, "high": high}


def interval(values: list[float]) -> tuple[float, float]:
    """A 95 % bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (4000, len(values))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


if __name__ == "__main__":
    main(sys.argv[1:])
