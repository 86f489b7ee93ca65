"""The Python files beside a graph that it needs: those that it names, and what they import from there.

A graph names a module in words like `package.module:Class`, as a type or in a parameter. Imports are read from the
source, so that what a node imports when it first fires is found, too; nothing is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowrl.graph.model import Graph
from flowrl.graph.param_reader import written_params

_NAMED = re.compile(r"([A-Za-z_]\w*)(\.\w+)*:[\w.-]+")


def modules_beside(graph: Graph) -> dict[str, Path]:
    """The folder of each top-level module beside the graph that the graph names."""
    found = {}
    for spec in graph.nodes.values():
        for text in _texts([spec.type, written_params(spec.config)]):
            named = _NAMED.fullmatch(text)
            folder = _folder_of(named[1], graph.folders) if named else None
            if named and folder is not None:
                found[named[1]] = folder
    return found


def files_beside(graph: Graph) -> dict[Path, list[Path]]:
    """The Python files that the graph needs, by folder; each sorted, and relative to its folder."""
    wanted = list(modules_beside(graph))
    found: dict[Path, set[Path]] = {}
    seen: set[str] = set()
    while wanted:
        module = wanted.pop()
        folder = _folder_of(module, graph.folders)
        if module in seen or folder is None:
            continue
        seen.add(module)
        files = list(_files_of(module, folder))
        found.setdefault(folder, set()).update(file.relative_to(folder) for file in files)
        for file in files:
            wanted += _imports(file)
    return {folder: sorted(files) for folder, files in found.items()}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _folder_of(module: str, folders: tuple[Path, ...]) -> Path | None:
    for folder in folders:
        if (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file():
            return folder
    return None


def _files_of(module: str, folder: Path) -> Iterator[Path]:
    """A module's file, or all those of a package."""
    package = folder / module
    if (package / "__init__.py").is_file():
        yield from package.rglob("*.py")
    else:
        yield folder / f"{module}.py"


def _imports(file: Path) -> Iterator[str]:
    """The top-level modules that a file imports by their full names."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # whoever imports it is told
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
