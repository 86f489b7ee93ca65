"""Records the tokens of some edges of a run into a tape."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from flowrl.checks.ordering import exclusive_services_of
from flowrl.core.context import instance_key
from flowrl.core.errors import UsageError, spelling_hint
from flowrl.graph.expand import expand
from flowrl.graph.model import Edge, Graph
from flowrl.graph.replica_pairs import replica_pairs_of
from flowrl.machine.environment import library_versions
from flowrl.runs.disk_errors import explain_disk_errors
from flowrl.runs.tape_file import TapeFacts, TapeWriter
from flowrl.runs.token_file import named_pairs
from flowrl.runtime.failed_firing import FailedFiring
from flowrl.runtime.snapshot import Parts, edge_key, node_key, versions_key
from flowrl.runtime.snapshot_schedule import Snapshot
from flowrl.runtime.token_hashing import TokenHash

TAPE_FILE = "tokens.tape"  # in the run's folder, unless another file is named


class Recording:
    """The tape of one run, which is written as the run goes on."""

    def __init__(self, inputs: Iterable[str], path: Path | None = None) -> None:
        """`inputs` name the edges; `path` is the tape, by default `TAPE_FILE` in the run's folder."""
        self.inputs = tuple(inputs)
        self.path = path
        self.count, self.nbytes = 0, 0
        self._file: BinaryIO | None = None
        self._writer: TapeWriter | None = None
        if path is not None and path.exists():
            raise UsageError(f"{path}: it exists already; name another file with -o, or remove it")
        if path is not None and not path.parent.is_dir():
            raise UsageError(
                f"{path}: there is no folder {path.parent}; make it, or name another file with -o"
            )

    @property
    def has_begun(self) -> bool:
        """Whether the tape is there."""
        return self._file is not None

    def begin(self, folder: Path, graph: Graph, snapshot: Snapshot | None) -> None:
        """Begin the tape of a run that begins with this snapshot, if with any."""
        self.path = self.path or folder / TAPE_FILE
        facts = _facts(graph, snapshot.rounds if snapshot else 0, self.inputs)
        parts = needed_parts(graph, self.inputs, snapshot.parts) if snapshot else {}
        with explain_disk_errors(self.path):
            self._file = self.path.open("wb")
            self._writer = TapeWriter(self._file, facts, parts)

    def write(self, hashed: TokenHash) -> None:
        assert self._writer is not None
        assert self.path is not None
        with explain_disk_errors(self.path):
            self._writer.write_token(hashed)
        if hashed.content:
            self.count += 1
            self.nbytes += len(hashed.content)

    def end(self, train_iters: int) -> None:
        """Write the end of the tape: the cut is reached."""
        assert self._writer is not None
        assert self.path is not None
        with explain_disk_errors(self.path):
            self._writer.end(train_iters)

    def close(self) -> None:
        """Close the file. The write that failed, if one did, has raised already."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def _facts(
    graph: Graph, rounds: int, inputs: tuple[str, ...], firing: Mapping[str, Any] | None = None
) -> TapeFacts:
    pairs = tuple(named_pairs(graph))
    resolved = expand(replace(graph, placements={}))
    libraries = library_versions()
    return TapeFacts(graph.name, resolved, graph.seed, rounds, inputs, pairs, libraries, firing)


def failed_firing_tape(graph: Graph, content: bytes) -> tuple[str, bytes]:
    """Return the name and the bytes of the tape of a failed firing; raise ValueError if `content` is none."""
    firing = FailedFiring.decode(content)
    about = {name: getattr(firing, name) for name in ("instance", "doing", "error", "stateless")}
    file = io.BytesIO()
    writer = TapeWriter(file, _facts(graph, firing.rounds, (), about), firing.parts)
    for port, value in firing.inputs.items():
        writer.write_input(port, value)
    return f"crash-{firing.instance.replace('/', '__')}.tape", file.getvalue()


def find_inputs(graph: Graph, words: Iterable[str]) -> list[str]:
    """Return the inputs of the edges that words name: an edge, one of its ports, both of its nodes, or one of them."""
    edges = [edge for edge in graph.edges if edge.kind != "link"]
    found: dict[str, None] = {}
    for word in words:
        wanted = "".join(word.split())
        matches = [edge for edge in edges if wanted in _names(edge)]
        if not matches:
            known = [name for edge in edges for name in _names(edge)]
            links = any(wanted in _names(edge) for edge in graph.edges)
            hint = "its edges are links, which carry calls and no tokens" if links else ""
            hint = hint or spelling_hint(word, known)
            raise UsageError(f"{word}: {graph.name} has no such edge to record; {hint}")
        found |= dict.fromkeys(str(edge.to) for edge in matches)
    return [str(edge.to) for edge in edges if str(edge.to) in found]


def _names(edge: Edge) -> set[str]:
    """Return all words that name an edge."""
    names = {str(edge.to), edge.to.node}
    for source in edge.sources:
        names |= {str(source), source.node}
        names |= {f"{source.node}->{edge.to.node}", f"{source}->{edge.to}"}
    return names


def replayable_nodes(graph: Graph, inputs: Iterable[str]) -> list[str]:
    """Return the nodes that fire by themselves and whose inputs were all recorded."""
    recorded = set(inputs)
    return [
        name
        for name, spec in graph.nodes.items()
        if spec.fires
        and not spec.is_group
        and all(str(e.to) in recorded for e in graph.edges_into(name) if e.kind != "link")
    ]


def needed_parts(graph: Graph, inputs: Iterable[str], parts: Parts) -> Parts:
    """Return the parts of a snapshot with which the nodes that can be replayed begin."""
    names = replayable_nodes(graph, inputs)
    keys = {
        node_key(instance_key(owner, replica))
        for owner in (*names, *exclusive_services_of(graph, names))
        for replica in range(graph.nodes[owner].replicas)
    }
    for name in names:
        for edge in graph.edges:
            if edge.to.node == name and edge.kind == "stream":
                keys |= {edge_key(edge.to, pair) for pair in replica_pairs_of(graph, edge)}
            if edge.kind == "state" and edge.source.node == name:
                keys.add(versions_key(edge.source))
    return {key: saved for key, saved in parts.items() if key in keys}
