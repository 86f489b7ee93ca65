"""A description of the software and hardware of this machine: versions, git commit, CPU."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from flowrl.machine.numerics import instruction_settings
from flowrl.version import VERSION

PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "gym",
    "pyzmq",
    "msgpack",
    "pydantic",
    "safetensors",
)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries whose data is in checkpoints."""
    found = {name: version_of(name) for name in ("torch", "numpy")}
    return {"flowrl": VERSION, **{name: v for name, v in found.items() if v is not None}}


def environment(folder: Path) -> dict[str, Any]:
    """Describe what the bits of a result may depend on, and the commit of the repository that `folder` is in."""
    return {
        "flowrl": VERSION,
        "python": platform.python_version(),
        "packages": {n: v for n in PACKAGES if (v := version_of(n))},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "choices": instruction_settings(),
        "git": git_state(folder),
        "command": sys.argv,
    }


@cache  # a package's description is a long text, which is parsed to find this
def version_of(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the model of the CPU, or its architecture if the system does not name the model."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the folder's repository, and whether tracked files have changes; None if there is none."""

    folder = folder.resolve()
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None  # most projects: no process needs to be started to find out
    status = ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *status],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if done.returncode or commits in ([], ["(initial)"]):
        return None
    return {"commit": commits[0], "changed": any(not line.startswith("#") for line in lines)}
