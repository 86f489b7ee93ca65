"""The limits of this process, also where the system has no /proc."""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

import pytest

from flowrl.machine.resource_limits import (
    address_space_shortage,
    machine_memory_bytes,
    raise_open_file_limit,
)
from flowrl.runtime.sites.fork_server import thread_count

Patch = pytest.MonkeyPatch
PROC = ("/proc", "/dev/fd")  # the latter leads to /proc on Linux


@pytest.fixture
def without_proc(monkeypatch: Patch) -> None:
    """As if the system had no /proc."""
    listdir = os.listdir

    def listdir_elsewhere(path: Any) -> list[str]:
        if str(path).startswith(PROC):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listdir_elsewhere)


@pytest.mark.usefixtures("without_proc")
def test_open_files_are_counted_without_proc(monkeypatch: Patch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert raise_open_file_limit(0) is None
    why = raise_open_file_limit(64)
    assert why is not None
    assert 64 < int(why.split()[0]) <= 128


@pytest.mark.usefixtures("without_proc")
def test_a_process_of_an_unknown_number_of_threads_does_not_fork_sites() -> None:
    assert thread_count() > 1


def test_the_memory_of_the_machine_is_plausible() -> None:
    have = machine_memory_bytes()
    assert have is not None
    assert 1 << 20 < have < 1 << 50


def error_with_cause(cause: BaseException) -> BaseException:
    error = ValueError("a node cannot be made")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_shortage"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (RuntimeError("can't start new thread"), True),
        (error_with_cause(ImportError("x.so: failed to map segment from shared object")), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (OSError(errno.ENOENT, "No such file or directory"), False),
        (ImportError("No module named 'x'"), False),
    ],
)
def test_an_error_for_want_of_address_space_is_told_from_others(
    error: BaseException, is_shortage: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200_000_000, -1))
    text = "the address space of a process is limited to 200 MB, which is too little: raise `ulimit -v`"
    assert address_space_shortage(error) == (text if is_shortage else "")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert address_space_shortage(error) == ""
