"""A graph with a checkpoint of it: a run, or a bundled graph whose best checkpoint comes with flowrl."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowrl.core.checkpoint import SUFFIX
from flowrl.core.errors import UsageError, closest_word
from flowrl.graph.bundled import bundled_checkpoint, bundled_graphs, find_bundled
from flowrl.runs.checkpoint_files import checkpoint_file
from flowrl.runs.run_names import existing_run_path


@dataclass(frozen=True, slots=True)
class TrainedGraph:
    """Where the graph is, and where its checkpoints are."""

    name: str  # the run's folder, or the bundled graph's name
    graph: Path
    run: Path | None = None  # the folder of the run; None: the checkpoint comes with flowrl

    def checkpoint(self, name: str | None) -> Path:
        """The file of a checkpoint by its name; without one, of the best."""
        if self.run is not None or (name is not None and name.endswith(SUFFIX)):
            return checkpoint_file(self.run or Path(), name)
        if name not in (None, "best"):
            raise UsageError(
                f"{self.name}: there is no checkpoint '{name}'; flowrl has the best one of this bundled graph only"
            )
        path = bundled_checkpoint(self.name)
        assert path is not None
        return path


def find_trained_graph(text: str | Path) -> TrainedGraph:
    """What a word names: a folder, the name of a bundled graph with a checkpoint, or a run."""
    name = str(text)
    bundled = None if Path(name).is_dir() else find_bundled(name)
    if bundled is not None and bundled_checkpoint(name) is not None:
        return TrainedGraph(name, bundled)
    try:
        run = existing_run_path(name)
    except UsageError as error:
        if name not in bundled_graphs():
            near = closest_word(name, filter(bundled_checkpoint, bundled_graphs()))
            if near is None:
                raise
            raise UsageError(f"{error}; or did you mean the graph '{near}'?") from None
        what = f"flowrl has no checkpoint of this bundled graph (train it: flowrl run {name})"
        raise UsageError(f"{name}: {what}, and {str(error).removeprefix(f'{name}: ')}") from None
    graph = run / "graph.yaml"
    if not graph.is_file():
        raise UsageError(f"{run}: is not a run's folder, as it has no graph.yaml")
    return TrainedGraph(str(run), graph, run)
