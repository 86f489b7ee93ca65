"""Programs that some tests need. Without them these tests are skipped, or fail if FLOWRL_TESTS_NEED names the program.

`.ci/run` installs the programs and sets FLOWRL_TESTS_NEED, so that no test is skipped there unnoticed.
"""

from __future__ import annotations

import os
import shutil

import pytest

PROGRAMS = {  # name: the commands that will do
    "dot": ("dot",),  # Graphviz
    "ip": ("ip",),  # iproute2
    "zsh": ("zsh",),
    "fish": ("fish",),
    "sshd": ("sshd",),  # openssh-server
    "slurmctld": ("slurmctld",),  # with slurmd and munge
    "kubectl": ("kubectl",),  # kubernetes-client
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
}


def find_program(name: str) -> str | None:
    """The path of a program that tests need, or None if it is not installed."""
    return next(filter(None, map(shutil.which, PROGRAMS[name])), None)


def skip_or_fail_without(name: str) -> None:
    if find_program(name) is not None:
        return
    if name in os.environ.get("FLOWRL_TESTS_NEED", "").split():
        pytest.fail(f"'{name}' is not installed, but FLOWRL_TESTS_NEED names it", pytrace=False)
    pytest.skip(f"'{name}' is not installed")
