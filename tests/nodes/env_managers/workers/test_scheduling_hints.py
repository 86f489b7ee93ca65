"""Short slices of processor time, and exact timers."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading

import pytest

from flowrl.nodes.env_managers.workers import scheduling_hints as waking
from flowrl.nodes.env_managers.workers.scheduling_hints import (
    ATTRIBUTES,
    SLICE_NS,
    request_precise_timers,
    request_short_slices,
)

GETTERS = {"x86_64": 315, "aarch64": 275, "riscv64": 275}
PR_GET_TIMERSLACK = 30
READ_SLACK = f"ctypes.CDLL(None).prctl({PR_GET_TIMERSLACK}, 0, 0, 0, 0)"
KNOWN = sys.platform == "linux" and platform.machine() in GETTERS


def attributes() -> tuple[int, ...]:
    words = ctypes.create_string_buffer(ATTRIBUTES.size)
    number = GETTERS[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, words, ATTRIBUTES.size, 0) == 0
    return ATTRIBUTES.unpack(words.raw)


def in_a_thread(call: object) -> list[object]:
    """Threads ask for themselves, so this one stays as it was."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))  # type: ignore[operator]
    thread.start()
    thread.join()
    return found


@pytest.mark.skipif(not KNOWN, reason="needs Linux")
def test_a_thread_asks_for_itself_and_keeps_policy_and_priority() -> None:
    before = attributes()

    def asked() -> tuple[bool, tuple[int, ...]]:
        return request_short_slices(), attributes()

    [(understood, found)] = in_a_thread(asked)  # type: ignore[misc]
    assert understood
    assert found[1:5] == before[1:5]
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    assert found[5] == (SLICE_NS if release >= (6, 12) else before[5])
    assert attributes() == before


@pytest.mark.skipif(not KNOWN, reason="needs Linux")
def test_whoever_has_another_policy_keeps_it() -> None:
    def asked() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return request_short_slices(), os.sched_getscheduler(0)

    assert in_a_thread(asked) == [(False, os.SCHED_BATCH)]


def test_a_system_without_the_call_goes_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking.platform, "machine", lambda: "pdp11")
    assert not request_short_slices()


def slack_ns() -> int:
    return int(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_timers_become_exact_for_a_thread_and_what_it_starts() -> None:
    before = slack_ns()

    def asked() -> tuple[bool, int, list[object], bytes]:
        understood, code = request_precise_timers(), f"import ctypes; print({READ_SLACK})"
        child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        return understood, slack_ns(), in_a_thread(slack_ns), child.stdout.strip()

    assert in_a_thread(asked) == [(True, 1, [1], b"1")]
    assert slack_ns() == before


def test_another_system_keeps_its_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking.sys, "platform", "darwin")
    assert not request_precise_timers()
