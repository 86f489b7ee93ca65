"""What a process still does when it ends without the interpreter's shutdown, and what it does not."""

import os
import subprocess
import sys


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program that ends by `exit_now`."""
    code = f"import atexit, sys, threading, time\nfrom flowrl.machine.process_exit import exit_now\n{code}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_was_printed_is_flushed_and_exit_functions_are_called() -> None:
    done = run(
        "import ctypes\natexit.register(print, 'at exit')\nprint('out', end='; ')\n"
        "ctypes.CDLL(None).printf(b'from C')\nexit_now(3)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "out; at exit\nfrom C", "")


def test_threads_end_first_unless_they_are_daemons() -> None:
    done = run(
        "ready = threading.Event()\n"
        "def finish():\n    ready.wait()\n    print('finished')\n"
        "threading.Thread(target=finish).start()\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "threading.Timer(0.05, ready.set).start()\n"
        "exit_now()"
    )
    assert (done.returncode, done.stdout) == (0, "finished\n")


def test_no_object_is_destroyed() -> None:
    done = run(
        "class Loud:\n    def __del__(self):\n        print('gone')\nkept = Loud()\nexit_now()"
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_closed_standard_output_is_no_error() -> None:
    done = run("sys.stdout.close()\nexit_now(1)")
    assert (done.returncode, done.stderr) == (1, "")
