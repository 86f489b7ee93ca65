"""Runs of one graph in several placements, compared in everything that they write down."""

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

CLOCK = (
    "wall_s",
    "env_steps_per_s",
    "bottleneck",
    "placement",
    "run_dir",
)  # differ from run to run

Facts = dict[str, Any]


def ran(graph: Mapping[str, Any], placement: str, out: Path, **limits: Any) -> Facts:
    """All that a run tells but its times: the summary, and every file that has no clock in it."""
    run = Run(check(load_data(graph)), placement=placement, out=out, limits=Limits(**limits))
    run.run()
    return facts_of(out)


def facts_of(folder: Path) -> Facts:
    """What lies in a run's folder."""
    summary = json.loads((folder / "summary.json").read_text())
    found: Facts = {key: value for key, value in summary.items() if key not in CLOCK}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".jsonl", ".log") and name != "timings.jsonl":
            found[name] = path.read_text().splitlines()
        elif path.suffix == ".safetensors":
            found[name] = checkpoint(path)
    return found


def checkpoint(path: Path) -> Facts:
    """A checkpoint's arrays and what it says of them."""
    with safe_open(path, "numpy") as file:
        arrays = {key: file.get_tensor(key).tolist() for key in file.keys()}  # noqa: SIM118
        return {"says": file.metadata(), **arrays}


def same_everywhere(
    graph: Mapping[str, Any], folder: Path, *placements: str, **limits: Any
) -> Facts:
    """Run it serially and in each placement; the serial run's facts, which are those of all."""
    serial = ran(graph, "serial", folder / "serial", **limits)
    for number, placement in enumerate(placements or ("threads",)):
        other = ran(graph, placement, folder / f"{number}", **limits)
        assert other.keys() == serial.keys(), placement
        for key, value in serial.items():
            assert other[key] == value, f"{placement}: {key}"
    return serial
