"""The throughput of a run whose collector is behind a slow network: what `lag` hides, and what it does not.

    python -m bench slow_network                  (about three minutes; needs root, and `ip` of iproute2)
    python -m bench slow_network ROUNDS           a trial

The learner is on one machine and the collector on another; both are network namespaces of this machine. The network
delays every segment by 20 ms in each direction, and stalls 1 % of them for 200 ms more (`tests/cluster/slow_cable.py`).
Both nodes sleep: the learner for 0.4 s in a round, the collector for 0.2 s. A token has 64 KB, the weights 256 KB.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench._arguments import benchmark_parser
from flowrl.channels.keys import write_key
from tests.cluster.network import MACHINES, network, why_not

ROUNDS, LAGS = 60, (0, 1, 2)
LEARN_S, COLLECT_S = 0.4, 0.2
TOKEN_BYTES, WEIGHTS_BYTES = 64 << 10, 256 << 10
ADDRESS = f"tcp://{MACHINES['run']}:5555"
TARGET = 0.9  # of the throughput without the slow network, with `lag: 1`
TIMEOUT_S = 600.0


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    rounds = parser.parse_args(arguments).rounds
    if why_not():
        raise SystemExit(f"bench slow_network: {why_not()}")
    results: dict[str, Any] = {}
    for lag in LAGS:
        fast, slow = (rounds_per_s(lag, rounds, is_slow) for is_slow in (False, True))
        results[f"lag {lag}"] = {"fast": fast, "slow": slow, "share": slow / fast}
        print(
            f"lag {lag}: {fast:5.2f} rounds/s, {slow:5.2f} behind the slow network: {slow / fast:.0%}",
            flush=True,
        )
    share = results["lag 1"]["share"]
    print(
        f"  lag 1 / {TARGET:.0%}: {share / TARGET:.2f}  {'reached' if share >= TARGET else 'MISSED'}"
    )
    return results


def rounds_per_s(lag: int, rounds: int, is_slow: bool) -> float:
    """The rounds per second of a run on two machines."""
    with network() as net, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_key(folder / "key")
        (folder / "graph.yaml").write_text(json.dumps(graph(lag)))
        if is_slow:
            net.slow_down("a")
        join = ("host", "--join", ADDRESS, "--key", "key", "--name", "a")
        net.flowrl("a", *join, cwd=folder, silent=True)
        rendezvous = ("--listen", ADDRESS, "--key", "key", "--placement", "collector=a")
        words = ("run", "graph.yaml", "--json", "--out", "r", "--train-iters", str(rounds))
        run = net.flowrl("run", *words, *rendezvous, cwd=folder)
        out, err = run.communicate(timeout=TIMEOUT_S)
        if run.returncode:
            raise SystemExit(err)
        return rounds / float(json.loads(out)["training_s"])


def graph(lag: int) -> dict[str, Any]:
    nodes = "bench._sleeping_nodes:Sleeping"
    return {
        "nodes": {
            "collector": {
                "type": f"{nodes}Collector",
                "sleep_s": COLLECT_S,
                "token_bytes": TOKEN_BYTES,
            },
            "learner": {
                "type": f"{nodes}Learner",
                "sleep_s": LEARN_S,
                "weights_bytes": WEIGHTS_BYTES,
            },
        },
        "edges": ["collector -> learner", {"learner -> collector": {"lag": lag}}],
    }
