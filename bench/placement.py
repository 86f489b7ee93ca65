"""What placements gain, and what they cost: rounds a second in one thread, in threads and in processes.

    python -m bench placement [REPEATS]        (two minutes)

Three graphs, their placements interleaved, medians of the time from the first firing to the last: two nodes of equal
cost that overlap (`lag: 1`), where two cores can be at most twice as fast; DQN on CartPole with `lag: 1`, set to about
equal cost of collecting and learning; and two nodes that do nothing, where all that is left is what a placement costs.

Beside them, in the same turns: the same work in two processes that have nothing to do with each other. No placement
gains more than that, and on a shared machine it may be far from two.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.checks.check import CheckedGraph, check
from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.context import Record
from flowrl.core.node import Node
from flowrl.core.ports import In, Out, StateIn, StateOut
from flowrl.core.state import State
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import make_layout
from flowrl.machine.numerics import reset_numerics
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.serial_executor import SerialExecutor
from flowrl.runtime.sites.coordinator import Coordinator
from flowrl.runtime.status import NodeStats

PLACEMENTS = ("serial", "threads", "processes")
REPEATS = 9
FIRING_S = 0.005  # of a node of equal cost
ROUNDS, CHEAP_ROUNDS, REAL_ROUNDS = 200, 5000, 60
GAIN = 1.8  # to reach with two cores


def work(loops: int) -> int:
    """Python's own bytecode: in threads of one process it does not overlap."""
    total = 0
    for number in range(loops):
        total += number & 3
    return total


class Collects(Node):
    """Works, and gives a small table."""

    role = "collector"
    weights = StateIn("weights")
    data = Out("samples")

    class Config(Config):
        loops: int = param(0, "how much it works", ge=0)

    def fire(self, weights: State) -> Batch:
        self.ctx.count(env_steps=1)
        return Batch({"n": np.array([work(self.config.loops)])})


class Learns(Node):
    """Works, and has a small state."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")

    class Config(Config):
        loops: int = param(0, "how much it works", ge=0)

    def setup(self) -> None:
        self.sum = np.zeros(1)

    def fire(self, data: Batch) -> None:
        work(self.config.loops)
        self.sum = self.sum + data["n"]

    def state(self, port: str) -> State:
        return State({"sum": self.sum.copy()}, {})


class Nobody:
    """Hears what nodes tell, and forgets it."""

    def record(self, source: RecordSource, record: Record | FailureRecord) -> None:
        """Nothing."""


def two_nodes(loops: int, lag: int = 1) -> CheckedGraph:
    """Collecting and learning of equal cost, which overlap."""
    tree = {
        "nodes": {
            "collector": {"type": "bench.placement:Collects", "loops": loops},
            "learner": {"type": "bench.placement:Learns", "loops": loops},
        },
        "edges": ["collector -> learner", {"learner -> collector": {"lag": lag}}],
    }
    return check(load_data(tree)).require_sound()


def cartpole(updates: int) -> CheckedGraph:
    """DQN on CartPole with so many train iterations a round, and no evaluations."""
    sets = {
        "collector.weights.lag": "1",
        "buffer.updates_per_push": str(updates),
        "evaluator.weights.every": str(10**6),
    }
    return check(load_graph("cartpole_dqn", sets)).require_sound()


Spent = dict[str, float]  # seconds that nodes fired for, and that they waited for


def firing_s(
    checked: CheckedGraph, placement: str, rounds: int, spent: Spent | None = None
) -> tuple[float, str]:
    """Seconds from the first firing to the last, and the digest; adds up what was `spent`."""
    limits = Limits(rounds=rounds)
    reset_numerics(checked.graph.torch_threads)
    if placement == "serial":
        executor = SerialExecutor(checked, Nobody(), 0, limits)
        began_s = time.perf_counter()
        executor.run()
        took_s = time.perf_counter() - began_s
        add_up(executor.node_stats(), spent)
        digest = executor.digest()
        executor.close()
        return took_s, digest
    layout = make_layout(checked.graph, resolve_placement(checked.graph, placement))
    coordinator = Coordinator(checked, Nobody(), layout, 0, limits)
    try:
        coordinator.run()
        assert coordinator.began_s is not None
        assert coordinator.ended_s is not None
        add_up(coordinator.node_stats(), spent)
        return coordinator.ended_s - coordinator.began_s, coordinator.digest()
    finally:
        coordinator.close()


def add_up(nodes: Sequence[NodeStats], spent: Spent | None) -> None:
    """Add what all nodes spent."""
    if spent is not None:
        spent["firing"] += sum(node.busy_s for node in nodes)
        spent["waiting"] += sum(sum(node.waiting_s.values()) for node in nodes)


def spent_by(checked: CheckedGraph) -> dict[str, float]:
    """Milliseconds of a round: a node's firing in one process and in two, and its waiting in two."""
    spent = {placement: Spent(firing=0.0, waiting=0.0) for placement in ("serial", "processes")}
    for _ in range(REPEATS):
        for placement, told in spent.items():
            firing_s(checked, placement, ROUNDS, told)
    each = 1e3 / (2 * ROUNDS * REPEATS)
    return {
        "firing, serial (ms)": round(spent["serial"]["firing"] * each, 3),
        "firing, processes (ms)": round(spent["processes"]["firing"] * each, 3),
        "waiting, processes (ms)": round(spent["processes"]["waiting"] * each, 3),
    }


def apart(loops: int, rounds: int) -> float:
    """How much faster two processes do the work of two nodes than one does: the most that can be gained."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(work, [10**6] * 2, chunksize=1)  # both are there
        alone_s = _timed(lambda: pool.apply(work, (2 * loops * rounds,)))
        both_s = _timed(lambda: pool.map(work, [loops * rounds] * 2, chunksize=1))
    return alone_s / both_s


def compared(
    checked: CheckedGraph, rounds: int, repeats: int, between: Callable[[], Any] = lambda: None
) -> Mapping[str, float]:
    """Median seconds of each placement, interleaved; the digests are the same, or this fails."""
    taken: dict[str, list[float]] = {placement: [] for placement in PLACEMENTS}
    digests = set()
    for _ in range(repeats):
        for placement in PLACEMENTS:
            took_s, digest = firing_s(checked, placement, rounds)
            taken[placement].append(took_s)
            digests.add(digest)
        between()
    assert len(digests) == 1, "the placements gave different weights"
    return {placement: statistics.median(times) for placement, times in taken.items()}


def calibrated() -> int:
    """Loops that take about `FIRING_S`."""
    best = min(_timed(lambda: work(100_000)) for _ in range(5))
    return int(100_000 * FIRING_S / best)


def _timed(call: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def balanced_updates() -> int:
    """Train iterations a round that cost about what collecting does."""
    checked = cartpole(8)
    executor = SerialExecutor(checked, Nobody(), 0, Limits(rounds=20))
    executor.run()
    busy = {node.instance: node.busy_s for node in executor.node_stats()}
    executor.close()
    return max(round(8 * busy["collector"] / (busy["learner"] + busy["buffer"])), 1)


def show(title: str, times: Mapping[str, float], rounds: int) -> dict[str, float]:
    """A line for each placement."""
    print(title)
    found = {}
    for placement, took_s in times.items():
        gain = times["serial"] / took_s
        found[f"{placement} (us a round)"] = round(took_s / rounds * 1e6, 1)
        found[f"{placement} (x serial)"] = round(gain, 3)
        print(f"  {placement:<10} {took_s / rounds * 1e6:>10,.1f} us a round   {gain:.2f} x serial")
    return found


def main(arguments: list[str]) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench placement", description=__doc__.splitlines()[0])
    parser.add_argument("repeats", nargs="?", type=int, default=REPEATS)
    repeats = parser.parse_args(arguments).repeats
    loops, updates = calibrated(), balanced_updates()
    most: list[float] = []
    equal = compared(
        two_nodes(loops), ROUNDS, repeats, lambda: most.append(apart(loops, ROUNDS // 4))
    )
    found = {"equal cost": show("two nodes of equal cost, lag 1", equal, ROUNDS)}
    gain, could = equal["serial"] / equal["processes"], statistics.median(most)
    found["equal cost"]["two processes apart (x one)"] = round(could, 3)
    print(f"  two processes that have nothing to do with each other: {could:.2f} x one")
    print(f"  {'reached' if gain >= GAIN else 'MISSED'}: processes {gain:.2f} x serial, of {GAIN}")
    spent = spent_by(two_nodes(loops))
    found["equal cost"] |= spent
    print("  a node of them: " + ", ".join(f"{what} {ms:.2f}" for what, ms in spent.items()))
    title = f"cartpole_dqn, lag 1, {updates} train iterations a round"
    real = compared(cartpole(updates), REAL_ROUNDS, repeats)
    found["cartpole_dqn"] = show(title, real, REAL_ROUNDS)
    for lag in (1, 0):
        cheap = compared(two_nodes(0, lag), CHEAP_ROUNDS, repeats)
        title = f"nodes that do nothing, lag {lag}"
        found[title] = show(title, cheap, CHEAP_ROUNDS)
    return found
