"""The verb `run`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.cli import arguments as shared
from flowrl.cli.executed_run import EXIT_STATUSES, execute
from flowrl.cli.run_arguments import (
    add_execution,
    add_limits,
    add_out,
    limits_of,
    rendezvous_of,
    watcher_of,
)
from flowrl.core.checkpoint import SUFFIX
from flowrl.core.errors import UsageError
from flowrl.runs.checkpoint_files import checkpoint_file
from flowrl.runs.display import print_warnings
from flowrl.runs.run import Run
from flowrl.runs.run_names import existing_run_path

BEGIN_PARAM = "begin_with"  # of learners that can continue a checkpoint
WRITER = "saved_rows"  # the node of --save-rows


def run_arguments(parser: ArgumentParser) -> None:
    shared.add_graph(parser)
    shared.add_placement(parser)
    parser.add_argument(
        "--seed", type=shared.seed, metavar="N", help="the seed, instead of the graph's"
    )
    parser.add_argument(
        "--seeds",
        type=shared.seeds,
        metavar="N",
        help="run with several seeds, each in a process and a folder of its own: 5 (which is 0..4), 0..4 or 0,3,7",
    )
    parser.add_argument(
        "--at-once",
        type=shared.count,
        metavar="N",
        help="with --seeds, how many runs at a time (default: as many as there are cores for)",
    )
    parser.add_argument(
        "--from",
        dest="begin_from",
        metavar="RUN",
        help="learners continue the last checkpoint of a run, or a .safetensors file (their `begin_with`)",
    )
    add_limits(parser)
    add_out(parser)
    parser.add_argument(
        "--save-rows",
        nargs=2,
        metavar=("N", "FILE"),
        help="write the N newest rows of the collector to a dataset, for `demos` nodes: an NPZ or HDF5 file (.h5), or "
        "a Minari folder",
    )
    parser.add_argument(
        "--hash-tokens",
        action="store_true",
        help="write a hash of every token to the run's folder, for `flowrl diff RUN RUN`",
    )
    add_execution(parser)


def run(arguments: Namespace) -> int:
    _refuse_contradictions(arguments)
    if arguments.begin_from is not None:
        arguments.sets += _begin_settings(arguments)
    rendezvous = rendezvous_of(arguments)
    additions = None if arguments.save_rows is None else _saved_rows(arguments)
    checked = shared.read_graph(
        arguments, has_hosts=rendezvous is not None, additions=additions
    ).require_sound()
    if not arguments.quiet:
        print_warnings(checked)
    if arguments.seeds is not None:
        return _run_seeds(arguments, checked)
    run = Run(
        checked,
        seed=arguments.seed,
        limits=limits_of(arguments, checked.graph.limits),
        out=arguments.out,
        placement=arguments.placement or "serial",
        rendezvous=rendezvous,
        hash_tokens=arguments.hash_tokens,
        watcher=watcher_of(arguments),
        recovers=not arguments.no_recover,
        begun_s=arguments.begun_s,
    )
    return execute(arguments, run)


def _refuse_contradictions(arguments: Namespace) -> None:
    if arguments.seeds is None:
        if arguments.at_once is not None:
            raise UsageError("--at-once is for several seeds; add --seeds, for example --seeds 5")
        return
    if arguments.seed is not None:
        raise UsageError("--seed and --seeds exclude each other; --seeds 0,3,7 names several seeds")
    if arguments.table is not None:
        raise UsageError(
            "--table is for one run; of several seeds, flowrl plot and TensorBoard show the metrics"
        )
    if arguments.save_rows is not None:
        raise UsageError(
            "--save-rows is for one run, as all seeds would write the same file; start a run with --seed"
        )
    for_hosts = [name for name in ("listen", "launch") if getattr(arguments, name) is not None]
    if for_hosts:
        raise UsageError(
            f"--{for_hosts[0]} and --seeds exclude each other, as each run would need hosts of its own; "
            "start a run for each seed, with --seed"
        )


def _run_seeds(arguments: Namespace, checked: CheckedGraph) -> int:
    """Run with several seeds, print their results, and return the exit status."""
    from flowrl.runs.seed_display import seed_display_for
    from flowrl.runs.seeds import SeedRuns

    results = SeedRuns(
        checked,
        arguments.seeds,
        limits=limits_of(arguments, checked.graph.limits),
        out=arguments.out,
        placement=arguments.placement or "serial",
        at_once=arguments.at_once,
        hash_tokens=arguments.hash_tokens,
        recovers=not arguments.no_recover,
        display=seed_display_for(quiet=arguments.quiet or arguments.json),
        begun_s=arguments.begun_s,
    ).run()
    if arguments.json:
        print(json.dumps(results.as_dict()), flush=True)
    elif not arguments.quiet:
        print(f"\n{results}")
    else:
        for run in results.runs:
            if run.status == "failed":
                print(f"flowrl: seed {run.seed}: {run.why}", file=sys.stderr)
    return EXIT_STATUSES.get(results.status, 0)


def _begin_settings(arguments: Namespace) -> list[str]:
    """The settings, as those of --set, by which the learners of the graph continue a checkpoint."""
    run = arguments.begin_from
    if run.endswith(SUFFIX):
        path = checkpoint_file(Path(), run)
    else:
        path = checkpoint_file(existing_run_path(run), None, usual=("last",))
    graph = shared.load_written_graph(arguments)
    learners = [graph.nodes[name] for name in graph.nodes_of_role("learner")]
    able = [s.name for s in learners if BEGIN_PARAM in type(s.config).model_fields]
    if not able:
        raise UsageError(f"--from {run}: no learner of the graph has the parameter `{BEGIN_PARAM}`")
    return [f"{name}.{BEGIN_PARAM}={json.dumps(str(path.absolute()))}" for name in able]


def _saved_rows(arguments: Namespace) -> dict[str, Any]:
    """The node and the edge by which the graph also writes its collector's rows."""
    rows, path = arguments.save_rows
    try:
        count = shared.count(rows)
    except ArgumentTypeError as error:
        raise UsageError(f"--save-rows: {error}; write it before the file") from error
    graph = shared.load_written_graph(arguments)
    collectors = [n for n in graph.nodes_of_role("collector") if "/" not in n]
    if len(collectors) != 1:
        found = f"{len(collectors)} collectors ({', '.join(collectors)})" if collectors else "none"
        raise UsageError(
            f"--save-rows writes the rows of the graph's collector, and it has {found}; extend the graph by a node "
            f"`{WRITER}: {{type: npz_writer, path: {path}, rows: {count}}}`, and by an edge to it"
        )
    writer = {"type": "npz_writer", "path": path, "rows": count}
    return {"nodes": {WRITER: writer}, "edges": [f"{collectors[0]} -> {WRITER}"]}
