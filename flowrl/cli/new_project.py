"""A starting project: a graph, two nodes of one's own, and how to run them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from flowrl.core.errors import UsageError

FILES = ("graph.yaml", "my_nodes.py", "README.md")


def new_project(path: str | Path) -> str:
    """Write the project into a folder, which may exist; gives what to do next."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"new: {folder} is a file; give the name of a folder")
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise UsageError(
            f"new: {folder / there[0]} is there already; give another folder, or remove it"
        )
    starter = resources.files("flowrl.cli").joinpath("starter")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            text = starter.joinpath(name).read_text(encoding="utf-8")
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"new: {folder} cannot be written: {error.strerror}") from None
    return f"{folder}: {', '.join(FILES)}\n\n  cd {folder}\n  flowrl run graph.yaml"
