"""A graph on its way to another machine: plain data, the files that it names, the Python files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph, check
from flowrl.cluster.fingerprint import differing, graph_data, reading, value_at
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.file_params import file_params
from flowrl.graph.files_beside import files_beside
from flowrl.graph.loading import LoadedGraph, load_data

MODULES, MODULE_BYTES = 2000, 32 << 20  # Python files, and their size together
FILE_BYTES = 1 << 30  # of all other files together
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SentGraph:
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


def to_send(checked: CheckedGraph) -> SentGraph:
    """What a host is sent to read the same graph."""
    graph = checked.graph
    data = graph_data(graph)
    named = {keys: value_at(data, keys) for keys in file_params(graph)}
    names = {
        path: f"files/{n}/{Path(path).name}" for n, path in enumerate(sorted({*named.values()}))
    }
    beside = files_beside(graph)
    modules = tuple(
        (f"modules/{n}/{file.as_posix()}", folder / file)
        for n, folder in enumerate(beside)
        for file in beside[folder]
    )
    files = tuple((name, Path(path)) for path, name in names.items())
    _bounded("Python files beside the graph", modules, MODULE_BYTES, MODULES)
    _bounded("files that the graph names", files, FILE_BYTES, len(files))
    told = {
        "title": graph.name,
        "graph": data,
        "modules": [f"modules/{n}" for n in range(len(beside))],
        "paths": [[list(keys), names[path]] for keys, path in named.items()],
        "reading": reading(checked),
    }
    return SentGraph(told, (*modules, *files))


def received(told: Mapping[str, Any], folder: Path) -> LoadedGraph:
    """The graph that was sent, read again; `folder` is where the files lie."""
    data = {**told["graph"], "modules": [str(folder / name) for name in told["modules"]]}
    for (*outer, last), name in told["paths"]:
        value_at(data, outer)[last] = str(folder / name)
    return load_data(data, told["title"])


def read_there(told: Mapping[str, Any], folder: Path) -> CheckedGraph:
    """The same, checked; ReadsDifferently if it is another one than where the run was started."""
    checked = check(received(told, folder))
    different = differing(reading(checked), told["reading"])
    if different:
        raise GraphMismatch(different, checked)
    return checked


class GraphMismatch(FlowError):
    """The graph is another one here than where the run was started."""

    def __init__(self, parts: list[str], checked: CheckedGraph) -> None:
        problems = "; ".join(map(str, checked.problems))
        why = problems or "install the same versions of what its types are from"
        super().__init__(f"the graph reads differently here ({', '.join(parts)}): {why}")


def _bounded(what: str, files: tuple[tuple[str, Path], ...], limit_bytes: int, limit: int) -> None:
    size = sum(path.stat().st_size for _, path in files)
    if size > limit_bytes or len(files) > limit:
        raise UsageError(
            f"hosts: the {what} are {len(files)}, of {size} bytes together; at most "
            f"{limit} of {limit_bytes} bytes are sent"
        )
