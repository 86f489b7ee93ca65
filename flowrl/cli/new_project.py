"""The verb `new`: creates a project with a graph, two nodes of its own, instructions, and the schema for editors."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from importlib import resources
from pathlib import Path

from flowrl.core.errors import UsageError
from flowrl.graph.json_schema import SCHEMA_FILE, schema_text

STARTER_FILES = ("graph.yaml", "my_nodes.py", "README.md")
FILES = (*STARTER_FILES, SCHEMA_FILE)


def new_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR")


def new(arguments: Namespace) -> int:
    print(create_project(Path(arguments.dir)))
    return 0


def create_project(path: str | Path) -> str:
    """Write the files into a folder, which may exist already, and return what to do next."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"new: {folder} is a file; give the name of a folder")
    existing = [name for name in FILES if (folder / name).exists()]
    if existing:
        raise UsageError(
            f"new: {folder / existing[0]} exists already; choose another folder, or remove it"
        )
    starter = resources.files("flowrl.cli").joinpath("starter")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in STARTER_FILES:
            text = starter.joinpath(name).read_text(encoding="utf-8")
            (folder / name).write_text(text, encoding="utf-8")
        (folder / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"new: {folder} cannot be written: {error.strerror}") from None
    return f"{folder}: {', '.join(FILES)}\n\n  cd {folder}\n  flowrl run graph.yaml"
