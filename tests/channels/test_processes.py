"""Sites in processes of their own, and their deaths."""

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
from tests.channels.pairs import RUN, SOCKETS

BIG = 200_000


@dataclass
class Child:
    """Site b, and our site a with its lanes."""

    process: subprocess.Popen[str]
    channels: SiteChannels
    there: Sender
    back: Receiver

    def dead(self, peer: str) -> str | None:
        """What the operating system knows of it."""
        status = self.process.poll()
        return None if status is None else f"its process ended with status {status}"


@contextmanager
def child(kind: str, folder: SocketFolder) -> Iterator[Child]:
    one, two = new_pair(), new_pair()
    curve = kind == "curve"
    keys = Keys(*one, {"b": two[0]}) if curve else None
    connections = SiteConnections(
        "a", RUN, keys=keys, shared_bytes=64 << 20 if kind == "shared" else 0
    )
    mine = connections.listen("tcp://127.0.0.1:*" if curve else folder.address("a"))
    its = "tcp://127.0.0.1:*" if curve else folder.address("b")
    words = [kind, its, mine, *((k.decode() for k in (*two, one[0])) if curve else ())]
    command = [sys.executable, "-m", "tests.channels.child", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        connections.connect("b", process.stdout.readline().strip())
        channels = SiteChannels(connections)
        found = Child(
            process,
            channels,
            channels.open_sender("there", "b"),
            channels.open_receiver("back", "b"),
        )
        channels.find_failure = found.dead
        channels.wait(found.back, 20)
        assert found.back.take()[0] == "here"
        try:
            yield found
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


@pytest.mark.parametrize("kind", SOCKETS)
def test_processes_exchange_tokens_and_one_that_is_killed_is_missed(
    kind: str, folder: SocketFolder
) -> None:
    before = set(os.listdir("/dev/shm"))
    with child(kind, folder) as site:
        held = []
        for i in range(60):
            site.channels.wait(site.there, 10)
            site.there.send(np.full(BIG if i % 2 else 10, i, np.int32))
            site.channels.wait(site.back, 10)
            held.append(site.back.take()[0])
        assert [int(v.max()) for v in held] == [2 * i for i in range(60)]
        shared = site.channels.connections.traffic().shared_tokens
        assert (shared > 0) == (kind == "shared")
        site.there.send("die")
        with pytest.raises(PeerLost, match="site 'b' is lost: its process ended with status -9"):
            site.channels.wait(site.back, 10)
        assert [int(v.min()) for v in held] == [2 * i for i in range(60)], (
            "views outlive the sender"
        )
        assert set(os.listdir("/dev/shm")) == before
        assert site.channels.connections.traffic().refused == {}


def test_processes_part_in_peace(folder: SocketFolder) -> None:
    with child("shared", folder) as site:
        for i in range(3):
            site.there.send(np.full(BIG, i))
        site.there.close()
        taken = []
        for _ in range(3):
            site.channels.wait(site.back, 10)
            taken.append(int(site.back.take()[0][-1]))
        assert taken == [0, 2, 4]
        site.channels.wait(site.back, 10)
        with pytest.raises(
            ChannelClosed, match="channel 'back' was closed by its sender, site 'b'"
        ):
            site.back.take()
        site.channels.flush()
        assert site.process.wait(10) == 0


# the folder


def test_the_folder_is_for_this_user_only(folder: SocketFolder) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_an_address_is_short_however_long_the_name(folder: SocketFolder) -> None:
    one, other = folder.address("collector#1/" * 40), folder.address("learner")
    assert len(one) == len(other)
    assert one != other


def test_a_folder_too_deep_for_sockets_is_said_and_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(UsageError, match="the path is too long for a socket; set TMPDIR"):
        SocketFolder()
    assert list(deep.iterdir()) == []


def test_the_folder_of_a_killed_run_is_swept_and_that_of_a_living_one_is_not(
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


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
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
