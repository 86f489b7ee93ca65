"""The time until one version of weights has reached many hosts: by a send to each host, and by a tree of hosts.

    python -m bench broadcast                          (about 20 minutes; needs root, and `ip` and `tc`)
    python -m bench broadcast HOSTS [MBIT_PER_S [MB]]  a trial

Each host and the machine of the run is a network namespace, whose link carries 1 Gbit/s in each direction (`tc tbf`).
The run is a real one: the learner makes a version of 10 MB in each round, and a collector on each host fires when it
has it, and sends four bytes back. So a round lasts as long as a version needs to reach all hosts, encrypted. Medians
of 5 rounds (with relays: 21); a send is the time to one host. Without relays the learner's link carries a version as
often as there are hosts. With relays a host sends each version to two others
(`docs/decisions/0029-weights-by-a-tree.md`), so a level of the tree would take two sends, if versions were not passed
on in pieces.

All hosts are on this machine, whose cores encrypt, pass on and decrypt for all of them. So the CPU time of all
processes for a version is measured, too: that of a run with more rounds minus that of one with fewer. Divided by the
cores, it is the least time that this machine can take, whatever the links carry.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench._arguments import benchmark_parser
from flowrl.channels.keys import write_key
from flowrl.checks.state_relays import MIN_SENDS
from tests.cluster.network import network, why_not

HOSTS, MBIT_PER_S, MB = (1, 2, 4, 8, 16, 32, 64), 1000, 10.0
SHORT, LONG, FIRST = 8, 24, 3  # rounds; the first ones wait for connections
RUN, PORT = "run", 5555
TIMEOUT_S = 900.0
TARGET = 2.0  # sends for each level of the tree


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("hosts", nargs="?", type=int)
    parser.add_argument("mbit_per_s", nargs="?", type=int, default=MBIT_PER_S)
    parser.add_argument("mb", nargs="?", type=float, default=MB, help="of a version")
    options = parser.parse_args(arguments)
    if why_not():
        raise SystemExit(f"bench broadcast: {why_not()}")
    counts = HOSTS if options.hosts is None else (1, options.hosts)
    results: dict[str, Any] = {}
    send_s = 0.0
    for hosts in counts:
        network_of = hosts, options.mbit_per_s, int(options.mb * 1e6)
        each_s, _ = measure(*network_of, min_sends=sys.maxsize, rounds=SHORT)
        _, short_cpu_s = measure(*network_of, min_sends=2, rounds=SHORT)
        tree_s, long_cpu_s = measure(*network_of, min_sends=2, rounds=LONG)
        send_s = send_s or each_s
        levels = level_count(hosts)
        sends = tree_s / send_s / levels
        cpu_s = (long_cpu_s - short_cpu_s) / (LONG - SHORT)
        results[f"{hosts} hosts"] = {
            "each_s": each_s,
            "tree_s": tree_s,
            "levels": levels,
            "sends_a_level": sends,
            "cpu_s": cpu_s,
        }
        print(
            f"{hosts:3} hosts: {each_s:.3f} s by a send to each ({each_s / send_s:.1f} sends), {tree_s:.3f} s by a "
            f"tree of {levels} levels ({sends:.1f} sends a level), with {cpu_s:.3f} s of CPU time, which "
            f"{os.cpu_count()} cores take {cpu_s / (os.cpu_count() or 1):.3f} s for",
            flush=True,
        )
    used = [found for n, found in zip(counts, results.values(), strict=True) if n >= MIN_SENDS]
    worst = max((found["sends_a_level"] for found in used), default=0.0)
    print(f"  {worst:.1f} / {TARGET:.1f}: {'reached' if worst <= TARGET else 'MISSED'}")
    return results


def level_count(hosts: int) -> int:
    """The levels of a tree of two, below the machine of the learner."""
    return (hosts + 1).bit_length() - 1 if hosts > 1 else 1


def measure(
    hosts: int, mbit_per_s: int, nbytes: int, min_sends: int, rounds: int
) -> tuple[float, float]:
    """The median time of a round on so many hosts, and the CPU seconds of all processes in the whole run.

    A version that is sent so often is passed on by relays.
    """
    before = os.times()
    names = [f"h{number}" for number in range(hosts)]
    machines = {name: f"10.83.{at // 200}.{at % 200 + 1}" for at, name in enumerate([RUN, *names])}
    address = f"tcp://{machines[RUN]}:{PORT}"
    with network(machines) as net, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_key(folder / "key")
        (folder / "graph.yaml").write_text(json.dumps(graph(hosts, nbytes, rounds)))
        for machine in machines:
            net.limit(machine, mbit_per_s)
        key = ("--key", "key")
        started: list[subprocess.Popen[str]] = []
        for name in names:
            join = ("host", "--join", address, *key, "--name", name)
            started.append(net.flowrl(name, *join, cwd=folder, silent=True))
        where = ("--listen", address, *key, "--hosts", str(hosts), "--placement", "collector=h*")
        words = ("run", "graph.yaml", "--json", "--out", "r", "--hosts-within", "10m", *where)
        module = ("bench._relays", str(min_sends))
        run = net.python(RUN, *module, *words, cwd=folder)
        _, err = run.communicate(timeout=TIMEOUT_S)
        if run.returncode:
            raise SystemExit(err)
        for host in started:  # whose times count when they have ended
            host.wait(TIMEOUT_S)
        cpu_s = sum(os.times()[2:4]) - sum(before[2:4])
        rows = (folder / "r" / "metrics.jsonl").read_text().splitlines()
        return statistics.median(json.loads(row)["round_s"] for row in rows[FIRST:]), cpu_s


def graph(hosts: int, nbytes: int, rounds: int) -> dict[str, Any]:
    nodes = "bench._sleeping_nodes"
    return {
        "nodes": {
            "collector": {"type": f"{nodes}:SleepingCollector", "replicas": hosts},
            "learner": {"type": f"{nodes}:TimedLearner", "weights_bytes": nbytes},
        },
        "edges": ["collector -> learner", "learner -> collector"],
        "limits": {"train_iters": rounds},
    }
