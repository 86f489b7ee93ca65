"""Processes are told from later ones with the same id, and from those that have ended."""

import os
import subprocess
import sys

from flowrl.machine.processes import process_exists, process_start_time


def test_a_process_has_the_same_start_time_until_it_ends() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    start_time = process_start_time(process.pid)
    assert start_time is not None
    assert process_start_time(process.pid) == start_time
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_exists(process.pid)  # its parent has not waited for it
    assert process_start_time(process.pid) is None
    process.communicate()
    assert process_start_time(process.pid) is None
