"""The verbs that look at runs: eval, plot, replay."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path


def evaluate(arguments: Namespace) -> int:
    """`flowrl eval`."""
    from flowrl.runs.evaluation import evaluate_best_checkpoint

    video = Path(arguments.video) if arguments.video else None
    found = evaluate_best_checkpoint(Path(arguments.run), arguments.episodes, arguments.seed, video)
    if arguments.json:
        print(json.dumps(found.as_dict()))
    else:
        print(found)
    return 0


def plot(arguments: Namespace) -> int:
    """`flowrl plot`."""
    from flowrl.runs.plot import plot_runs

    runs = [Path(run) for run in arguments.runs]
    out = Path(arguments.output) if arguments.output else runs[0] / "plot.png"
    print(plot_runs(runs, out))
    return 0


def replay(arguments: Namespace) -> int:
    """`flowrl replay`: an env's failure is what was asked for, so it is status 0."""
    replaying = importlib.import_module(
        "flowrl.nodes.env_managers.crash_replay"
    )  # the engine knows no envs
    replaying.replay(arguments.file, arguments.pdb)
    return 0
