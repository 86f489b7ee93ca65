"""The graphs that come with flowrl, by name."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from flowrl.core.errors import UsageError, spelling_hint


def graphs_folder() -> Path:
    """Where the bundled graphs lie."""
    return Path(str(resources.files("flowrl.graphs")))


def bundled_graphs() -> list[str]:
    """The names of the bundled graphs."""
    return sorted(p.stem for p in graphs_folder().glob("*.yaml"))


def find_bundled(name: str) -> Path | None:
    """The file of a bundled graph."""
    stem = name.removesuffix(".yaml")
    return graphs_folder() / f"{stem}.yaml" if stem in bundled_graphs() else None


def locate(name: str, *folders: Path) -> Path | None:
    """The file that a graph's name or path means: in one of the folders, or bundled."""
    for folder in folders:
        # os.path says no where pathlib raises: to names that no file can have
        if os.path.isfile(path := folder / name):
            return path
    return find_bundled(name)


def locate_graph(name: str) -> Path:
    """The file of the graph that was asked for on the command line or from Python."""
    path = locate(name, Path())
    if path is not None:
        return path
    if os.path.isdir(name):
        raise UsageError(f"{name}: is a folder; give the graph file in it")
    if os.path.exists(name):
        raise UsageError(f"{name}: is not a regular file; write the graph into one")
    raise UsageError(
        f"{name}: there is no such file or bundled graph; {spelling_hint(name, bundled_graphs())}"
    )
