"""Transfers a graph to the processes of its sites: on this machine as YAML text, to hosts as data and files.

Each fork server reads the graph and checks it again (`read_graph`), so a site shares no objects with the process that
started the run. A host also receives the files that the graph names, and the Python files beside it. It compares
fingerprints: a package of another version that changes the graph ends the run, instead of changing its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph, check
from flowrl.checks.fingerprint import differing_parts, graph_data, graph_fingerprint, value_at
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.expand import expand
from flowrl.graph.loading import LoadedGraph, load_data, load_text
from flowrl.graph.model import Graph
from flowrl.graph.needed_files import file_params, files_beside, named_modules

MAX_MODULES, MAX_MODULE_BYTES = 2000, 32 << 20  # of Python files
MAX_FILE_BYTES = 1 << 30  # of all other files together
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SentGraph:
    """A graph in the form in which it is sent to a host."""

    config: Mapping[str, Any]  # for `read_graph`
    files: tuple[tuple[str, Path], ...]  # names in the host's folder, and the files on this machine

    def pieces(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files in pieces, each with the name of its file."""
        for name, path in self.files:
            with path.open("rb") as file:
                yield name, file.read(PIECE_BYTES)
                while piece := file.read(PIECE_BYTES):
                    yield name, piece


def require_importable(graph: Graph) -> None:
    """Refuse a graph that names something of the script that was started, which is `__main__` in its process only."""
    problems = dict.fromkeys(
        f"nodes.{node}: '{path}' is in the script that was started, and sites in other processes cannot import it; "
        f"move it to a module beside the script, and name it 'my_module:{path.partition(':')[2]}'"
        for node, module, path in named_modules(graph)
        if module == "__main__"
    )
    if problems:
        raise UsageError("\n".join(problems))


def graph_on_this_machine(checked: CheckedGraph) -> dict[str, Any]:
    """Return the configuration for `read_graph` in another process of this machine."""
    graph = replace(checked.graph, launch=())  # sites start no hosts
    return {"title": graph.name, "graph": expand(graph)}


def graph_to_send(checked: CheckedGraph) -> SentGraph:
    """Return the configuration for `read_graph` on another machine, and the files that it needs."""
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
    _check_size("Python files beside the graph", modules, MAX_MODULE_BYTES, MAX_MODULES)
    _check_size("files that the graph names", files, MAX_FILE_BYTES, len(files))
    config = {
        "title": graph.name,
        "graph": data,
        "modules": [f"modules/{n}" for n in range(len(beside))],
        "paths": [[list(keys), names[path]] for keys, path in named.items()],
        "fingerprint": graph_fingerprint(checked),
    }
    return SentGraph(config, (*modules, *files))


def read_graph(config: Mapping[str, Any]) -> CheckedGraph:
    """Read and check the graph of a run in another process; raise GraphMismatch if a host reads it differently."""
    if "fingerprint" not in config:
        return _check_anywhere(load_text(config["graph"], config["title"])).require_sound()
    checked = _check_anywhere(load_sent_graph(config, Path(config["files"])))
    different = differing_parts(graph_fingerprint(checked), config["fingerprint"])
    if different:
        raise GraphMismatch(different, checked)
    return checked


def _check_anywhere(loaded: LoadedGraph) -> CheckedGraph:
    """Check a graph of which only some nodes run here: each finds its device when it is made."""
    return check(loaded, elsewhere=loaded.graph.nodes)


def load_sent_graph(config: Mapping[str, Any], folder: Path) -> LoadedGraph:
    """Load a graph that was sent. Its files are in `folder`."""
    data = {**config["graph"], "modules": [str(folder / name) for name in config["modules"]]}
    for (*outer, last), name in config["paths"]:
        value_at(data, outer)[last] = str(folder / name)
    return load_data(data, config["title"])


class GraphMismatch(FlowError):
    """A host reads the graph differently than the machine that started the run."""

    def __init__(self, parts: list[str], checked: CheckedGraph) -> None:
        problems = "; ".join(map(str, checked.problems))
        why = problems or "install the same versions of the packages that its types are from"
        super().__init__(f"this host reads the graph differently ({', '.join(parts)}): {why}")


def _check_size(
    what: str, files: tuple[tuple[str, Path], ...], limit_bytes: int, limit: int
) -> None:
    size = sum(path.stat().st_size for _, path in files)
    if size > limit_bytes or len(files) > limit:
        raise UsageError(
            f"hosts: the {what} are {len(files)}, of {size} bytes together; at most "
            f"{limit} of {limit_bytes} bytes are sent"
        )
