"""Requests for short slices of processor time and precise timers."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading

import pytest

from flowrl.nodes.env_managers.workers import scheduling_hints
from flowrl.nodes.env_managers.workers.scheduling_hints import (
    SCHED_ATTR,
    SLICE_NS,
    request_precise_timers,
    request_short_slices,
)

SCHED_GETATTR_NUMBERS = {"x86_64": 315, "aarch64": 275, "riscv64": 275}
PR_GET_TIMERSLACK = 30
READ_SLACK_CODE = f"ctypes.CDLL(None).prctl({PR_GET_TIMERSLACK}, 0, 0, 0, 0)"
HAS_GETATTR = sys.platform == "linux" and platform.machine() in SCHED_GETATTR_NUMBERS


def read_attributes() -> tuple[int, ...]:
    buffer = ctypes.create_string_buffer(SCHED_ATTR.size)
    number = SCHED_GETATTR_NUMBERS[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, buffer, SCHED_ATTR.size, 0) == 0
    return SCHED_ATTR.unpack(buffer.raw)


def call_in_a_thread(call: object) -> list[object]:
    """Call in another thread, so that this one is not changed."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))  # type: ignore[operator]
    thread.start()
    thread.join()
    return found


@pytest.mark.skipif(not HAS_GETATTR, reason="needs Linux")
def test_a_request_changes_one_thread_and_keeps_policy_and_priority() -> None:
    before = read_attributes()

    def request() -> tuple[bool, tuple[int, ...]]:
        return request_short_slices(), read_attributes()

    [(accepted, found)] = call_in_a_thread(request)  # type: ignore[misc]
    assert accepted
    assert found[1:5] == before[1:5]
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    assert found[5] == (SLICE_NS if release >= (6, 12) else before[5])
    assert read_attributes() == before


@pytest.mark.skipif(not HAS_GETATTR, reason="needs Linux")
def test_a_thread_with_another_policy_is_not_changed() -> None:
    def request() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return request_short_slices(), os.sched_getscheduler(0)

    assert call_in_a_thread(request) == [(False, os.SCHED_BATCH)]


def test_without_the_system_call_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_hints.platform, "machine", lambda: "pdp11")
    assert not request_short_slices()


def slack_ns() -> int:
    return int(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_timers_become_precise_for_a_thread_and_its_children() -> None:
    before = slack_ns()

    def request() -> tuple[bool, int, list[object], bytes]:
        accepted, code = request_precise_timers(), f"import ctypes; print({READ_SLACK_CODE})"
        child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        return accepted, slack_ns(), call_in_a_thread(slack_ns), child.stdout.strip()

    assert call_in_a_thread(request) == [(True, 1, [1], b"1")]
    assert slack_ns() == before


def test_timers_of_other_systems_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_hints.sys, "platform", "darwin")
    assert not request_precise_timers()
