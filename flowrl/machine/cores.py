"""The cores of this machine that a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flowrl.machine.control_groups import ROOT, control_group_files, read_lines


def usable_cores(root: Path = ROOT) -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(min([cores, *_quotas(root)]), 1)


def _quotas(root: Path) -> Iterator[int]:
    """The whole cores whose time the control groups of this process leave it."""
    for path in control_group_files("cpu.max", "cpu", "cpu.cfs_quota_us", root):
        words = " ".join(read_lines(path)).split()
        if path.name == "cpu.cfs_quota_us":
            words += read_lines(path.with_name("cpu.cfs_period_us"))
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            yield int(words[0]) // int(words[1])
