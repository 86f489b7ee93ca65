"""What the engine's firing costs: nodes that do nothing, one token in and one out, accounting on.

    python -m bench firing [FIRINGS]

A chain of relays is fired a million times through the engine, and, for comparison in the same run, called by a
bare loop. The price is the difference to an empty run, over all firings.
"""

from __future__ import annotations

import statistics
import sys
import time

from flowrl.api import load
from flowrl.core.node import Node
from flowrl.core.ports import ANY, In, Out
from flowrl.graph.model import Limits
from flowrl.runtime.serial_executor import SerialExecutor

RELAYS = 20
REPEATS = 5


class Tick(Node):
    """Gives one empty token; a learner's place is not needed to count firings."""

    out = Out(ANY)

    def fire(self) -> None:
        return None


class Relay(Node):
    """Hands its token on."""

    data = In(ANY)
    out = Out(ANY)

    def fire(self, data: object) -> object:
        return data


class Drain(Node):
    """Takes its token."""

    data = In(ANY)

    def fire(self, data: object) -> None:
        return None


class Nobody:
    """A sink that nothing is told."""

    def record(self, instance: object, record: object) -> None:
        raise AssertionError("these nodes record nothing")


def chain() -> dict[str, object]:
    """Tick -> relays -> drain."""
    names = [f"relay{i:02}" for i in range(RELAYS)]
    nodes = {"a": {"type": "bench.firing:Tick"}, "z": {"type": "bench.firing:Drain"}}
    nodes |= {n: {"type": "bench.firing:Relay"} for n in names}
    return {"nodes": nodes, "edges": [" -> ".join(["a", *names, "z"])]}


def through_engine(rounds: int) -> float:
    """Seconds for so many rounds."""
    executor = SerialExecutor(load(chain()).check(), Nobody(), 0, Limits(rounds=rounds))
    start = time.perf_counter()
    executor.run()
    taken = time.perf_counter() - start
    fired = sum(r.fired for r in executor.instances.all())
    assert fired == rounds * (RELAYS + 2), fired
    return taken


def bare(rounds: int) -> float:
    """Seconds for the same calls from a loop."""
    relays = [Relay() for _ in range(RELAYS)]
    tick, drain = Tick(), Drain()
    start = time.perf_counter()
    for _ in range(rounds):
        token = tick.fire()
        for relay in relays:
            token = relay.fire(token)
        drain.fire(token)
    return time.perf_counter() - start


def main(arguments: list[str]) -> dict[str, float]:
    """Measure and print."""
    firings = int(arguments[0]) if arguments else 1_000_000
    rounds = firings // (RELAYS + 2)
    engine_us, bare_us = [], []
    for _ in range(REPEATS):
        engine_us.append(through_engine(rounds) / rounds / (RELAYS + 2) * 1e6)
        bare_us.append(bare(rounds) / rounds / (RELAYS + 2) * 1e6)
    found = {"engine_us": statistics.median(engine_us), "bare_call_us": statistics.median(bare_us)}
    print(f"{rounds * (RELAYS + 2):,} firings, median of {REPEATS}")
    print(f"  through the engine  {found['engine_us']:.3f} us a firing (target: 1.5 or less)")
    print(f"  a bare loop of calls {found['bare_call_us']:.3f} us")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
