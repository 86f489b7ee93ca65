"""Finds graph files: bundled ones by name, others by path."""

from __future__ import annotations

import contextlib
import os
from importlib import resources
from pathlib import Path

from flowrl.core.errors import UsageError, closest_word, spelling_hint


def graphs_folder() -> Path:
    return Path(str(resources.files("flowrl.graphs")))


def bundled_graphs() -> list[str]:
    """The names of the bundled graphs, sorted."""
    return sorted(p.stem for p in graphs_folder().glob("*.yaml"))


def find_bundled(name: str) -> Path | None:
    stem = name.removesuffix(".yaml")
    return graphs_folder() / f"{stem}.yaml" if stem in bundled_graphs() else None


def bundled_checkpoint(name: str) -> Path | None:
    """The best checkpoint of a bundled graph, if one comes with flowrl."""
    path = graphs_folder() / "checkpoints" / f"{name}.safetensors"
    return path if path.is_file() else None


def locate(name: str, *folders: Path) -> Path | None:
    """The file that a graph's name or path means: in the first of the folders that has it, or bundled."""
    for folder in folders:
        # os.path returns False for names that no file can have; pathlib raises.
        if os.path.isfile(path := folder / name):
            return path
    return find_bundled(name)


def locate_graph(name: str) -> Path:
    """The file of a graph that was named on the command line or from Python."""
    path = locate(name, Path())
    if path is not None:
        return path
    if os.path.isdir(name):
        raise UsageError(f"{name}: is a folder; give the graph file in it")
    if os.path.exists(name):
        raise UsageError(f"{name}: is not a regular file; write the graph into one")
    beside = _graph_files_beside(name)
    near = closest_word(os.path.splitext(name)[0], beside)
    hint = f"did you mean '{beside[near]}'?" if near else spelling_hint(name, bundled_graphs())
    raise UsageError(f"{name}: there is no such file or bundled graph; {hint}")


def _graph_files_beside(name: str) -> dict[str, str]:
    """The YAML files in the folder in which a file of this name would be, by their names without the ending."""
    folder = os.path.dirname(name)
    with contextlib.suppress(OSError, ValueError):  # no such folder, or a name that none can have
        files = [os.path.join(folder, file) for file in sorted(os.listdir(folder or os.curdir))]
        return {os.path.splitext(f)[0]: f for f in files if f.endswith((".yaml", ".yml"))}
    return {}
