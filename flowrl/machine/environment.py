"""What a run ran on: versions, git, CPU."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from flowrl.machine.numerics import choices
from flowrl.version import VERSION

PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "gym",
    "networkx",
    "pyzmq",
    "msgpack",
    "pydantic",
    "safetensors",
)


def environment(folder: Path) -> dict[str, Any]:
    """The facts that bits may depend on, and those that help to find a run's code again."""
    return {
        "flowrl": VERSION,
        "python": platform.python_version(),
        "packages": {n: v for n in PACKAGES if (v := version_of(n))},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "choices": choices(),
        "git": git_state(folder),
        "command": sys.argv,
    }


def version_of(package: str) -> str | None:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The CPU's name, as far as the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the folder's repository, and whether it has changes; None outside of one."""

    def git(*words: str) -> str | None:
        command = ["git", "-C", str(folder), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changed)}
