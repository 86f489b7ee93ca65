"""What a channel costs: throughput and round trips of every transport, beside what others offer for the same.

    python -m bench channels                         everything: about four minutes
    python -m bench channels [KIND…] [--size BYTES]  a trial
    python -m bench channels threshold               where shared memory begins to be faster than the socket

The token is an array of bytes. Flood: one process sends as fast as it may, the other takes and looks at nothing.
Round trip: a token there, an empty one back. memcpy is a copy within one process: what the one copy into shared
memory is held against.
"""

from __future__ import annotations

import argparse
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

from flowrl.channels import ChannelLimits, SiteChannels, SiteConnections, ipc, zmq_connection
from flowrl.channels.keys import Keys, new_pair

SIZES = (0, 1 << 10, 1 << 16, 1 << 20, 16 << 20)
FLOWRL = ("thread", "ipc", "shared", "curve")
OTHERS = ("raw-ipc", "raw-tcp", "queue", "pipe")
FLOOD_S, ECHO_S, REPEATS = 0.6, 0.3, 3
BOUND = ChannelLimits(tokens=256, bytes=64 << 20)
WAIT_S = 60.0
SPAWN = multiprocessing.get_context("spawn")

Answer = dict[str, float]


class End(Protocol):
    """One end of a two-way channel."""

    def send(self, value: Any) -> None:
        """Give a token."""

    def take(self) -> Any:
        """Wait for a token."""

    def close(self) -> None:
        """Let go."""


class Lanes:
    """flowrl: a lane there and a lane back."""

    def __init__(
        self, me: str, peer: str, listen: str, to: str, keys: Keys | None, shared: int
    ) -> None:
        connections = SiteConnections(me, b"bench", THREADS, keys=keys, shared_bytes=shared)
        self.listens = (
            connections.inproc_address if listen == "thread" else connections.listen(listen)
        )
        if to:
            self.connect(connections, me, peer, to)
        self._connections, self._names = connections, (me, peer)

    def connect(self, connections: SiteConnections, me: str, peer: str, to: str) -> None:
        connections.connect(peer, to)
        self._channels = SiteChannels(connections)
        self._sender = self._channels.open_sender(f"{me}-{peer}", peer, limits=BOUND)
        self._receiver = self._channels.open_receiver(f"{peer}-{me}", peer, limits=BOUND)

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


THREADS: dict[str, Any] = {}  # of this process


class Raw:
    """pyzmq: a header and a frame, by way of PUSH and PULL."""

    def __init__(self, listen: str, to: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pull, self._push = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        self._pull.bind(listen)
        self.listens = str(self._pull.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        if to:
            self._push.connect(to)

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


class Queues:
    """multiprocessing.Queue, one each way."""

    def __init__(self, out: Any, into: Any) -> None:
        self._out, self.take = out, into.get
        self.send = out.put

    def close(self) -> None:
        self._out.close()
        self._out.join_thread()


class Pipe:
    """multiprocessing.Pipe."""

    def __init__(self, connection: Any) -> None:
        self.send, self.take, self.close = connection.send, connection.recv, connection.close


# the two processes


def child(make: Callable[..., End], arguments: tuple[Any, ...]) -> None:
    """The other end: takes orders, floods and pings."""
    end = make(*arguments)
    end.send("here")
    while True:
        order = end.take()
        if order == "end":
            break
        if order == "flood":
            while not isinstance(end.take(), str):
                pass
            end.send("all here")
        else:
            while not isinstance(end.take(), str):
                end.send(None)
    end.close()


def flood(end: End, payload: Any, seconds: float) -> float:
    """Tokens a second."""
    end.send("flood")
    start = time.perf_counter()
    sent = 0
    while time.perf_counter() - start < seconds:
        for _ in range(8):
            end.send(payload)
        sent += 8
    end.send("enough")
    assert end.take() == "all here"
    return sent / (time.perf_counter() - start)


def echo(end: End, payload: Any, seconds: float) -> list[float]:
    """Round trips, in seconds."""
    end.send("echo")
    trips = []
    began = time.perf_counter()
    while (start := time.perf_counter()) - began < seconds:
        end.send(payload)
        end.take()
        trips.append(time.perf_counter() - start)
    end.send("enough")
    return trips


def measure(end: End, size: int, seconds: float = FLOOD_S) -> Answer:
    """Throughput and round trips for one size."""
    payload = None if size == 0 else np.full(size, 7, np.uint8)
    flood(end, payload, seconds / 2)  # warm: memory is mapped, buffers have grown
    rates = [flood(end, payload, seconds) for _ in range(REPEATS)]
    trips = sorted(echo(end, payload, ECHO_S))
    rate = statistics.median(rates)
    return {
        "per_s": rate,
        "gb_per_s": rate * size / 1e9,
        "spread": (max(rates) - min(rates)) / rate,
        "p50_us": trips[len(trips) // 2] * 1e6,
        "p99_us": trips[len(trips) * 99 // 100] * 1e6,
    }


def send_error(kind: str, sizes: tuple[int, ...], seconds: float = FLOOD_S) -> dict[int, Answer]:
    """Measure one kind of channel."""
    with tempfile.TemporaryDirectory() as folder:
        end, start = opened(kind, Path(folder))
        worker = start()
        worker.start()
        assert end.take() == "here"
        found = {size: measure(end, size, seconds) for size in sizes}
        end.send("end")
        end.close()
        worker.join(WAIT_S)
    return found


def opened(kind: str, folder: Path) -> tuple[Any, Callable[[], Any]]:
    """This end, and what makes the thread or process with the other."""
    if kind in OTHERS[2:]:
        return opened_by_multiprocessing(kind)
    near = kind in ("ipc", "shared", "raw-ipc")
    here = f"ipc://{folder}/here" if near else "tcp://127.0.0.1:*"
    there = f"ipc://{folder}/there" if near else f"tcp://127.0.0.1:{free_port()}"
    if kind.startswith("raw"):
        raw = Raw(here, there)
        return raw, lambda: process(Raw, there, raw.listens)
    one, two = new_pair(), new_pair()
    keys = kind == "curve"
    mine = Keys(*one, {"there": two[0]}) if keys else None
    its = Keys(*two, {"here": one[0]}) if keys else None
    shared = 1 << 30 if kind == "shared" else 0
    if kind == "thread":
        return opened_by_thread()
    end = Lanes("here", "there", here, there, mine, shared)
    return end, lambda: process(Lanes, "there", "here", there, end.listens, its, shared)


def opened_by_thread() -> tuple[Any, Callable[[], Any]]:
    end = Lanes("here", "there", "thread", "", None, 0)
    other = Lanes("there", "here", "thread", "inproc://here", None, 0)
    end.connect(end._connections, "here", "there", "inproc://there")
    return end, lambda: threading.Thread(target=child, args=(lambda: other, ()))


def opened_by_multiprocessing(kind: str) -> tuple[Any, Callable[[], Any]]:
    if kind == "pipe":
        mine, its = SPAWN.Pipe()
        return Pipe(mine), lambda: process(Pipe, its)
    out: Any = SPAWN.Queue(BOUND.tokens)
    into: Any = SPAWN.Queue(BOUND.tokens)
    return Queues(out, into), lambda: process(Queues, into, out)


def process(make: Callable[..., End], *arguments: Any) -> Any:
    return SPAWN.Process(target=child, args=(make, arguments), daemon=True)


def free_port() -> int:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        return int(socket.bind_to_random_port("tcp://127.0.0.1"))


def memcpy(sizes: tuple[int, ...]) -> dict[int, Answer]:
    """Copies within a process, into memory that is used again."""
    found = {}
    for size in sizes:
        source, place = np.full(max(size, 1), 7, np.uint8), np.zeros(max(size, 1), np.uint8)
        rates = []
        for _ in range(REPEATS):
            copies = 0
            start = time.perf_counter()
            while time.perf_counter() - start < FLOOD_S / 2:
                for _ in range(8):
                    np.copyto(place, source)
                copies += 8
            rates.append(copies / (time.perf_counter() - start))
        rate = statistics.median(rates)
        found[size] = {"per_s": rate, "gb_per_s": rate * size / 1e9}
    return found


# what is printed


def threshold() -> dict[str, Any]:
    """Round trips and floods by socket and by shared memory, for sizes around the constant."""
    found = {}
    print(f"sharing from {ipc.MIN_SHARED_BYTES} bytes on; here every size by both ways")
    for size in (1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 18):
        socket, memory = (over_threshold(kind, size) for kind in ("ipc", "shared"))
        found[str(size)] = {"socket": socket, "shared": memory}
        print(
            f"{size:>8} B   socket {socket['per_s']:>9,.0f}/s {socket['p50_us']:>6.0f} us"
            f"   shared {memory['per_s']:>9,.0f}/s {memory['p50_us']:>6.0f} us"
        )
    return found


def over_threshold(kind: str, size: int) -> Answer:
    """One size, shared if at all possible."""
    before = ipc.MIN_SHARED_BYTES, zmq_connection.MAX_BODY_BYTES
    if kind == "shared":
        ipc.MIN_SHARED_BYTES, zmq_connection.MAX_BODY_BYTES = 1, size - 1
    try:
        return send_error(kind, (size,), FLOOD_S / 2)[size]
    finally:
        ipc.MIN_SHARED_BYTES, zmq_connection.MAX_BODY_BYTES = before


def show(kind: str, found: dict[int, Answer]) -> None:
    """One line for each size."""
    for size, answer in found.items():
        line = f"{kind:<8} {size:>9} {answer['per_s']:>11,.0f}/s {answer['gb_per_s']:>7.2f} GB/s"
        if "p50_us" in answer:
            line += f" {answer['p50_us']:>8.0f} us {answer['p99_us']:>8.0f} us   ±{answer['spread']:.0%}"
        print(line, flush=True)


def targets(all_found: dict[str, dict[int, Answer]]) -> dict[str, float]:
    """What the issue asks for, and what is reached: each should be at least 1."""
    shared, raw, copies = all_found["shared"], all_found["raw-ipc"], all_found["memcpy"]
    found = {
        "messages at 1 KB, of 30 % of raw": shared[1 << 10]["per_s"] / raw[1 << 10]["per_s"] / 0.3,
        "round trip of 0 B, of 1.5 x raw": 1.5 * raw[0]["p50_us"] / shared[0]["p50_us"],
    }
    for size in (1 << 20, 16 << 20):
        rate = shared[size]["per_s"]
        found[f"{size >> 20} MB, of 3 x raw"] = rate / raw[size]["per_s"] / 3
        found[f"{size >> 20} MB, of 60 % of memcpy"] = rate / copies[size]["per_s"] / 0.6
    for name, value in found.items():
        print(f"  {name:<34} {value:5.2f}  {'reached' if value >= 1 else 'MISSED'}")
    return found


def main(arguments: list[str]) -> dict[str, Any]:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench channels")
    parser.add_argument("kinds", nargs="*", choices=[*FLOWRL, *OTHERS, "memcpy", "threshold", []])
    parser.add_argument("--size", type=int, action="append")
    chosen = parser.parse_args(arguments)
    if chosen.kinds == ["threshold"]:
        return threshold()
    sizes = tuple(chosen.size or SIZES)
    print(f"{'':<8} {'bytes':>9} {'tokens':>13} {'':>12} {'p50':>11} {'p99':>11}   spread")
    all_found = {}
    for kind in chosen.kinds or ["memcpy", *OTHERS, *FLOWRL]:
        all_found[kind] = memcpy(sizes) if kind == "memcpy" else send_error(kind, sizes)
        show(kind, all_found[kind])
    if not arguments:
        return {"targets": targets(all_found), **named(all_found)}
    return named(all_found)


def named(all_found: dict[str, dict[int, Answer]]) -> dict[str, Any]:
    return {k: {str(size): a for size, a in found.items()} for k, found in all_found.items()}
