"""The learner or a host of `bench broadcast`, in a process of its own: it sends versions, or passes them on."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from flowrl.channels import Receiver, Sender, SiteChannels, SiteConnections
from flowrl.channels.keys import Keys

LEARNER, PORT, RUN = "learner", 5555, b"a secret of the run"
WAIT_S = 120.0


def main(config: dict[str, Any]) -> None:
    name = config["name"]
    connections = SiteConnections(name, RUN, keys=Keys.from_json(config["keys"]))
    connections.listen(config["address"])
    for peer, address in config["peers"].items():
        connections.connect(peer, address)
    channels = SiteChannels(connections)
    outs = [channels.open_sender(f"weights:{child}", child) for child in config["children"]]
    if name == LEARNER:
        hosts = [channels.open_receiver(f"done:{peer}", peer) for peer in config["peers"]]
        weights = np.random.default_rng(0).random(config["nbytes"] // 4, np.float32)
        times = [send_s(channels, outs, hosts, {"w": weights}) for _ in range(config["versions"])]
        print(json.dumps(times), flush=True)
        return
    weights_in = channels.open_receiver(f"weights:{name}", config["parent"])
    done = channels.open_sender(f"done:{name}", LEARNER)
    for _ in range(config["versions"]):
        pass_on(channels, weights_in, outs)
        done.send(True)
        channels.flush()
    channels.wait_until(lambda: all(out.all_taken for out in (*outs, done)), (), WAIT_S)


def send_s(
    channels: SiteChannels, outs: list[Sender], hosts: list[Receiver], value: dict[str, Any]
) -> float:
    """Send a version, and return the seconds until all hosts have confirmed it."""
    began_s = time.perf_counter()
    for out in outs:
        out.send(value)
    channels.flush()
    for host in hosts:
        channels.wait(host, WAIT_S)
        host.take()
    return time.perf_counter() - began_s


def pass_on(channels: SiteChannels, weights: Receiver, outs: list[Sender]) -> None:
    """Take a version, and send it to other hosts."""
    channels.wait(weights, WAIT_S)
    value, _ = weights.take()
    for out in outs:
        channels.wait(out, WAIT_S)
        out.send(value)
    channels.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
