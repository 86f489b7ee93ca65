"""The time until one version of weights has reached many hosts: by a send to each host, and by a tree of hosts.

    python -m bench broadcast                          (about 20 minutes; needs root, and `ip` and `tc`)
    python -m bench broadcast HOSTS [MBIT_PER_S [MB]]  a trial

Each host and the machine of the run is a network namespace, whose link carries 1 Gbit/s in each direction (`tc tbf`).
The run is a real one: the learner makes a version of 10 MB in each round, and a collector on each host fires when it
has it, and sends four bytes back. So a round lasts as long as a version needs to reach all hosts, encrypted. Medians
of 5 rounds; a send is the time to one host. Without relays the learner's link carries a version as often as there are
hosts. With relays a host sends each version to two others (`docs/decisions/0029-weights-by-a-tree.md`), so a level of
the tree takes two sends.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowrl.channels.keys import write_key
from flowrl.checks.state_relays import MIN_SENDS
from tests.cluster.network import network, why_not

HOSTS, MBIT_PER_S, MB = (1, 2, 4, 8, 16, 32, 64), 1000, 10.0
ROUNDS, FIRST = 8, 3  # the first rounds wait for connections
RUN, PORT = "run", 5555
TIMEOUT_S = 900.0
TARGET = 2.0  # sends for each level of the tree


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    if why_not():
        raise SystemExit(f"bench broadcast: {why_not()}")
    counts = (1, int(arguments[0])) if arguments else HOSTS
    mbit_per_s = int(arguments[1]) if len(arguments) > 1 else MBIT_PER_S
    nbytes = int(float(arguments[2] if len(arguments) > 2 else MB) * 1e6)
    results: dict[str, Any] = {}
    send_s = 0.0
    for hosts in counts:
        each_s, tree_s = (
            round_s(hosts, min_sends, mbit_per_s, nbytes) for min_sends in (sys.maxsize, 2)
        )
        send_s = send_s or each_s
        levels = level_count(hosts)
        sends = tree_s / send_s / levels
        results[f"{hosts} hosts"] = {
            "each_s": each_s,
            "tree_s": tree_s,
            "levels": levels,
            "sends_a_level": sends,
        }
        print(
            f"{hosts:3} hosts: {each_s:.3f} s by a send to each ({each_s / send_s:.1f} sends), {tree_s:.3f} s by a "
            f"tree of {levels} levels ({sends:.1f} sends a level)",
            flush=True,
        )
    used = [found for n, found in zip(counts, results.values(), strict=True) if n >= MIN_SENDS]
    worst = max((found["sends_a_level"] for found in used), default=0.0)
    print(f"  {worst:.1f} / {TARGET:.1f}: {'reached' if worst <= TARGET else 'MISSED'}")
    return results


def level_count(hosts: int) -> int:
    """The levels of a tree of two, below the machine of the learner."""
    return (hosts + 1).bit_length() - 1 if hosts > 1 else 1


def round_s(hosts: int, min_sends: int, mbit_per_s: int, nbytes: int) -> float:
    """The median time of a round on so many hosts, with relays if a version is sent so often."""
    names = [f"h{number}" for number in range(hosts)]
    machines = {name: f"10.83.{at // 200}.{at % 200 + 1}" for at, name in enumerate([RUN, *names])}
    address = f"tcp://{machines[RUN]}:{PORT}"
    with network(machines) as net, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_key(folder / "key")
        (folder / "graph.yaml").write_text(json.dumps(graph(hosts, nbytes)))
        for machine in machines:
            net.limit(machine, mbit_per_s)
        key = ("--key", "key")
        for name in names:
            join = ("host", "--join", address, *key, "--name", name)
            net.flowrl(name, *join, cwd=folder, silent=True)
        where = ("--listen", address, *key, "--hosts", str(hosts), "--placement", "collector=h*")
        words = ("run", "graph.yaml", "--json", "--out", "r", "--hosts-within", "10m", *where)
        module = ("bench._relays", str(min_sends))
        run = net.python(RUN, *module, *words, cwd=folder)
        _, err = run.communicate(timeout=TIMEOUT_S)
        if run.returncode:
            raise SystemExit(err)
        rows = (folder / "r" / "metrics.jsonl").read_text().splitlines()
        return statistics.median(json.loads(row)["round_s"] for row in rows[FIRST:])


def graph(hosts: int, nbytes: int) -> dict[str, Any]:
    nodes = "bench._sleeping_nodes"
    return {
        "nodes": {
            "collector": {"type": f"{nodes}:SleepingCollector", "replicas": hosts},
            "learner": {"type": f"{nodes}:TimedLearner", "weights_bytes": nbytes},
        },
        "edges": ["collector -> learner", "learner -> collector"],
        "limits": {"train_iters": ROUNDS},
    }
