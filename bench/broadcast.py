"""The time until one version of weights has reached many hosts: by a send to each host, and by a tree of hosts.

    python -m bench broadcast                    (about a minute; needs root, and `ip` and `tc` of iproute2)
    python -m bench broadcast HOSTS MBIT_PER_S   a trial

Each host and the learner's machine is a network namespace, whose link carries 1 Gbit/s in each direction (`tc tbf`). A
version is an array of 10 MB, which goes through channels as between sites, encrypted. The engine sends it to each host:
the learner's link carries it as often as there are hosts. In the tree, a host passes each version on to two others
(`docs/decisions/0029-weights-by-a-tree.md`), so a level takes two sends. Until all hosts have confirmed the version is
the time; medians of 5. A send is the time to one host.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bench._broadcast_peer import LEARNER, PORT
from flowrl.channels.keys import Keys, new_pair
from flowrl.machine.network_address import tcp_url
from tests.cluster.network import Network, network, why_not

HOSTS, MBIT_PER_S = (1, 2, 4, 8, 16), 1000
NBYTES, VERSIONS = 10_000_000, 5
TIMEOUT_S = 300.0
TARGET = 2.0  # sends for each level of the tree


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    if why_not():
        raise SystemExit(f"bench broadcast: {why_not()}")
    counts = (1, int(arguments[0])) if arguments else HOSTS
    mbit_per_s = int(arguments[1]) if len(arguments) > 1 else MBIT_PER_S
    results: dict[str, Any] = {}
    send_s = 0.0
    for hosts in counts:
        star_s, tree_s = (broadcast_s(hosts, fan_out, mbit_per_s) for fan_out in (hosts, 2))
        send_s = send_s or star_s
        levels = level_count(hosts)
        results[f"{hosts} hosts"] = {"each_s": star_s, "tree_s": tree_s, "levels": levels}
        print(
            f"{hosts:3} hosts: {star_s:.2f} s by a send to each ({star_s / send_s:.1f} sends), {tree_s:.2f} s by a "
            f"tree of {levels} levels ({tree_s / send_s / levels:.1f} sends a level)",
            flush=True,
        )
    sends = results[f"{counts[-1]} hosts"]["each_s"] / send_s / level_count(counts[-1])
    print(
        f"  {sends:.1f} / {TARGET:.1f}: {'reached' if sends <= TARGET else 'MISSED'} by a send to each"
    )
    return results


def level_count(hosts: int) -> int:
    """The levels of a tree of two, below the learner."""
    return (hosts + 1).bit_length() - 1 if hosts > 1 else 1


def broadcast_s(hosts: int, fan_out: int, mbit_per_s: int) -> float:
    """The median time of a version to so many hosts."""
    names = [LEARNER, *(f"h{number}" for number in range(hosts))]
    machines = {name: f"10.83.{at // 200}.{at % 200 + 1}" for at, name in enumerate(names)}
    parents = {name: names[at // fan_out] for at, name in enumerate(names[1:])}
    with network(machines) as net:
        for name in names:
            net.limit(name, mbit_per_s)
        peers = start_peers(net, machines, parents)
        try:
            out, _ = peers[LEARNER].communicate(timeout=TIMEOUT_S)
        finally:
            for peer in peers.values():
                peer.kill()
                peer.communicate()
    return statistics.median(json.loads(out)[1:])  # the first one waits for the connections


def start_peers(
    net: Network, machines: dict[str, str], parents: dict[str, str]
) -> dict[str, subprocess.Popen[str]]:
    """Start the learner and the hosts, each on its machine."""
    pairs = {name: new_pair() for name in machines}
    started = {}
    for name in machines:
        children = [child for child, parent in parents.items() if parent == name]
        others = [n for n in machines if n != name] if name == LEARNER else [LEARNER]
        peers = {*others, *children, *([parents[name]] if name in parents else [])}
        config = {
            "name": name,
            "address": tcp_url(machines[name], PORT),
            "keys": Keys(*pairs[name], {peer: pairs[peer][0] for peer in peers}).to_json(),
            "peers": {peer: tcp_url(machines[peer], PORT) for peer in peers},
            "parent": parents.get(name, ""),
            "children": children,
            "nbytes": NBYTES,
            "versions": VERSIONS + 1,
        }
        words = [
            *net.enter(name),
            sys.executable,
            "-m",
            "bench._broadcast_peer",
            json.dumps(config),
        ]
        started[name] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    return started
