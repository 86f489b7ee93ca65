"""Freed memory stays with the process, so that the next train iteration finds it."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest

from flowrl.machine.freed_memory import keep_freed_memory

SIZES = (8, 12, 16)  # MB
PAGE_BYTES = resource.getpagesize()
ALLOCATE = f"""
import resource
from flowrl.machine.freed_memory import keep_freed_memory

def allocate():
    [bytearray(b"x") * (size << 20) for size in {SIZES}]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
allocate()
before = faults()
for _ in range(5):
    allocate()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_memory_is_mapped_once_for_all_iterations() -> None:
    found = subprocess.run([sys.executable, "-c", ALLOCATE], capture_output=True, check=True)
    pages_of_an_iteration = sum(SIZES) * 2**20 // PAGE_BYTES
    assert int(found.stdout) < pages_of_an_iteration


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    keep_freed_memory.__wrapped__()
