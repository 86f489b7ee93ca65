"""Env steps per second of every kind of env manager, compared with the same kind of other libraries.

    python -m bench envs [REPEATS] [--seconds S] [--contender sb3_subproc ...] [--workload cartpole_8 ...]

The workloads are 8 and 64 envs of CartPole-v1, and of an env with images of 84x84x4 bytes, with random
actions on two cores. Contenders take turns, each in a process of its own; the result is the median of the
repeats. `bench/peers/env_protocol.py` says how each is measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench._arguments import benchmark_parser
from bench.peers import SB3, TIANSHOU, Contender
from bench.peers.env_protocol import WORKLOADS

REPEATS, SECONDS = 3, 1.0
GRACE_S = 120.0  # for imports, and for making the envs

IN_PROCESS, PROCESSES, FIRST_READY = "in process", "processes", "processes, first ready"
GYMNASIUM_POOL, ENVPOOL = "gymnasium's pool", "EnvPool"
CONTENDERS = (
    Contender("gymnasium", "bare_loop", group=IN_PROCESS),
    Contender("flowrl", "serial", group=IN_PROCESS),
    Contender("gymnasium", "sync", group=IN_PROCESS),
    Contender("sb3", "dummy", SB3, IN_PROCESS),
    Contender("tianshou", "dummy", TIANSHOU, IN_PROCESS),
    Contender("flowrl", "thread", group="threads"),
    Contender("flowrl", "sync_subprocess", group=PROCESSES),
    Contender("flowrl", "one_worker", group=PROCESSES),
    Contender("gymnasium", "async", group=PROCESSES),
    Contender("sb3", "subproc", SB3, PROCESSES),
    Contender("tianshou", "subproc", TIANSHOU, PROCESSES),
    Contender("tianshou", "shmem", TIANSHOU, PROCESSES),
    Contender("flowrl", "async_subprocess", group=FIRST_READY),
    Contender("tianshou", "shmem_async", TIANSHOU, FIRST_READY),
    Contender("flowrl", "vector", group=GYMNASIUM_POOL),
    Contender("gymnasium", "vector", group=GYMNASIUM_POOL),
    Contender("flowrl", "envpool", group=ENVPOOL),
    Contender("gymnasium", "envpool", group=ENVPOOL),
)

Rates = Mapping[str, float]  # env steps per second, by workload


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    options = parse_arguments(arguments)
    contenders = [c for c in CONTENDERS if c.name in options.contender]
    runs: dict[str, list[Rates]] = {c.name: [] for c in contenders}
    for _ in range(options.repeats):
        for contender in contenders:
            runs[contender.name].append(measure(contender, options.seconds, options.workload))
    rates = {contender.name: medians(runs[contender.name]) for contender in contenders}
    print(f"  {'':28}" + "".join(f"{workload:>14}" for workload in options.workload))
    for name, found in rates.items():
        print(f"  {name:28}" + "".join(f"{found.get(w, 0):>14,.0f}" for w in options.workload))
    return {"env_steps_per_s": rates, "ratio_to_best_peer": ratios_to_best_peer(contenders, rates)}


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    names, workloads = [c.name for c in CONTENDERS], [workload.name for workload in WORKLOADS]
    parser = benchmark_parser(__name__, __doc__)
    several: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    add = parser.add_argument
    add("repeats", nargs="?", type=int, default=REPEATS, help="default: %(default)s; 1: 2 minutes")
    add("--seconds", type=float, default=SECONDS, help="for each workload; default: %(default)s")
    about = f"default: all of {', '.join(names)}"
    add("--contender", choices=names, default=names, help=about, **several)
    about = f"default: all of {', '.join(workloads)}"
    add("--workload", choices=workloads, default=workloads, help=about, **several)
    return parser.parse_args(arguments)


def measure(contender: Contender, seconds: float, workloads: Sequence[str]) -> Rates:
    """The rates of one run; if it fails, print why and return none."""
    timeout_s = GRACE_S + len(workloads) * seconds
    row = contender.run("envs", [str(seconds), *workloads], timeout_s)
    if "failed" in row:
        print(f"  {contender.name}: {row['failed']}", file=sys.stderr)
        return {}
    return row


def medians(runs: Sequence[Rates]) -> dict[str, float]:
    """The median rate of each workload that a run measured."""
    measured = {name for run in runs for name in run}
    return {
        workload.name: statistics.median(run[workload.name] for run in runs if workload.name in run)
        for workload in WORKLOADS
        if workload.name in measured
    }


def ratios_to_best_peer(
    contenders: Sequence[Contender], rates: Mapping[str, Rates]
) -> dict[str, dict[str, float]]:
    """The rates of flowrl's contenders, divided by the rate of the fastest peer in their group."""
    ratios: dict[str, dict[str, float]] = {}
    for own in (c for c in contenders if c.library == "flowrl"):
        peers = [
            rates[c.name]
            for c in contenders
            if c.group == own.group and c.library != "flowrl" and c.kind != "bare_loop"
        ]
        for workload, rate in rates[own.name].items():
            peer_rates = [peer[workload] for peer in peers if workload in peer]
            if peer_rates:
                ratios.setdefault(own.name, {})[workload] = round(rate / max(peer_rates), 2)
    return ratios
