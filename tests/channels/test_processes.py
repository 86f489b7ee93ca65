"""Sites in separate processes, their deaths, and the folder of their sockets."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from flowrl.channels import ChannelClosed, PeerLost, Receiver, Sender, SiteChannels, SiteConnections
from flowrl.channels.keys import Keys, new_pair
from flowrl.channels.socket_folder import (
    FOLDER_PREFIX,
    LOCK_FILE,
    SocketFolder,
    remove_dead_folders,
)
from flowrl.core.errors import UsageError
from tests.channels.site_pairs import RUN, SOCKETS

BIG = 200_000


@dataclass
class EchoSite:
    """Site b in its process, and site a of the test with its channels."""

    process: subprocess.Popen[str]
    channels: SiteChannels
    sender: Sender
    receiver: Receiver

    def find_failure(self, peer: str) -> str | None:
        """Return how the process has ended, or None."""
        status = self.process.poll()
        return None if status is None else f"its process ended with status {status}"


@contextmanager
def start_echo_site(kind: str, folder: SocketFolder) -> Iterator[EchoSite]:
    one, two = new_pair(), new_pair()
    curve = kind == "curve"
    keys = Keys(*one, {"b": two[0]}) if curve else None
    connections = SiteConnections(
        "a", RUN, keys=keys, shared_bytes=64 << 20 if kind == "shared" else 0
    )
    own_address = connections.listen("tcp://127.0.0.1:*" if curve else folder.address("a"))
    peer_address = "tcp://127.0.0.1:*" if curve else folder.address("b")
    arguments = [
        kind,
        peer_address,
        own_address,
        *((k.decode() for k in (*two, one[0])) if curve else ()),
    ]
    command = [sys.executable, "-m", "tests.channels.echo_site", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        connections.connect("b", process.stdout.readline().strip())
        channels = SiteChannels(connections)
        site = EchoSite(
            process,
            channels,
            channels.open_sender("to_b", "b"),
            channels.open_receiver("to_a", "b"),
        )
        channels.find_failure = site.find_failure
        channels.wait(site.receiver, 20)
        assert site.receiver.take()[0] == "ready"
        try:
            yield site
        finally:
            channels.close(drop=True)
            process.kill()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketFolder]:
    with TemporaryDirectory() as place:  # a short path: pytest's are too long for sockets
        monkeypatch.setattr("tempfile.tempdir", place)
        folder = SocketFolder()
        yield folder
        folder.close()
        assert not os.listdir(place)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOCKETS)
def test_processes_exchange_tokens_and_notice_a_killed_peer(
    kind: str, folder: SocketFolder
) -> None:
    before = set(os.listdir("/dev/shm"))
    with start_echo_site(kind, folder) as site:
        held = []
        for i in range(60):
            site.channels.wait(site.sender, 10)
            site.sender.send(np.full(BIG if i % 2 else 10, i, np.int32))
            site.channels.wait(site.receiver, 10)
            held.append(site.receiver.take()[0])
        assert [int(v.max()) for v in held] == [2 * i for i in range(60)]
        shared = site.channels.connections.traffic().shared_tokens
        assert (shared > 0) == (kind == "shared")
        site.sender.send("die")
        with pytest.raises(PeerLost, match="site 'b' is lost: its process ended with status -9"):
            site.channels.wait(site.receiver, 10)
        assert [int(v.min()) for v in held] == [2 * i for i in range(60)], (
            "views outlive the sender"
        )
        assert set(os.listdir("/dev/shm")) == before
        assert site.channels.connections.traffic().refused == {}


def test_a_process_ends_after_its_channel_is_closed(folder: SocketFolder) -> None:
    with start_echo_site("shared", folder) as site:
        for i in range(3):
            site.sender.send(np.full(BIG, i))
        site.sender.close()
        taken = []
        for _ in range(3):
            site.channels.wait(site.receiver, 10)
            taken.append(int(site.receiver.take()[0][-1]))
        assert taken == [0, 2, 4]
        site.channels.wait(site.receiver, 10)
        with pytest.raises(
            ChannelClosed, match="channel 'to_a' was closed by its sender, site 'b'"
        ):
            site.receiver.take()
        site.channels.flush()
        assert site.process.wait(60) == 0


# the socket folder


def test_only_this_user_may_enter_the_folder(folder: SocketFolder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_long_site_name_has_a_short_address(folder: SocketFolder) -> None:
    one, other = folder.address("collector#1/" * 40), folder.address("learner")
    assert len(one) == len(other)
    assert one != other


def test_a_folder_path_too_long_for_sockets_is_reported_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(UsageError, match="the path is too long for a socket; set TMPDIR"):
        SocketFolder()
    assert list(deep.iterdir()) == []


def test_the_folder_of_a_killed_run_is_removed_and_that_of_a_living_run_is_kept(
    folder: SocketFolder,
) -> None:
    code = (
        "import os, signal, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from flowrl.channels.socket_folder import SocketFolder\n"
        "folder = SocketFolder(); (folder.path / 'socket').touch()\n"
        "print(folder.path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, str(folder.path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    dead = Path(done.stdout.strip())
    assert dead.name.startswith(FOLDER_PREFIX)
    assert (dead / "socket").exists()
    remove_dead_folders()
    assert not dead.exists()
    assert (folder.path / LOCK_FILE).exists()


def test_a_process_that_ends_without_closing_its_folder_removes_it_and_a_fork_of_it_does_not() -> (
    None
):
    """A person may interrupt it before somebody has the folder that could close it."""
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from flowrl.channels.socket_folder import SocketFolder\n"
        "from flowrl.machine.process_exit import exit_now\n"
        "folder = SocketFolder()\n"
        "if not os.fork(): exit_now(0)\n"
        "os.wait(); print(folder.path.exists(), flush=True); exit_now(0)"
    )
    with TemporaryDirectory() as place:  # a short path: pytest's are too long for sockets
        command = [sys.executable, "-c", code, place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout == "True\n", done.stderr
        assert os.listdir(place) == []


def test_a_folder_that_is_removed_before_it_is_locked_is_created_again(
    folder: SocketFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, flock, swept = folder.path.parent, fcntl.flock, []

    def swept_first(lock: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not swept:
            swept.extend(set(where.iterdir()) - {folder.path})
            remove_dead_folders()
        flock(lock, how)

    monkeypatch.setattr("fcntl.flock", swept_first)
    made = SocketFolder()
    assert not swept[0].exists()
    remove_dead_folders()
    assert set(where.iterdir()) == {folder.path, made.path}
    made.close()
