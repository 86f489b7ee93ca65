"""Creates the folders of new runs, each of which contains one run only."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from flowrl.core.errors import RunError, UsageError
from flowrl.runs.disk_errors import explain_disk_errors


def create_run_folder(graph: str, seed: int, out: str | Path | None) -> Path:
    """Create the folder of a new run: `out`, or runs/<graph>-seed<seed>-<time>."""
    if out is not None:
        path = _named_folder(out)
        with explain_disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            try:
                # Two runs may start at once: only one of them creates the file.
                (path / "graph.yaml").touch(exist_ok=False)
            except FileExistsError:
                raise UsageError(
                    f"--out {path}: it already contains a run; choose another folder, or remove it"
                ) from None
        return path
    return _create_folder_in_runs(f"{graph}-seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}")


def create_seeds_folder(graph: str, seeds: Sequence[int], out: str | Path | None) -> Path:
    """Create the folder of runs with several seeds: `out`, or runs/<graph>-seeds<first>-<last>-<time>."""
    if out is None:
        stem = f"{graph}-seeds{min(seeds)}-{max(seeds)}-{time.strftime('%Y%m%d-%H%M%S')}"
        return _create_folder_in_runs(stem)
    path = _named_folder(out)
    with explain_disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    for run in (path, *(path / f"seed{seed}" for seed in seeds)):
        if (run / "graph.yaml").exists():
            raise UsageError(
                f"--out {path}: {run} already contains a run; choose another folder, or remove it"
            )
    return path


def _named_folder(out: str | Path) -> Path:
    """The folder that `--out` names. An empty text is the value of a variable that is not set."""
    if out == "":
        raise UsageError("--out is empty; name a folder, '.' for this one, or leave it out")
    return Path(out)


def _create_folder_in_runs(stem: str) -> Path:
    for number in range(1, 10_000):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        with explain_disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another run may create it first
                path.mkdir()
                return path
    raise RunError(f"runs/{stem}: all names up to {stem}-9999 are taken; remove old runs")
