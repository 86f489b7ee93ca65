"""Machines that ssh reaches: servers on the loopback interface, each with a port of its own; needs `sshd`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flowrl.machine.network_address import open_listener
from tests.cluster.network import Place
from tests.needs import find_program

SOON_S = 60.0
SERVER = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/accepted_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv {environment}
"""


class SshServers:
    """Some servers, a key that they accept, and the options with which `ssh` reaches them."""

    def __init__(
        self, folder: Path, places: Sequence[Place], environment: Mapping[str, str]
    ) -> None:
        self.folder, self.key, self.other_key = folder, folder / "key", folder / "other_key"
        for key in (self.key, self.other_key, folder / "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (folder / "accepted_keys").write_bytes(self.key.with_suffix(".pub").read_bytes())
        words = " ".join(f'"{name}={value}"' for name, value in environment.items())
        (folder / "sshd_config").write_text(SERVER.format(folder=folder, environment=words))
        Path("/run/sshd").mkdir(exist_ok=True)  # in which sshd locks itself up
        self.ports = [_free_port() for _ in places]
        self.machines = [f"{p.address}:{port}" for p, port in zip(places, self.ports, strict=True)]
        host_key = (folder / "host_key.pub").read_text()
        known = [
            f"[{p.address}]:{port} {host_key}" for p, port in zip(places, self.ports, strict=True)
        ]
        (folder / "known_hosts").write_text("".join(known))
        self.servers = [self._start(p, port) for p, port in zip(places, self.ports, strict=True)]

    def _start(self, place: Place, port: int) -> subprocess.Popen[bytes]:
        sshd = find_program("sshd")
        assert sshd is not None
        words = [*place.enter, sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        words += ["-o", f"ListenAddress={place.address}:{port}"]
        with (self.folder / f"{port}.log").open("wb") as log:
            return subprocess.Popen(words, stderr=log, start_new_session=True)

    def options(self, key: Path | None = None, known_hosts: str = "known_hosts") -> list[str]:
        words = ["-F", "none", "-i", str(key or self.key), "-o", "IdentitiesOnly=yes"]
        return [*words, "-o", f"UserKnownHostsFile={self.folder / known_hosts}"]

    def connections(self) -> list[int]:
        """The processes that serve a connection: children of the servers."""
        parents = ",".join(str(server.pid) for server in self.servers)
        found = subprocess.run(["pgrep", "-P", parents], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def end(self) -> None:
        for server in self.servers:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _free_port() -> int:
    listener, port = open_listener("127.0.0.1")
    listener.close()
    return port


@contextmanager
def ssh_servers(
    folder: Path,
    count: int = 1,
    environment: Mapping[str, str] | None = None,
    places: Sequence[Place] = (),
) -> Iterator[SshServers]:
    """So many servers on the loopback interface, or one at each of these places."""
    folder.mkdir(parents=True, exist_ok=True)
    made = SshServers(folder, places or [Place()] * count, environment or {"LANG": "C.UTF-8"})
    try:
        deadline = time.monotonic() + SOON_S
        while not all("listening" in (folder / f"{port}.log").read_text() for port in made.ports):
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.05)
        yield made
    finally:
        made.end()
