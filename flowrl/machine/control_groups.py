"""The control groups (cgroups) of this process, by which containers and cluster managers limit it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

ROOT = Path("/")


def control_group_files(name: str, controller: str, old_name: str, root: Path = ROOT) -> list[Path]:
    """Return where a limit of this process may be written: in its group, and in every group around it.

    The file is called `name` in version 2 of control groups; in version 1 it is `old_name`, below the folder of its
    controller. In a container, the path of the group may be that of the machine outside; then only the root is there.
    """
    mounted = root / "sys/fs/cgroup"
    found = []
    for controllers, path in _groups(root):
        if controllers == [""]:
            found += [folder / name for folder in _with_parents(mounted, path)]
        elif controller in controllers:
            found += [folder / old_name for folder in _with_parents(mounted / controller, path)]
    return found or [mounted / name, mounted / controller / old_name]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file of the system, or nothing if it is not there."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _groups(root: Path) -> list[tuple[list[str], str]]:
    """The controllers and the path of each group of this process. Version 2 has one group, for all controllers."""
    rows = [line.split(":", 2) for line in read_lines(root / "proc/self/cgroup")]
    return [(row[1].split(","), row[2]) for row in rows if len(row) == 3]


def _with_parents(mounted: Path, path: str) -> list[Path]:
    inner = PurePosixPath(path.lstrip("/"))
    if ".." in inner.parts:  # the group is outside of what this process can see
        return [mounted]
    return [mounted / folder for folder in (inner, *inner.parents)]
