"""What a coordinator costs with more and more sites: CPU time for each site and round, and the time until all began.

    python -m bench coordinator                  (about two minutes)
    python -m bench coordinator HOSTS…           a trial with these numbers of hosts

The sites are stubs in one other process (`tests/cluster/stub_sites.py`), which speak with the run as sites on hosts do:
each host joins over a connection of its own; each site asks for rounds, reports its counts and status, and completes a
round in 50 ms. One of them is a learner with a metric in each round, whose weights need relays: sites, too, each on the
host of a collector (`docs/decisions/0029-weights-by-a-tree.md`). Measured is the CPU time of all threads of the
run's process, encryption and the run's files included, from one round to another. It should not depend on the number
of sites.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench._arguments import benchmark_parser
from flowrl.checks.check import check
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.records import Record
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource

HOSTS = (10, 100, 1000)
ROUND_S, FIRST, LAST = 0.05, 40, 160  # rounds between which it is measured
JOIN_S = 300.0
TARGET = 2.0  # the most that a site and round may cost, compared with the fewest sites


class Meter(Watcher):
    """Notes the CPU time of this process and the time at two rounds."""

    def __init__(self, first: int, last: int) -> None:
        self.rounds = first, last
        self.seen: list[tuple[float, float]] = []

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if source.key == "learner" and source.fired in self.rounds:
            self.seen.append((time.process_time(), time.perf_counter()))


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=HOSTS)
    results: dict[str, Any] = {}
    for hosts in parser.parse_args(arguments).hosts:
        result = results[f"{hosts} hosts"] = measure(hosts)
        print(
            f"{hosts:4} hosts, {result['sites']:.0f} sites: {result['us_per_site_and_round']:6.1f} us for each "
            f"site and round, {result['cores']:.2f} cores at {result['rounds_per_s']:.1f} rounds/s; "
            f"all had begun after {result['began_s']:.1f} s",
            flush=True,
        )
    costs = [result["us_per_site_and_round"] for result in results.values()]
    ratio = max(costs) / costs[0]
    print(f"  {ratio:.2f} / {TARGET:.2f}: {'reached' if ratio <= TARGET else 'MISSED'}")
    return results


def measure(
    hosts: int, first: int = FIRST, last: int = LAST, round_s: float = ROUND_S
) -> dict[str, float]:
    """The costs of a run on so many hosts."""
    meter = Meter(first, last)
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(hosts, last + 10, round_s, Path(folder) / "r", meter)
        started_s = time.perf_counter()
        run.run()
    assert run.training_began_s is not None
    sites = len(run.sites.layout.kinds)
    (cpu_0_s, at_0_s), (cpu_1_s, at_1_s) = meter.seen
    cpu_s, wall_s = cpu_1_s - cpu_0_s, at_1_s - at_0_s
    return {
        "sites": sites,
        "us_per_site_and_round": 1e6 * cpu_s / (sites * (last - first)),
        "cores": cpu_s / wall_s,
        "rounds_per_s": (last - first) / wall_s,
        "began_s": run.training_began_s - started_s,
    }


def run_of(hosts: int, rounds: int, round_s: float, out: Path, watcher: Watcher) -> Run:
    """A run of so many rounds on so many stub hosts."""
    launch = {"type": "tests.cluster.stub_sites:StubHosts", "label": "stub"}
    launch |= {"hosts": hosts, "round_s": round_s}
    return Run(
        check(load_data(graph(hosts - 1))),
        placement="collector=stub-*,learner=stub-*",
        out=out,
        limits=Limits(train_iters=rounds),
        rendezvous=Rendezvous(launch=launch, within_s=JOIN_S),
        watcher=watcher,
    )


def graph(collectors: int) -> dict[str, Any]:
    """A graph with so many collectors and a learner."""
    nodes = "bench._sleeping_nodes:Sleeping"
    return {
        "nodes": {
            "collector": {"type": f"{nodes}Collector", "replicas": collectors},
            "learner": {"type": f"{nodes}Learner"},
        },
        "edges": ["collector -> learner", {"learner -> collector": {"lag": 1}}],
    }
