"""The verbs about the results of runs: eval, export, plot."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.cli.arguments import add_trained, count, seed
from flowrl.runs.run_names import existing_run_path

if TYPE_CHECKING:
    pass


def evaluate_arguments(parser: ArgumentParser) -> None:
    add_trained(parser)
    parser.add_argument(
        "--episodes",
        type=count,
        metavar="N",
        help="how many episodes, instead of the graph's number",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="the seed of the episodes (default: 0)"
    )
    parser.add_argument(
        "--video",
        metavar="FILE|DIR",
        help="record the worst, the median and the best episode: in one video file (.mp4, .gif), "
        "or in a folder with a file for each",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def evaluate(arguments: Namespace) -> int:
    from flowrl.runs.evaluation import evaluate_checkpoint

    video = Path(arguments.video) if arguments.video else None
    evaluation = evaluate_checkpoint(
        arguments.run,
        arguments.episodes,
        arguments.seed,
        video,
        arguments.checkpoint,
    )
    print(json.dumps(evaluation.as_dict()) if arguments.json else evaluation)
    return 0


def export_arguments(parser: ArgumentParser) -> None:
    add_trained(parser)
    parser.add_argument(
        "--learner", metavar="NAME", help="whose policy it is, if the run has several learners"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.onnx",
        default="policy.onnx",
        help="where to write it (default: policy.onnx)",
    )


def export(arguments: Namespace) -> int:
    from flowrl.runs.trained_policy import load_policy

    path = Path(arguments.output)
    load_policy(arguments.run, arguments.checkpoint, arguments.learner).export_onnx(path)
    print(path)
    return 0


def plot_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="runs, each named as for `flowrl eval`, or folders of runs; those with equal settings form one band",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it, as .png or .svg (default: plot.png in the first folder)",
    )


def plot(arguments: Namespace) -> int:
    from flowrl.runs.plot import plot_runs

    runs = [existing_run_path(run) for run in arguments.runs]
    out = Path(arguments.output) if arguments.output else runs[0] / "plot.png"
    drawn = plot_runs(runs, out)
    for sentence in drawn.left_out:
        print(f"note: {sentence}", file=sys.stderr)
    print(drawn.path)
    return 0
