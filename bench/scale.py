"""The speed of a run with more and more hosts, and the CPU time that its coordinator and all its processes use.

    python -m bench scale                (about five minutes)
    python -m bench scale HOSTS…         a trial with these numbers of hosts

Each host has one collector, which sleeps for 50 ms in each firing, so that cores are not what is measured. The
learner and the coordinator are in the process of the run, which the local launcher gives its hosts. The weights
have a lag of one round. Twice as many hosts should make twice as many env steps; a share below 100 % is what the
engine, its sockets and two cores cost. When all processes together use all cores, the share says how many hosts
fit on this machine, and no more about the engine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flowrl
from bench._arguments import benchmark_parser

HOSTS = (1, 2, 4, 8, 16, 32, 64)
COLLECT_S, SHORT, LONG = 0.05, 20, 320  # rounds
TOKEN_BYTES, WEIGHTS_BYTES = 64 << 10, 64 << 10
TARGET = 0.95  # of linear, up to 64 hosts
JOIN_S = 300.0


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=HOSTS)
    results: dict[str, Any] = {}
    for hosts in parser.parse_args(arguments).hosts:
        short, long = durations(hosts, SHORT), durations(hosts, LONG)
        rounds = LONG - SHORT
        wall_s, run_cpu_s, all_cpu_s = (b - a for a, b in zip(short, long, strict=True))
        speed = hosts * rounds / wall_s
        result = {
            "steps_per_s": speed,
            "share": speed * COLLECT_S / hosts,
            "cores_of_run": run_cpu_s / wall_s,
            "cores_of_all": all_cpu_s / wall_s,
        }
        results[f"{hosts} hosts"] = result
        print(
            f"{hosts:3} hosts: {speed:8.1f} steps/s, {result['share']:4.0%} of what the collectors could give; the "
            f"process of the run uses {result['cores_of_run']:.2f} cores, and all use {result['cores_of_all']:.2f}",
            flush=True,
        )
    worst = min(result["share"] for result in results.values())
    print(f"  {worst:.0%} / {TARGET:.0%}: {'reached' if worst >= TARGET else 'MISSED'}")
    return results


def durations(hosts: int, rounds: int) -> tuple[float, float, float]:
    """The seconds of the rounds of a run, and the CPU seconds of its process and of all processes in the whole run."""
    began = os.times()
    with tempfile.TemporaryDirectory() as folder:
        result = flowrl.load(graph(hosts)).run(
            placement="collector=local-*",
            rendezvous=flowrl.Rendezvous(launch={"type": "local", "hosts": hosts}, within_s=JOIN_S),
            train_iters=rounds,
            out=Path(folder) / "r",
            quiet=True,
        )
        ended = os.times()  # of children too, since they have ended
        run_s, all_s = (sum(ended[:n]) - sum(began[:n]) for n in (2, 4))
        return result.training_s, run_s, all_s


def graph(hosts: int) -> dict[str, Any]:
    nodes = "bench._sleeping_nodes:Sleeping"
    collector = {"sleep_s": COLLECT_S, "token_bytes": TOKEN_BYTES, "replicas": hosts}
    return {
        "nodes": {
            "collector": {"type": f"{nodes}Collector", **collector},
            "learner": {"type": f"{nodes}Learner", "weights_bytes": WEIGHTS_BYTES},
        },
        "edges": ["collector -> learner", {"learner -> collector": {"lag": 1}}],
    }
