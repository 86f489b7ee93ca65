"""The memory of this machine."""

from __future__ import annotations

from pathlib import Path


def machine_memory_bytes() -> int | None:
    """The memory that this process may use: the machine's, or its control group's limit if that is lower."""
    found = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            found.append(int(line.split()[1]) * 1024)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        found += [int(line) for line in _lines(path) if line.strip().isdigit()]
    return min(found, default=None)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
