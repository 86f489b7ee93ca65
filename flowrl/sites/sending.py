"""A graph on its way to another machine: as plain data, with the files that it names, and the Python files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.checks.check import Checked
from flowrl.config import Config, PartSpec
from flowrl.errors import UsageError
from flowrl.graph import Graph
from flowrl.sites.reading import reading
from flowrl.source.beside import files_beside
from flowrl.source.loading import Loaded, load_tree
from flowrl.source.params import extra
from flowrl.source.yamlfile import parse_yaml
from flowrl.tools.expand import expand

MODULES, MODULE_BYTES = 2000, 32 << 20  # Python files, and their size together
FILE_BYTES = 1 << 30  # of all other files together
PIECE_BYTES = 1 << 20

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a host is sent."""

    told: Mapping[str, Any]  # how to put it together again
    files: tuple[tuple[str, Path], ...]  # names in the host's folder, and what belongs there

    def pieces(self) -> Iterator[tuple[str, bytes]]:
        """All files, in pieces."""
        for name, path in self.files:
            with path.open("rb") as file:
                yield name, file.read(PIECE_BYTES)
                while piece := file.read(PIECE_BYTES):
                    yield name, piece


def sent(checked: Checked) -> Sent:
    """What a host is sent to read the same graph."""
    graph = checked.graph
    data = graph_data(graph)
    named = {keys: _value(data, keys) for keys in file_params(graph)}
    files = {path: f"files/{n}/{Path(path).name}" for n, path in enumerate(sorted(set(named.values())))}
    beside = files_beside(graph)
    modules = [
        (f"modules/{n}/{file.as_posix()}", folder / file)
        for n, folder in enumerate(beside)
        for file in beside[folder]
    ]
    _bounded("Python files beside the graph", [p for _, p in modules], MODULE_BYTES, MODULES)
    _bounded("files that the graph names", [Path(p) for p in files], FILE_BYTES)
    told = {
        "graph": data,
        "modules": [f"modules/{n}" for n in range(len(beside))],
        "paths": [[list(keys), files[path]] for keys, path in named.items()],
        "reading": reading(checked),
    }
    return Sent(told, (*modules, *((name, Path(path)) for path, name in files.items())))


def received(told: Mapping[str, Any], title: str, folder: Path) -> Loaded:
    """The graph that was sent, read again."""
    data = told["graph"]
    data["modules"] = [str(folder / name) for name in told["modules"]]
    for keys, name in told["paths"]:
        *outer, last = keys
        _value(data, outer)[last] = str(folder / name)
    return load_tree(data, title)


def graph_data(graph: Graph) -> dict[str, Any]:
    """The resolved graph as plain data, without where its modules lie."""
    data: dict[str, Any] = parse_yaml(expand(graph), graph.name).plain()
    data.pop("modules", None)
    return data


def file_params(graph: Graph) -> list[Keys]:
    """Where in the graph's data there is the name of a file to read."""
    return [
        ("nodes", name, *keys)
        for name, spec in graph.nodes.items()
        for keys in _file_params(spec.config)
    ]


def _file_params(config: Config) -> Iterator[Keys]:
    for name, info in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, PartSpec):
            value = value.config
        if isinstance(value, Config):
            yield from ((name, *keys) for keys in _file_params(value))
        elif isinstance(value, str) and extra(info).get("file") and Path(value).is_file():
            yield (name,)


def _value(data: Any, keys: Any) -> Any:
    for key in keys:
        data = data[key]
    return data


def _bounded(what: str, paths: list[Path], limit_bytes: int, limit: int | None = None) -> None:
    size = sum(path.stat().st_size for path in paths)
    if size > limit_bytes or (limit is not None and len(paths) > limit):
        raise UsageError(
            f"hosts: the {what} are {len(paths)} with {size} bytes together; "
            f"{f'{limit} with ' if limit else ''}{limit_bytes} bytes are sent at most"
        )
