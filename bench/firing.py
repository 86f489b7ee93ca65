"""The engine's cost of a firing: nodes that do nothing, with one token in and one out, statistics on.

    python -m bench firing [FIRINGS]

The engine fires a chain of relays a million times. For comparison, a bare loop calls the same nodes. The cost
is the time divided by the number of firings.
"""

from __future__ import annotations

import statistics
import time

from bench._arguments import benchmark_parser
from flowrl.api import load
from flowrl.core.node import Node
from flowrl.core.ports import ANY, In, Out
from flowrl.graph.model import Limits
from flowrl.runtime.serial_executor import SerialExecutor

RELAYS = 20
NODES = RELAYS + 2
REPEATS = 5


class Source(Node):
    """Outputs one empty token."""

    out = Out(ANY)

    def fire(self) -> None:
        return None


class Relay(Node):
    """Passes its token on."""

    data = In(ANY)
    out = Out(ANY)

    def fire(self, data: object) -> object:
        return data


class Sink(Node):
    """Consumes its token."""

    data = In(ANY)

    def fire(self, data: object) -> None:
        return None


class NoRecords:
    """A sink of records that must get none."""

    def record(self, instance: object, record: object) -> None:
        raise AssertionError("these nodes emit no records")


def chain() -> dict[str, object]:
    """The graph source -> relays -> sink."""
    names = ["source", *(f"relay{i:02}" for i in range(RELAYS)), "sink"]
    types = ["Source", *["Relay"] * RELAYS, "Sink"]
    nodes = {n: {"type": f"bench.firing:{t}"} for n, t in zip(names, types, strict=True)}
    return {"nodes": nodes, "edges": [" -> ".join(names)]}


def engine_s(rounds: int) -> float:
    """The seconds that the engine takes for this number of rounds."""
    executor = SerialExecutor(load(chain()).check(), NoRecords(), 0, Limits(rounds=rounds))
    start_s = time.perf_counter()
    executor.run()
    duration_s = time.perf_counter() - start_s
    fired = sum(instance.fired for instance in executor.instances.all())
    assert fired == rounds * NODES, fired
    return duration_s


def bare_loop_s(rounds: int) -> float:
    """The seconds that a bare loop takes for the same calls."""
    relays = [Relay() for _ in range(RELAYS)]
    source, sink = Source(), Sink()
    start_s = time.perf_counter()
    for _ in range(rounds):
        token = source.fire()
        for relay in relays:
            token = relay.fire(token)
        sink.fire(token)
    return time.perf_counter() - start_s


def main(arguments: list[str]) -> dict[str, float]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("firings", nargs="?", type=int, default=1_000_000)
    firings = parser.parse_args(arguments).firings
    rounds = firings // NODES
    engine_us, bare_us = [], []
    for _ in range(REPEATS):
        engine_us.append(engine_s(rounds) / rounds / NODES * 1e6)
        bare_us.append(bare_loop_s(rounds) / rounds / NODES * 1e6)
    results = {
        "engine_us": statistics.median(engine_us),
        "bare_call_us": statistics.median(bare_us),
    }
    print(f"{rounds * NODES:,} firings, median of {REPEATS}")
    print(f"  engine     {results['engine_us']:.3f} us per firing (target: 1.5 or less)")
    print(f"  bare loop  {results['bare_call_us']:.3f} us per call")
    return results
