"""The throughput and round-trip time of every transport, compared with other ways to pass arrays.

    python -m bench channels                         all kinds: about four minutes
    python -m bench channels [KIND…] [--size BYTES]  a trial
    python -m bench channels threshold               the size from which shared memory is faster than the socket

A token is an array of bytes. Throughput: one process sends as fast as it can, and the other takes the tokens
without reading them. Round trip: a token is sent, and an empty token comes back. memcpy is a copy within one
process, for comparison with the single copy into shared memory.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zmq

from bench._arguments import benchmark_parser, one_of
from flowrl.channels import (
    ChannelLimits,
    InboxRegistry,
    SiteChannels,
    SiteConnections,
    ipc,
    zmq_connection,
)
from flowrl.channels.keys import Keys, new_pair

SIZES = (0, 1 << 10, 1 << 16, 1 << 20, 16 << 20)
FLOWRL_KINDS = ("thread", "ipc", "shared", "curve")
PYZMQ_KINDS = ("raw-ipc", "raw-tcp")
MULTIPROCESSING_KINDS = ("queue", "pipe")
OTHER_KINDS = (*PYZMQ_KINDS, *MULTIPROCESSING_KINDS)
THROUGHPUT_S, ROUND_TRIPS_S, REPEATS = 0.6, 0.3, 3
LIMITS = ChannelLimits(tokens=256, bytes=64 << 20)
WAIT_S = 60.0
SPAWN = multiprocessing.get_context("spawn")

Result = dict[str, float]


class Endpoint(Protocol):
    """One end of a two-way connection."""

    def send(self, value: Any) -> None:
        """Send a token."""

    def take(self) -> Any:
        """Wait for a token."""

    def close(self) -> None:
        """Close this end, after what was sent has arrived."""


class ChannelEndpoint:
    """flowrl: a channel in each direction."""

    def __init__(
        self, site: str, peer: str, listen: str, peer_address: str, keys: Keys | None, shared: int
    ) -> None:
        connections = SiteConnections(site, b"bench", INBOXES, keys=keys, shared_bytes=shared)
        self.address = (
            connections.inproc_address if listen == "thread" else connections.listen(listen)
        )
        self.connections, self._site = connections, site
        if peer_address:
            self.connect(peer, peer_address)

    def connect(self, peer: str, peer_address: str) -> None:
        self.connections.connect(peer, peer_address)
        self._channels = SiteChannels(self.connections)
        self._sender = self._channels.open_sender(f"{self._site}-{peer}", peer, limits=LIMITS)
        self._receiver = self._channels.open_receiver(f"{peer}-{self._site}", peer, limits=LIMITS)

    def send(self, value: Any) -> None:
        if not self._sender.is_ready():
            self._channels.wait(self._sender, WAIT_S)
        self._sender.send(value)

    def take(self) -> Any:
        if not self._receiver.is_ready():
            self._channels.wait(self._receiver, WAIT_S)
        return self._receiver.take()[0]

    def close(self) -> None:
        self._channels.wait_until(lambda: self._sender.all_taken, [self._sender], WAIT_S)
        self._channels.flush()
        self._channels.close()


INBOXES: InboxRegistry = {}  # of the sites in this process


class PyzmqEndpoint:
    """pyzmq without flowrl: PUSH and PULL sockets, which carry a header and a frame."""

    def __init__(self, listen: str, peer_address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pull, self._push = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        self._pull.bind(listen)
        self.address = str(self._pull.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        if peer_address:
            self._push.connect(peer_address)

    def send(self, value: Any) -> None:
        if value is None:
            self._push.send(b"")
        elif isinstance(value, str):
            self._push.send(value.encode())
        else:
            self._push.send_multipart([HEADER, value], copy=value.nbytes < 1 << 16)

    def take(self) -> Any:
        parts = self._pull.recv_multipart(copy=False)
        if len(parts) == 1:
            return parts[0].bytes.decode() or None
        return np.frombuffer(parts[1].buffer, np.uint8)

    def close(self) -> None:
        self._push.close()
        self._pull.close()
        self._context.term()


HEADER = bytes(64)


class QueueEndpoint:
    """A multiprocessing.Queue in each direction."""

    def __init__(self, outgoing: Any, incoming: Any) -> None:
        self._outgoing, self.take = outgoing, incoming.get
        self.send = outgoing.put

    def close(self) -> None:
        self._outgoing.close()
        self._outgoing.join_thread()


class PipeEndpoint:
    """A multiprocessing.Pipe."""

    def __init__(self, connection: Any) -> None:
        self.send, self.take, self.close = connection.send, connection.recv, connection.close


# The two processes


def serve(make: Callable[..., Endpoint], arguments: tuple[Any, ...]) -> None:
    """Run the other end: obey the commands `throughput`, `round trips` and `end`."""
    end = make(*arguments)
    end.send("ready")
    while (command := end.take()) != "end":
        if command == "throughput":
            while not isinstance(end.take(), str):
                pass
            end.send("all taken")
        else:
            while not isinstance(end.take(), str):
                end.send(None)
    end.close()


def measure_throughput(end: Endpoint, payload: Any, seconds: float) -> float:
    """The tokens per second."""
    end.send("throughput")
    start_s = time.perf_counter()
    sent = 0
    while time.perf_counter() - start_s < seconds:
        for _ in range(8):
            end.send(payload)
        sent += 8
    end.send("stop")
    assert end.take() == "all taken"
    return sent / (time.perf_counter() - start_s)


def measure_round_trips(end: Endpoint, payload: Any, seconds: float) -> list[float]:
    """The duration of each round trip, in seconds."""
    end.send("round trips")
    durations_s = []
    end_s = time.perf_counter() + seconds
    while (start_s := time.perf_counter()) < end_s:
        end.send(payload)
        end.take()
        durations_s.append(time.perf_counter() - start_s)
    end.send("stop")
    return durations_s


def measure(end: Endpoint, size: int, seconds: float) -> Result:
    """The throughput and round trips of tokens of one size."""
    payload = None if size == 0 else np.full(size, 7, np.uint8)
    measure_throughput(end, payload, seconds / 2)  # warm up, so that buffers have grown
    rates = [measure_throughput(end, payload, seconds) for _ in range(REPEATS)]
    trips_s = sorted(measure_round_trips(end, payload, ROUND_TRIPS_S))
    rate = statistics.median(rates)
    return {
        "per_s": rate,
        "gb_per_s": rate * size / 1e9,
        "spread": (max(rates) - min(rates)) / rate,
        "p50_us": trips_s[len(trips_s) // 2] * 1e6,
        "p99_us": trips_s[len(trips_s) * 99 // 100] * 1e6,
    }


def measure_kind(
    kind: str, sizes: tuple[int, ...], seconds: float = THROUGHPUT_S
) -> dict[int, Result]:
    """The results of one kind of connection, by size."""
    with tempfile.TemporaryDirectory() as folder:
        end, make_peer = open_connection(kind, Path(folder))
        peer = make_peer()
        peer.start()
        assert end.take() == "ready"
        results = {size: measure(end, size, seconds) for size in sizes}
        end.send("end")
        end.close()
        peer.join(WAIT_S)
    return results


def open_connection(kind: str, folder: Path) -> tuple[Any, Callable[[], Any]]:
    """Make this end, and return it with a function that makes the thread or process of the other end."""
    if kind == "thread":
        return open_thread_connection()
    if kind == "pipe":
        own_pipe, peer_pipe = SPAWN.Pipe()
        return PipeEndpoint(own_pipe), lambda: peer_process(PipeEndpoint, peer_pipe)
    if kind == "queue":
        outgoing: Any = SPAWN.Queue(LIMITS.tokens)
        incoming: Any = SPAWN.Queue(LIMITS.tokens)
        end = QueueEndpoint(outgoing, incoming)
        return end, lambda: peer_process(QueueEndpoint, incoming, outgoing)
    if kind in ("ipc", "shared", "raw-ipc"):
        listen, peer_listen = f"ipc://{folder}/own", f"ipc://{folder}/peer"
    else:
        listen, peer_listen = "tcp://127.0.0.1:*", f"tcp://127.0.0.1:{free_port()}"
    if kind in PYZMQ_KINDS:
        raw_end = PyzmqEndpoint(listen, peer_listen)
        return raw_end, lambda: peer_process(PyzmqEndpoint, peer_listen, raw_end.address)
    own_keys = peer_keys = None
    if kind == "curve":
        own_pair, peer_pair = new_pair(), new_pair()
        own_keys = Keys(*own_pair, {"peer": peer_pair[0]})
        peer_keys = Keys(*peer_pair, {"own": own_pair[0]})
    shared = 1 << 30 if kind == "shared" else 0
    channel_end = ChannelEndpoint("own", "peer", listen, peer_listen, own_keys, shared)
    peer_arguments = ("peer", "own", peer_listen, channel_end.address, peer_keys, shared)
    return channel_end, lambda: peer_process(ChannelEndpoint, *peer_arguments)


def open_thread_connection() -> tuple[Any, Callable[[], Any]]:
    end = ChannelEndpoint("own", "peer", "thread", "", None, 0)
    peer_end = ChannelEndpoint("peer", "own", "thread", end.address, None, 0)
    end.connect("peer", peer_end.address)
    return end, lambda: threading.Thread(target=serve, args=(lambda: peer_end, ()))


def peer_process(make: Callable[..., Endpoint], *arguments: Any) -> Any:
    return SPAWN.Process(target=serve, args=(make, arguments), daemon=True)


def free_port() -> int:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        return int(socket.bind_to_random_port("tcp://127.0.0.1"))


def measure_memcpy(sizes: tuple[int, ...]) -> dict[int, Result]:
    """The rate of copies within a process, into memory that is reused."""
    results = {}
    for size in sizes:
        source, target = np.full(max(size, 1), 7, np.uint8), np.zeros(max(size, 1), np.uint8)
        rates = []
        for _ in range(REPEATS):
            copies = 0
            start_s = time.perf_counter()
            while time.perf_counter() - start_s < THROUGHPUT_S / 2:
                for _ in range(8):
                    np.copyto(target, source)
                copies += 8
            rates.append(copies / (time.perf_counter() - start_s))
        rate = statistics.median(rates)
        results[size] = {"per_s": rate, "gb_per_s": rate * size / 1e9}
    return results


# The output


def compare_around_threshold() -> dict[str, Any]:
    """Compare the socket with shared memory, for sizes around the current threshold."""
    results = {}
    print(f"payloads are shared from {ipc.MIN_SHARED_BYTES} bytes; here both ways for every size")
    for size in (1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 18):
        socket, shared = (measure_without_threshold(kind, size) for kind in ("ipc", "shared"))
        results[str(size)] = {"socket": socket, "shared": shared}
        print(
            f"{size:>8} B   socket {socket['per_s']:>9,.0f}/s {socket['p50_us']:>6.0f} us"
            f"   shared {shared['per_s']:>9,.0f}/s {shared['p50_us']:>6.0f} us"
        )
    return results


def measure_without_threshold(kind: str, size: int) -> Result:
    """The result for one size; the kind `shared` shares payloads of any size."""
    thresholds = ipc.MIN_SHARED_BYTES, zmq_connection.MAX_BODY_BYTES
    if kind == "shared":
        ipc.MIN_SHARED_BYTES, zmq_connection.MAX_BODY_BYTES = 1, size - 1
    try:
        return measure_kind(kind, (size,), THROUGHPUT_S / 2)[size]
    finally:
        ipc.MIN_SHARED_BYTES, zmq_connection.MAX_BODY_BYTES = thresholds


def show_kind(kind: str, results: dict[int, Result]) -> None:
    """Print a line for each size."""
    for size, result in results.items():
        line = f"{kind:<8} {size:>9} {result['per_s']:>11,.0f}/s {result['gb_per_s']:>7.2f} GB/s"
        if "p50_us" in result:
            line += f" {result['p50_us']:>8.0f} us {result['p99_us']:>8.0f} us   ±{result['spread']:.0%}"
        print(line, flush=True)


def compare_with_targets(results: dict[str, dict[int, Result]]) -> dict[str, float]:
    """Print and return each result divided by its target; each should be at least 1."""
    shared, raw, memcpy = results["shared"], results["raw-ipc"], results["memcpy"]
    ratios = {
        "rate at 1 KB / 30 % of pyzmq": shared[1 << 10]["per_s"] / raw[1 << 10]["per_s"] / 0.3,
        "1.5 x pyzmq's round trip of 0 B / round trip": 1.5
        * raw[0]["p50_us"]
        / shared[0]["p50_us"],
    }
    for size in (1 << 20, 16 << 20):
        rate = shared[size]["per_s"]
        ratios[f"rate at {size >> 20} MB / 3 x pyzmq"] = rate / raw[size]["per_s"] / 3
        ratios[f"rate at {size >> 20} MB / 60 % of memcpy"] = rate / memcpy[size]["per_s"] / 0.6
    for name, value in ratios.items():
        print(f"  {name:<46} {value:5.2f}  {'reached' if value >= 1 else 'MISSED'}")
    return ratios


def main(arguments: list[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    kinds = [*FLOWRL_KINDS, *OTHER_KINDS, "memcpy", "threshold"]
    parser.add_argument("kinds", nargs="*", type=one_of(kinds), metavar="KIND")
    parser.add_argument("--size", type=int, action="append")
    options = parser.parse_args(arguments)
    if options.kinds == ["threshold"]:
        return compare_around_threshold()
    sizes = tuple(options.size or SIZES)
    print(f"{'':<8} {'bytes':>9} {'tokens':>13} {'':>12} {'p50':>11} {'p99':>11}   spread")
    results = {}
    for kind in options.kinds or ["memcpy", *OTHER_KINDS, *FLOWRL_KINDS]:
        results[kind] = measure_memcpy(sizes) if kind == "memcpy" else measure_kind(kind, sizes)
        show_kind(kind, results[kind])
    by_kind = {kind: {str(size): r for size, r in of.items()} for kind, of in results.items()}
    return by_kind if arguments else {"targets": compare_with_targets(results), **by_kind}
