"""The files that a graph needs beside its YAML: data files that its parameters name, and Python modules beside it.

A graph names a module as `package.module:Class`, as a type or in a parameter. Imports are read from the source of the
module, and nothing is executed. What a node imports only when it first fires is found, too; dynamic imports are not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowrl.core.config import Config, PartSpec, field_extras
from flowrl.core.project_modules import has_module
from flowrl.core.written_config import written_params
from flowrl.graph.model import Graph

Keys = tuple[str | int, ...]

_NAMED = re.compile(r"([A-Za-z_]\w*)(\.\w+)*:[\w.-]+")


def named_modules(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield each import path in the graph: the node that names it, its top-level module, and the whole path."""
    for node, spec in graph.nodes.items():
        for text in _texts([spec.type, written_params(spec.config)]):
            if named := _NAMED.fullmatch(text):
                yield node, named[1], text


def modules_beside(graph: Graph) -> dict[str, Path]:
    """The folder of each top-level module beside the graph that the graph names."""
    found = {}
    for _, module, _ in named_modules(graph):
        folder = _folder_of(module, graph.folders)
        if folder is not None:
            found[module] = folder
    return found


def files_beside(graph: Graph) -> dict[Path, list[Path]]:
    """The Python files that the graph needs, by folder. They are sorted, and relative to their folder."""
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
        if has_module(folder, module):
            return folder
    return None


def _files_of(module: str, folder: Path) -> Iterator[Path]:
    """A module's file, or all files of a package."""
    package = folder / module
    if (package / "__init__.py").is_file():
        yield from package.rglob("*.py")
    else:
        yield folder / f"{module}.py"


def _imports(file: Path) -> Iterator[str]:
    """The top-level modules that a file imports by absolute imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # the import itself will fail
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def file_params(graph: Graph) -> list[Keys]:
    """The paths, in the graph's data, of parameters that name an existing file."""
    return [
        ("nodes", name, *keys)
        for name, spec in graph.nodes.items()
        for keys in _file_params(spec.config)
    ]


def _file_params(config: Config) -> Iterator[Keys]:
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, str) and field_extras(info).get("file") and Path(value).is_file():
            yield (name,)
        elif isinstance(value, dict):
            yield from ((name, n, *keys) for n, v in value.items() for keys in _inside(v))
        elif isinstance(value, tuple | list):
            yield from ((name, n, *keys) for n, v in enumerate(value) for keys in _inside(v))
        else:
            yield from ((name, *keys) for keys in _inside(value))


def _inside(value: Any) -> Iterator[Keys]:
    config = value.config if isinstance(value, PartSpec) else value
    if isinstance(config, Config):
        yield from _file_params(config)
