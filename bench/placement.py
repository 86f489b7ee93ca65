"""The gain and the cost of placements: the time of rounds in one thread, in threads and in processes.

    python -m bench placement [REPEATS]        (two minutes)

Four graphs are run in turn under each placement; results are medians of the time from the first firing to the
last. The graphs are: two nodes of equal cost that overlap (`lag: 1`), where two cores can be at most twice as fast;
DQN on CartPole with `lag: 1`, adjusted so that collecting and learning cost about the same; the same with a reward
model that costs as much as both, beside the collector or in a process of its own, and with `lag: 2`, because `lag: 1`
has two rounds under way and there are three parts to overlap; and two nodes that do nothing, where all of the time is
the cost of the placement.

For comparison, the same work is done by two processes that exchange nothing. No placement can gain more, and on a
shared machine this gain may be far below two.

A node that waits for others finds a processor that did something else, or nothing, in the meantime. What that costs
is measured apart: the time of a train iteration in one thread, right after the one before, and after a pause.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench._arguments import benchmark_parser
from flowrl.checks.check import CheckedGraph, check
from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.node import Node
from flowrl.core.ports import In, Out, StateIn, StateOut
from flowrl.core.records import Record
from flowrl.core.state import State
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import make_layout
from flowrl.machine.numerics import reset_numerics
from flowrl.nodes.learners.learner import Learner
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.serial_executor import SerialExecutor
from flowrl.runtime.sites.coordinator import Coordinator
from flowrl.runtime.status import NodeStats

PLACEMENTS = ("serial", "threads", "processes")
REWARD_PLACEMENTS = ("serial", "buffer=process,learner=process", "processes")
REPEATS = 9
FIRING_S = 0.005  # the cost of each of the nodes of equal cost
ROUNDS, CHEAP_ROUNDS, CARTPOLE_ROUNDS = 200, 5000, 60
TARGET_GAIN = 1.8  # of two processes on two cores
COLLECTING, LEARNING = ("collector", "envs"), ("buffer", "learner")  # the nodes of DQN on CartPole
NO_SETS: Mapping[str, str] = {}
PAUSES_S = (0.0, 0.002, 0.005)  # before a train iteration


def work(loops: int) -> int:
    """Run Python bytecode, which does not overlap in the threads of one process."""
    total = 0
    for number in range(loops):
        total += number & 3
    return total


class WorkingCollector(Node):
    """Works, and outputs a small batch."""

    role = "collector"
    may_end_run = False  # as a collector of the library says
    weights = StateIn("weights")
    data = Out("samples")

    class Config(Config):
        loops: int = param(0, "the amount of work in each firing", ge=0)

    def fire(self, weights: State) -> Batch:
        self.ctx.count(env_steps=1)
        return Batch({"n": np.array([work(self.config.loops)])})


class WorkingLearner(Node):
    """Works, and has a small state."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")

    class Config(Config):
        loops: int = param(0, "the amount of work in each firing", ge=0)

    def setup(self) -> None:
        self.sum = np.zeros(1)

    def fire(self, data: Batch) -> None:
        work(self.config.loops)
        self.sum = self.sum + data["n"]

    def state(self, port: str) -> State:
        return State({"sum": self.sum.copy()}, {})


class PausedLearner(Learner):
    """A learner that sleeps before each train iteration, and adds up how long the iterations take without that."""

    learned_s = 0.0  # of all such learners

    class Config(Learner.Config):
        pause_s: float = param(0.0, "how long it sleeps", ge=0)

    def fire(
        self, data: Batch, found: State | None = None, resets: State | None = None
    ) -> Batch | None:
        time.sleep(self.config.pause_s)
        start_s = time.perf_counter()
        priorities = super().fire(data, found, resets)
        PausedLearner.learned_s += time.perf_counter() - start_s
        return priorities


class DiscardedRecords:
    """A sink that discards all records."""

    def record(self, source: RecordSource, record: Record | FailureRecord) -> None:
        pass


def two_node_graph(loops: int, lag: int = 1) -> CheckedGraph:
    """A collector and a learner of equal cost, which overlap if `lag` is 1."""
    tree = {
        "nodes": {
            "collector": {"type": "bench.placement:WorkingCollector", "loops": loops},
            "learner": {"type": "bench.placement:WorkingLearner", "loops": loops},
        },
        "edges": ["collector -> learner", {"learner -> collector": {"lag": lag}}],
    }
    return check(load_data(tree)).require_sound()


def cartpole_graph(
    updates: int, reward_updates: int | None = None, sets: Mapping[str, str] = NO_SETS
) -> CheckedGraph:
    """DQN on CartPole with this number of train iterations per round, and without evaluations.

    A reward model has `reward_updates` in each round. `sets` has further settings.
    """
    name = "cartpole_dqn" if reward_updates is None else "cartpole_dqn_rnd"
    all_sets = {
        **sets,
        "collector.weights.lag": "1" if reward_updates is None else "2",
        "buffer.updates_per_push": str(updates),
        "evaluator.weights.every": str(10**6),
    }
    if reward_updates is not None:
        all_sets["rnd.updates_per_token"] = str(reward_updates)
    return check(load_graph(name, all_sets)).require_sound()


NodeTimes = dict[str, float]  # the seconds that all nodes spent firing and waiting


def run_rounds(
    checked: CheckedGraph, placement: str, rounds: int, node_times: NodeTimes | None = None
) -> tuple[float, str]:
    """Return the seconds from the first firing to the last, and the digest; add to `node_times`."""
    limits = Limits(rounds=rounds)
    reset_numerics(checked.graph.torch_threads)
    if placement == "serial":
        executor = SerialExecutor(checked, DiscardedRecords(), 0, limits)
        start_s = time.perf_counter()
        executor.run()
        duration_s = time.perf_counter() - start_s
        add_node_times(executor.node_stats(), node_times)
        digest = executor.digest()
        executor.close()
        return duration_s, digest
    layout = make_layout(checked.graph, resolve_placement(checked.graph, placement))
    coordinator = Coordinator(checked, DiscardedRecords(), layout, 0, limits)
    try:
        coordinator.run()
        assert coordinator.began_s is not None
        assert coordinator.ended_s is not None
        add_node_times(coordinator.node_stats(), node_times)
        return coordinator.ended_s - coordinator.began_s, coordinator.digest()
    finally:
        coordinator.close()


def add_node_times(nodes: Sequence[NodeStats], node_times: NodeTimes | None) -> None:
    if node_times is not None:
        node_times["firing"] += sum(node.busy_s for node in nodes)
        node_times["waiting"] += sum(sum(node.waiting_s.values()) for node in nodes)


def measure_node_times(checked: CheckedGraph) -> dict[str, float]:
    """The milliseconds per round that a node spends firing and waiting."""
    times = {placement: NodeTimes(firing=0.0, waiting=0.0) for placement in ("serial", "processes")}
    for _ in range(REPEATS):
        for placement, node_times in times.items():
            run_rounds(checked, placement, ROUNDS, node_times)
    ms_per_round = 1e3 / (2 * ROUNDS * REPEATS)
    return {
        "firing, serial (ms)": round(times["serial"]["firing"] * ms_per_round, 3),
        "firing, processes (ms)": round(times["processes"]["firing"] * ms_per_round, 3),
        "waiting, processes (ms)": round(times["processes"]["waiting"] * ms_per_round, 3),
    }


def gain_of_independent_processes(loops: int, rounds: int) -> float:
    """How many times faster two processes do the work of two nodes than one process does."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(work, [10**6] * 2, chunksize=1)  # wait until both processes have started
        one_s = _duration_s(lambda: pool.apply(work, (2 * loops * rounds,)))
        two_s = _duration_s(lambda: pool.map(work, [loops * rounds] * 2, chunksize=1))
    return one_s / two_s


def compare_placements(
    checked: CheckedGraph,
    rounds: int,
    repeats: int,
    after_each: Callable[[], Any] = lambda: None,
    placements: Sequence[str] = PLACEMENTS,
) -> Mapping[str, float]:
    """The median seconds of each placement, which take turns; fail if their digests differ."""
    times_s: dict[str, list[float]] = {placement: [] for placement in placements}
    digests = set()
    for _ in range(repeats):
        for placement in placements:
            duration_s, digest = run_rounds(checked, placement, rounds)
            times_s[placement].append(duration_s)
            digests.add(digest)
        after_each()
    assert len(digests) == 1, "the placements ended with different weights"
    return {placement: statistics.median(values) for placement, values in times_s.items()}


def calibrate_loops() -> int:
    """The number of loops that take about `FIRING_S`."""
    best_s = min(_duration_s(lambda: work(100_000)) for _ in range(5))
    return int(100_000 * FIRING_S / best_s)


def _duration_s(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def balance_updates() -> int:
    """The number of train iterations per round that cost about as much as collecting."""
    busy_s = busy_times_s(cartpole_graph(8))
    return max(round(8 * _sum_of(busy_s, COLLECTING) / _sum_of(busy_s, LEARNING)), 1)


def balance_reward_updates(updates: int) -> int:
    """The number of updates of a reward model per round that cost about as much as collecting and learning."""
    busy_s = busy_times_s(cartpole_graph(updates, 8))
    return max(round(8 * _sum_of(busy_s, COLLECTING + LEARNING) / busy_s["rnd"]), 1)


def _sum_of(busy_s: Mapping[str, float], nodes: Sequence[str]) -> float:
    return sum(busy_s[node] for node in nodes)


def busy_times_s(checked: CheckedGraph) -> dict[str, float]:
    """The seconds that each node fires in twenty rounds."""
    executor = SerialExecutor(checked, DiscardedRecords(), 0, Limits(rounds=20))
    executor.run()
    found = {node.instance: node.busy_s for node in executor.node_stats()}
    executor.close()
    return found


def measure_paused_iterations(updates: int) -> dict[str, float]:
    """The milliseconds of a train iteration of DQN on CartPole in one thread, after each of the pauses."""
    times_ms: dict[float, list[float]] = {pause_s: [] for pause_s in PAUSES_S}
    for _ in range(REPEATS):
        for pause_s, found in times_ms.items():
            learner = {"learner.type": "bench.placement:PausedLearner"}
            checked = cartpole_graph(updates, sets={**learner, "learner.pause_s": str(pause_s)})
            PausedLearner.learned_s = 0.0
            run_rounds(checked, "serial", CARTPOLE_ROUNDS)
            found.append(PausedLearner.learned_s / (CARTPOLE_ROUNDS * updates) * 1e3)
    return {
        f"train iteration, after {pause_s * 1e3:g} ms (ms)": round(statistics.median(found), 3)
        for pause_s, found in times_ms.items()
    }


def show_placements(title: str, times_s: Mapping[str, float], rounds: int) -> dict[str, float]:
    """Print and return the time per round of each placement."""
    print(title)
    results = {}
    for placement, duration_s in times_s.items():
        round_us, gain = duration_s / rounds * 1e6, times_s["serial"] / duration_s
        results[f"{placement} (us a round)"] = round(round_us, 1)
        results[f"{placement} (x serial)"] = round(gain, 3)
        print(f"  {placement:<30} {round_us:>10,.1f} us per round   {gain:.2f} x serial")
    return results


def main(arguments: list[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=REPEATS)
    repeats = parser.parse_args(arguments).repeats
    loops, updates = calibrate_loops(), balance_updates()
    process_gains: list[float] = []
    equal_s = compare_placements(
        two_node_graph(loops),
        ROUNDS,
        repeats,
        lambda: process_gains.append(gain_of_independent_processes(loops, ROUNDS // 4)),
    )
    equal = show_placements("two nodes of equal cost, lag 1", equal_s, ROUNDS)
    gain, process_gain = equal_s["serial"] / equal_s["processes"], statistics.median(process_gains)
    print(f"  two independent processes: {process_gain:.2f} x one")
    verdict = "reached" if gain >= TARGET_GAIN else "MISSED"
    print(f"  {verdict}: processes {gain:.2f} x serial (target: {TARGET_GAIN})")
    node_times_ms = measure_node_times(two_node_graph(loops))
    print("  each node: " + ", ".join(f"{name} {ms:.2f}" for name, ms in node_times_ms.items()))
    equal |= {"two independent processes (x one)": round(process_gain, 3), **node_times_ms}
    results = {"equal cost": equal}
    title = f"cartpole_dqn, lag 1, {updates} train iterations per round"
    cartpole_s = compare_placements(cartpole_graph(updates), CARTPOLE_ROUNDS, repeats)
    results["cartpole_dqn"] = show_placements(title, cartpole_s, CARTPOLE_ROUNDS)
    paused_ms = measure_paused_iterations(updates)
    print("  " + ", ".join(f"{name} {ms:.2f}" for name, ms in paused_ms.items()))
    results["cartpole_dqn"] |= paused_ms
    reward_updates = balance_reward_updates(updates)
    title = f"cartpole_dqn_rnd, lag 2, {reward_updates} updates of the reward model per round"
    reward_s = compare_placements(
        cartpole_graph(updates, reward_updates),
        CARTPOLE_ROUNDS,
        repeats,
        placements=REWARD_PLACEMENTS,
    )
    results["cartpole_dqn_rnd"] = show_placements(title, reward_s, CARTPOLE_ROUNDS)
    for lag in (1, 0):
        idle_s = compare_placements(two_node_graph(0, lag), CHEAP_ROUNDS, repeats)
        title = f"nodes that do nothing, lag {lag}"
        results[title] = show_placements(title, idle_s, CHEAP_ROUNDS)
    return results
