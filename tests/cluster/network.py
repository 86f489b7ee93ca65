"""Machines that are network namespaces of this one, on a switch whose cables can be pulled; needs root and `ip`."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Of a slow cable: a network between two cities that loses some segments, which are sent again.
DELAY_S, STALLED_SHARE, STALL_S = 0.020, 0.01, 0.2
MACHINES = {"run": "10.83.0.1", "a": "10.83.0.2", "b": "10.83.0.3"}
CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/var/run/netns")  # where `ip` keeps those that have names


class Place(NamedTuple):
    """Where a server listens."""

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()  # the words before a command that is executed there


def why_not() -> str:
    """Why this machine cannot have such a network, or an empty text."""
    if shutil.which("ip") is None:
        return "there is no `ip` command (package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"fl{os.getpid()}try"
    made = _ip("netns", "add", name, check=False)
    if made.returncode == 0:
        made = _ip("-n", name, "link", "add", "br0", "type", "bridge", check=False)
        _ip("netns", "del", name)
    return (
        "" if made.returncode == 0 else f"this system allows no namespaces: {made.stderr.strip()}"
    )


def enter_namespace(file: Path) -> None:
    """Move this thread into a network namespace. The sockets, threads and processes that it has stay where they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(file, os.O_RDONLY)
    try:
        if libc.setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {file}")
    finally:
        os.close(fd)


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


class Network:
    """A switch, and the machines on it."""

    def __init__(self, machines: Mapping[str, str] = MACHINES) -> None:
        """`machines` are their addresses, by name."""
        self._machines = machines
        self._prefix = f"fl{os.getpid()}"
        self._switch = self._name("sw")
        self._started: list[subprocess.Popen[str]] = []

    def _name(self, machine: str) -> str:
        return f"{self._prefix}{machine}"

    def build(self) -> None:
        """Make the machines, the switch and the cables."""
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for machine, address in self._machines.items():
            space = self._name(machine)
            _ip("netns", "add", space)
            cable = ("type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", self._switch, "link", "add", f"to-{machine}", *cable)
            self._plug_in(machine, address)
            _ip("-n", space, "link", "set", "lo", "up")

    def _plug_in(self, machine: str, address: str) -> None:
        """Connect both ends of a machine's cable."""
        space = self._name(machine)
        _ip("-n", self._switch, "link", "set", f"to-{machine}", "master", "br0", "up")
        _ip("-n", space, "addr", "add", f"{address}/16", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")

    def slow_down(
        self,
        machine: str,
        delay_s: float = DELAY_S,
        stalled_share: float = STALLED_SHARE,
        stall_s: float = STALL_S,
    ) -> None:
        """Replace a machine's cable by one that delays every segment, and stalls a share of them for longer."""
        _ip("-n", self._switch, "link", "del", f"to-{machine}")
        ends = f"{self._switch}/to-{machine}", f"{self._name(machine)}/eth0"
        numbers = map(str, (delay_s, stalled_share, stall_s))
        command = [sys.executable, "-m", "tests.cluster.slow_cable", *ends, *numbers]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self._plug_in(machine, self._machines[machine])

    def remove(self) -> None:
        """End all processes that were started, and remove the network."""
        for process in self._started:
            process.kill()
            process.communicate()
        for space in (self._switch, *map(self._name, self._machines)):
            _ip("netns", "del", space, check=False)

    def enter(self, machine: str) -> tuple[str, ...]:
        """The words before a command that is executed on a machine."""
        # Not `ip netns exec`, which hides the control groups that Slurm needs.
        return ("nsenter", f"--net={NAMESPACES / self._name(machine)}")

    def place(self, machine: str) -> Place:
        return Place(self._machines[machine], self.enter(machine))

    @contextmanager
    def entered(self, machine: str) -> Iterator[None]:
        """Move this thread to one of the machines, with the threads and processes that it starts there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter_namespace(NAMESPACES / self._name(machine))
            yield
        finally:
            enter_namespace(Path(f"/proc/self/fd/{home}"))
            os.close(home)

    def flowrl(
        self, machine: str, *words: str, cwd: Path, silent: bool = False
    ) -> subprocess.Popen[str]:
        """The command on one of the machines. With `silent`, its output is discarded."""
        return self.python(machine, "flowrl", *words, cwd=cwd, silent=silent)

    def python(
        self, machine: str, module: str, *words: str, cwd: Path, silent: bool = False
    ) -> subprocess.Popen[str]:
        """A module that is executed on one of the machines."""
        process = subprocess.Popen(
            [*self.enter(machine), sys.executable, "-m", module, *words],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", os.getcwd())},
            stdout=subprocess.DEVNULL if silent else subprocess.PIPE,
            stderr=subprocess.DEVNULL if silent else subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def cable(self, machine: str, state: str) -> None:
        """Pull a machine's cable (`down`), or put it back (`up`)."""
        _ip("-n", self._switch, "link", "set", f"to-{machine}", state)

    def limit(self, machine: str, mbit_per_s: int) -> None:
        """Limit what a machine's cable carries in each direction."""
        limit = ("root", "tbf", "rate", f"{mbit_per_s}mbit", "burst", "256kb", "latency", "200ms")
        for space, device in ((self._switch, f"to-{machine}"), (self._name(machine), "eth0")):
            enter = ("netns", "exec", space, "tc", "qdisc", "add", "dev", device)
            _ip(*enter, *limit)

    def carried_bytes(self, machine: str) -> int:
        """The bytes that a machine's cable has carried in both directions."""
        files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("rx", "tx")]
        counts = _ip("netns", "exec", self._name(machine), "cat", *files).stdout
        return sum(map(int, counts.split()))

    def processes(self, machine: str) -> list[str]:
        """The processes of a machine."""
        return _ip("netns", "pids", self._name(machine)).stdout.split()


@contextmanager
def network(machines: Mapping[str, str] = MACHINES) -> Iterator[Network]:
    """The whole network, which is removed at the end."""
    made = Network(machines)
    try:
        made.build()
        yield made
    finally:
        made.remove()
