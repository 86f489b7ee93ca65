"""The verb `record`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from flowrl.cli import arguments as shared
from flowrl.cli.executed_run import execute
from flowrl.cli.run_arguments import (
    add_display,
    add_hosts,
    add_limits,
    add_out,
    limits_of,
    rendezvous_of,
    watcher_of,
)
from flowrl.core.errors import UsageError
from flowrl.core.wording import count_text, size_text
from flowrl.graph.model import Limits
from flowrl.graph.tree import display_path
from flowrl.runs.display import print_warnings
from flowrl.runs.run import Run


def record_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "graph",
        metavar="GRAPH|RUN",
        help="a graph file, the name of a bundled graph, or a run, which is repeated",
    )
    parser.add_argument(
        "edges",
        nargs="+",
        metavar="EDGE",
        help="an edge: one of its ports, or both of its nodes (a->b); a node stands for all of its edges",
    )
    parser.add_argument(
        "-o", "--output", metavar="TAPE", help="the tape (default: tokens.tape in the run's folder)"
    )
    parser.add_argument(
        "--at",
        type=shared.number_of_rounds,
        metavar="N",
        help="of a run: begin from the snapshot after N rounds, or from the beginning with 0 "
        "(default: the newest snapshot before its end)",
    )
    shared.add_set(parser)
    shared.add_placement(parser)
    parser.add_argument(
        "--seed", type=shared.seed, metavar="N", help="the seed, instead of the graph's"
    )
    add_limits(parser)
    add_out(parser)
    add_hosts(parser)
    add_display(parser)


def record(arguments: Namespace) -> int:
    from flowrl.graph.bundled import locate
    from flowrl.runs.recording import Recording, find_inputs
    from flowrl.runs.repeated_run import repeated_run

    tape = Path(arguments.output) if arguments.output else None
    options: dict[str, Any] = {
        "out": arguments.out,
        "placement": arguments.placement or "serial",
        "rendezvous": rendezvous_of(arguments),
        "watcher": watcher_of(arguments),
        "begun_s": arguments.begun_s,
    }
    if locate(arguments.graph, Path()) is None:
        if arguments.sets or arguments.seed is not None:
            raise UsageError(
                "--set and --seed would make another run of it; `flowrl fork` makes one, and "
                "`flowrl record RUN/graph.yaml` takes them, too"
            )
        folder = shared.run_path_beside_graphs(arguments.graph)
        run = repeated_run(folder, arguments.at, limits_of(arguments, Limits()), **options)
    else:
        if arguments.at is not None:
            raise UsageError("--at is for a run, which has snapshots; a graph begins anew")
        checked = shared.read_graph(
            arguments, has_hosts=options["rendezvous"] is not None
        ).require_sound()
        if not arguments.quiet:
            print_warnings(checked)
        limits = limits_of(arguments, checked.graph.limits)
        run = Run(checked, seed=arguments.seed, limits=limits, **options)
    run.recording = recording = Recording(find_inputs(run.graph, arguments.edges), tape)
    status = execute(arguments, run)
    if recording.path and recording.has_begun and not (arguments.quiet or arguments.json):
        size = f"{count_text(recording.count, 'token')}, {size_text(recording.nbytes)}"
        print(f"tape {display_path(recording.path)}: {size} of {', '.join(recording.inputs)}")
    return status
