"""The files that a failed run leaves in its folder, with which its failure can be repeated."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flowrl.core.errors import NodeError, attached_files
from flowrl.graph.model import Graph
from flowrl.runs.recording import failed_firing_tape

CRASH_PREFIX = "crash-"  # of the names of files with the episode of an env that failed


@dataclass(frozen=True, slots=True)
class FailureFiles:
    """Files by name, and what the user can do with them."""

    texts: Mapping[str, str]
    tapes: Mapping[str, bytes]  # of the firing that failed
    hints: tuple[str, ...]


def failure_files(graph: Graph, folder: Path, error: BaseException) -> FailureFiles:
    """Return the files that an error brings: those that are attached to it, and a tape of the firing that failed."""
    texts = {Path(name).name: text for name, text in attached_files(error).items()}
    tapes = {}
    hints = []
    if isinstance(error, NodeError) and error.failed_firing:
        with contextlib.suppress(ValueError):  # another machine has sent it
            name, tape = failed_firing_tape(graph, error.failed_firing)
            tapes[name] = tape
            path = shlex.quote(str(folder / name))
            hints.append(f"`flowrl replay {path}` fires '{error.node}' again as it failed")
    for name in texts:
        if name.startswith(CRASH_PREFIX):
            path = shlex.quote(str(folder / name))
            hints.append(f"`flowrl replay {path}` plays the episode again that failed")
    return FailureFiles(texts, tapes, tuple(hints))
