"""Runs a graph in several placements and compares everything that the runs write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run

# Keys of the summary that differ from run to run.
VARYING_KEYS = (
    *(
        "wall_s",
        "setup_s",
        "training_s",
        "shutdown_s",
        "env_steps_per_s",
        "bottleneck",
        "network_bytes",
    ),
    *("placement", "run_dir"),
)

Results = dict[str, Any]


def run_graph(graph: Mapping[str, Any], placement: str, out: Path, **limits: Any) -> Results:
    """Run a graph, and return its results without times: the summary, metrics, logs and checkpoints."""
    run = Run(check(load_data(graph)), placement=placement, out=out, limits=Limits(**limits))
    run.run()
    return read_results(out)


def read_results(folder: Path) -> Results:
    """Return the results in a run's folder."""
    summary = json.loads((folder / "summary.json").read_text())
    found: Results = {key: value for key, value in summary.items() if key not in VARYING_KEYS}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.parent.name == "hosts":
            continue  # what libraries printed on hosts, such as the banner of Atari's emulator
        if path.suffix in (".jsonl", ".log") and name != "timings.jsonl":
            found[name] = path.read_text().splitlines()
        elif path.suffix == ".safetensors":
            found[name] = read_checkpoint(path)
    return found


def read_checkpoint(path: Path) -> Results:
    """Return the arrays and the metadata of a checkpoint."""
    with safe_open(path, "numpy") as file:
        arrays = {key: file.get_tensor(key).tolist() for key in file.keys()}  # noqa: SIM118
        return {"metadata": file.metadata(), **arrays}


def compare_placements(
    graph: Mapping[str, Any], folder: Path, *placements: str, **limits: Any
) -> Results:
    """Run a graph serially and in each placement, compare the results, and return them."""
    serial = run_graph(graph, "serial", folder / "serial", **limits)
    for number, placement in enumerate(placements or ("threads",)):
        other = run_graph(graph, placement, folder / f"{number}", **limits)
        assert other.keys() == serial.keys(), placement
        for key, value in serial.items():
            assert other[key] == value, f"{placement}: {key}"
    return serial
