"""Starts hosts on machines that are reached by ssh."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import field_validator

from flowrl.cluster.host_commands import HostCommand, HostCommands, last_line
from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.cluster.launchers import ssh_machine
from flowrl.cluster.launchers.own_wheel import needed_packages, own_wheel
from flowrl.core.config import REQUIRED, param
from flowrl.core.errors import FlowError, UsageError
from flowrl.machine.network_address import Address, local_address_towards, resolve_machine

MACHINE = re.compile(r"(?:[\w.][\w.-]*@)?(?:[\w.][\w.-]*|\[[0-9a-fA-F:.%]+\])(?::\d{1,5})?")
# The user's own options come first, and the first one counts. A shared connection would outlive its command.
OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ControlMaster=no"),
    *("-o", "ControlPath=none"),
)
NOT_FOUND = 127  # the exit status of a shell without such a command
FAILED_CONNECTION = 255
CONFIG_TIMEOUT_S = 10.0
ADVICE = {  # what ssh says, and what helps
    "Permission denied": "your key is not accepted there; try 'ssh-copy-id MACHINE', then 'ssh MACHINE true'",
    "Host key verification failed": "its host key is unknown or has changed; connect once by hand: ssh MACHINE",
    "Could not resolve hostname": "there is no machine of this name; see `machines`",
    "Bad configuration option": "see `options`",
}
NO_MODULE = "No module named"


class Ssh(Launcher):
    """Hosts on machines that ssh reaches with a key, without a password."""

    class Config(Launcher.Config):
        machines: list[str] = param(
            REQUIRED,
            "names of machines as ssh takes them: host, user@host, host:2222",
            min_length=1,
        )
        hosts_per_machine: int = param(1, "how many hosts on each machine", ge=1, le=1000)
        python: str = param("python3", "the Python there, a command or a path", min_length=1)
        install: bool = param(
            False, "make a venv there, with this flowrl and the packages that it needs"
        )
        packages: list[str] = param(
            [], "with `install`: more packages of the graph, such as ale-py, in the version here"
        )
        options: list[str] = param([], "more options of ssh, such as -i and a key file")
        restarts: int = param(3, "how often a host that has died is started again", ge=0, le=1000)

        @field_validator("machines")
        @classmethod
        def _check_machines(cls, machines: list[str]) -> list[str]:
            for machine in machines:
                if not MACHINE.fullmatch(machine):
                    raise ValueError(
                        f"'{machine}' is no machine; expected host, user@host or host:2222"
                    )
            return machines

    _commands: HostCommands | None = None
    _started: list[HostCommand] = []

    @property
    def host_count(self) -> int:
        return len(self.config.machines) * int(self.config.hosts_per_machine)

    def machine_of_run(self) -> str:
        """The address from which this machine reaches the first one that is another machine."""
        found = [self._own_address(machine) for machine in self.config.machines]
        far = [address for address in found if address and not Address(address, "0").is_loopback]
        return next(iter(far or filter(None, found)), super().machine_of_run())

    def _own_address(self, machine: str) -> str | None:
        """The address from which this machine reaches that one; ssh knows what its name stands for."""
        words = ["ssh", "-G", *self.config.options, *_destination(machine)]
        with suppress(OSError, subprocess.SubprocessError, UsageError):
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=CONFIG_TIMEOUT_S, check=False
            )
            known = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
            if known.get("proxyjump", "none") == "none" and "hostname" in known:
                there = resolve_machine(known["hostname"], machine)
                return local_address_towards(Address(there, known.get("port", "22")))
        return None

    def start(self, order: HostOrder) -> None:
        text = self._text(order)
        for machine in self.config.machines:
            for number in range(self.config.hosts_per_machine):
                end = f".{number}" if self.config.hosts_per_machine > 1 else ""
                log = order.folder / f"{order.label}.{machine}{end}.log"
                command = HostCommand(f"machine {machine}", self._words(machine), log, text, True)
                self._started = [*self._started, command]
        self._commands = HostCommands(self._started, self.config.restarts, self._advice)
        try:
            self._commands.start()
        except FileNotFoundError:
            raise FlowError("ssh: there is no such command on this machine") from None

    def _text(self, order: HostOrder) -> bytes:
        """What goes to a machine's standard input: a program, its orders, and flowrl itself."""
        name, wheel = own_wheel() if self.config.install else ("", b"")
        orders = {
            "join": order.info.text(),
            "options": order.options,
            "wheel": name,
            "wheel_bytes": len(wheel),
            "packages": needed_packages(self.config.packages) if self.config.install else [],
        }
        return _program() + json.dumps(orders).encode() + b"\n" + wheel

    def _words(self, machine: str) -> list[str]:
        there = f"exec {_quoted_path(self.config.python)} -c {shlex.quote(_first_line())}"
        return ["ssh", *self.config.options, *OPTIONS, *_destination(machine), there]

    def _advice(self, status: int, last: str) -> str:
        """What helps where another try does not."""
        if status == ssh_machine.CANNOT_START:
            return "nothing can be started there"
        if status == NOT_FOUND:
            return f"there is no {self.config.python} on it; give a path there with `python`"
        if status == FAILED_CONNECTION:
            return next((advice for text, advice in ADVICE.items() if text in last), "")
        if NO_MODULE in last:
            return "give a Python there that has flowrl with `python`, or write `install: true`"
        return ""

    def watch(self) -> LaunchStatus:
        assert self._commands is not None
        status = self._commands.watch()
        lines = [(c.name, last_line(c.log)) for c in self._started if not c.is_over]
        busy = [
            f"{name}: {line}" for name, line in lines if line.startswith(ssh_machine.INSTALLING)
        ]
        return replace(status, waiting="; ".join(busy))

    def end(self) -> None:
        if self._commands is not None:
            self._commands.end()


def _destination(machine: str) -> list[str]:
    """The arguments of ssh that name a machine."""
    name, colon, port = machine.rpartition(":")
    if not colon or "]" in port:
        name, port = machine, ""
    name = name.replace("[", "").replace("]", "")
    return [*(("-p", port) if port else ()), "--", name]


def _quoted_path(path: str) -> str:
    """A path for a shell, in which ~/ at its beginning is the home there."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def _program() -> bytes:
    return Path(ssh_machine.__file__).read_bytes()


def _first_line() -> str:
    """Checks the version, which the bits of a run depend on, and executes the program from standard input."""
    version = sys.version_info[:2]
    wrong = (
        "this is Python %d.%d, and the run has {}.{}; give such a Python with `python`\\n".format(
            *version
        )
    )
    return (
        "import sys;v=sys.version_info[:2];"
        f'v=={tuple(version)!r}or(sys.stderr.write("{wrong}"%v),sys.exit({ssh_machine.CANNOT_START}));'
        f"exec(sys.stdin.buffer.read({len(_program())}))"
    )
