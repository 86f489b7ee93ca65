"""The verb `run`."""

from __future__ import annotations

import json
import sys
import traceback
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.checks.check import CheckedGraph
from flowrl.cli import arguments as shared
from flowrl.cli.streams import stdout_to_stderr
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.checkpoint import SUFFIX
from flowrl.core.errors import LOADING_STATE, FlowError, NodeError, UsageError
from flowrl.core.wording import count_text, size_text
from flowrl.graph.model import Limits
from flowrl.graph.tree import display_path
from flowrl.machine.resource_limits import address_space_shortage
from flowrl.runs.checkpoint_files import checkpoint_file
from flowrl.runs.display import Watcher, Watchers, print_warnings, watcher_for
from flowrl.runs.metrics_table import MetricsTable
from flowrl.runs.result import RunResult, result_text
from flowrl.runs.run import Run
from flowrl.runs.run_names import existing_run_path

if TYPE_CHECKING:
    from flowrl.runs.snapshot_files import StoredSnapshot

BEGIN_PARAM = "begin_with"  # of learners that can continue a checkpoint
EXIT_STATUSES = {"failed": 1, "interrupted": 130}  # by the status of a run; otherwise 0


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
    _add_out(parser)
    add_hosts(parser)
    _add_recovery(parser)
    parser.add_argument(
        "--hash-tokens",
        action="store_true",
        help="write a hash of every token to the run's folder, for `flowrl diff RUN RUN`",
    )
    _add_display(parser)


def resume_arguments(parser: ArgumentParser) -> None:
    shared.add_run(parser)
    shared.add_set(parser)
    shared.add_placement(parser)
    add_limits(parser)
    add_hosts(parser)
    _add_recovery(parser)
    _add_display(parser)


def fork_arguments(parser: ArgumentParser) -> None:
    shared.add_run(parser)
    parser.add_argument(
        "--at",
        type=shared.count,
        metavar="N",
        help="begin from the snapshot after N rounds, those of the warm-up included (default: the newest)",
    )
    shared.add_set(parser)
    shared.add_placement(parser)
    parser.add_argument(
        "--seed",
        type=shared.seed,
        metavar="N",
        help="the seed of the new random numbers (default: it follows from the snapshot and the settings)",
    )
    parser.add_argument(
        "--same-random",
        action="store_true",
        help="continue the random numbers of the run, as `flowrl resume` does",
    )
    add_limits(parser)
    _add_out(parser)
    add_hosts(parser)
    _add_recovery(parser)
    _add_display(parser)


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
    _add_out(parser)
    add_hosts(parser)
    _add_display(parser)


def _add_out(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", help="the run's folder (default: runs/<graph>-seed<seed>-<time>)"
    )


def _add_recovery(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-recover",
        action="store_true",
        help="fail when a process or a host dies, instead of going on from the newest snapshot",
    )


def add_limits(parser: ArgumentParser, time: bool = True) -> None:
    """Add the limits of a run, with or without that of its time."""
    parser.add_argument(
        "--steps",
        type=shared.count,
        metavar="N",
        help="cut at the end of the round that reaches N env steps",
    )
    parser.add_argument(
        "--train-iters", type=shared.count, metavar="N", help="cut after the N-th train iteration"
    )
    if time:
        parser.add_argument(
            "--time",
            metavar="10m",
            help="cut after this time of training (30s, 10m, 2h); it begins when all nodes are made",
        )


def add_hosts(parser: ArgumentParser) -> None:
    """Add what says where hosts join."""
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="where hosts join, as tcp://10.0.0.1:5555; for placements that name hosts (docs/hosts.md)",
    )
    shared.add_key(parser)
    parser.add_argument(
        "--hosts",
        type=shared.count,
        default=1,
        metavar="N",
        help="how many hosts to wait for (default: 1)",
    )
    parser.add_argument(
        "--hosts-within",
        default="60s",
        metavar="TIME",
        help="how long to wait for them (default: 60s)",
    )


def _add_display(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print only one line of JSON, at the end"
    )
    parser.add_argument(
        "--table", metavar="10s", help="print the newest metrics of all nodes so often, as a table"
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


def resume(arguments: Namespace) -> int:
    from flowrl.runs.resume import resumed_run

    run, stored, difference = resumed_run(
        existing_run_path(arguments.run),
        settings=shared.settings(arguments),
        placement=arguments.placement or "serial",
        limits=limits_of(arguments, Limits()),
        rendezvous=rendezvous_of(arguments),
        watcher=_watcher(arguments),
        recovers=not arguments.no_recover,
        begun_s=arguments.begun_s,
    )
    _print_beginning(arguments, "continues", stored, difference)
    return _execute(arguments, run)


def fork(arguments: Namespace) -> int:
    from flowrl.runs.fork import forked_run

    run, stored, difference = forked_run(
        existing_run_path(arguments.run),
        after_rounds=arguments.at,
        settings=shared.settings(arguments),
        seed=arguments.seed,
        same_random=arguments.same_random,
        limits=limits_of(arguments, Limits()),
        out=arguments.out,
        placement=arguments.placement or "serial",
        rendezvous=rendezvous_of(arguments),
        watcher=_watcher(arguments),
        recovers=not arguments.no_recover,
        begun_s=arguments.begun_s,
    )
    how = "random numbers of its parent" if arguments.same_random else f"seed {run.seed}"
    _print_beginning(arguments, f"a fork, with the {how}, begins", stored, difference)
    return _execute(arguments, run)


def record(arguments: Namespace) -> int:
    from flowrl.graph.bundled import locate
    from flowrl.runs.recording import Recording, find_inputs
    from flowrl.runs.repeated_run import repeated_run

    tape = Path(arguments.output) if arguments.output else None
    options: dict[str, Any] = {
        "out": arguments.out,
        "placement": arguments.placement or "serial",
        "rendezvous": rendezvous_of(arguments),
        "watcher": _watcher(arguments),
        "begun_s": arguments.begun_s,
    }
    if locate(arguments.graph, Path()) is None:
        if arguments.sets or arguments.seed is not None:
            raise UsageError(
                "--set and --seed would make another run of it; `flowrl fork` makes one, and "
                "`flowrl record RUN/graph.yaml` takes them, too"
            )
        folder = existing_run_path(arguments.graph)
        run = repeated_run(folder, arguments.at, limits_of(arguments, Limits()), **options)
    else:
        if arguments.at is not None:
            raise UsageError("--at is for a run, which has snapshots; a graph begins anew")
        checked = shared.read_graph(arguments).require_sound()
        if not arguments.quiet:
            print_warnings(checked)
        limits = limits_of(arguments, checked.graph.limits)
        run = Run(checked, seed=arguments.seed, limits=limits, **options)
    run.recording = recording = Recording(find_inputs(run.graph, arguments.edges), tape)
    status = _execute(arguments, run)
    if recording.path is not None and not (arguments.quiet or arguments.json):
        size = f"{count_text(recording.count, 'token')}, {size_text(recording.nbytes)}"
        print(f"tape {display_path(recording.path)}: {size} of {', '.join(recording.inputs)}")
    return status


def _print_beginning(
    arguments: Namespace, verb: str, stored: StoredSnapshot, difference: str
) -> None:
    """Print from which snapshot a run begins, and what was changed."""
    for line in stored.damaged:
        print(f"warning: a damaged snapshot is passed over: {line}", file=sys.stderr)
    if arguments.quiet or arguments.json:
        return
    if difference:
        print(difference)
    counts = stored.snapshot.counts
    print(
        f"{verb} after {counts.env_steps:,} env steps and {counts.train_iters:,} train iterations "
        f"(state {stored.state_digest[:16]})"
    )


def run(arguments: Namespace) -> int:
    _refuse_contradictions(arguments)
    if arguments.begin_from is not None:
        arguments.sets += _begin_settings(arguments)
    checked = shared.read_graph(arguments).require_sound()
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
        rendezvous=rendezvous_of(arguments),
        hash_tokens=arguments.hash_tokens,
        watcher=_watcher(arguments),
        recovers=not arguments.no_recover,
        begun_s=arguments.begun_s,
    )
    return _execute(arguments, run)


def _execute(arguments: Namespace, run: Run) -> int:
    """Run, print the result, and return the exit status."""
    try:
        with stdout_to_stderr() if arguments.json else nullcontext():
            result = run.run()
        return _print_result(arguments, result)
    except (UsageError, OSError):
        raise  # from our own output: errors of nodes and of the folder have other types
    except KeyboardInterrupt:
        return _print_result(arguments, run.ended or run.result("interrupted", "stopped at once"))
    except Exception as error:
        is_unfit = run.is_fork and isinstance(error, NodeError) and error.doing == LOADING_STATE
        _print_error(error, with_traceback=not is_unfit)
        return _print_result(arguments, run.ended or run.result("failed", str(error)))


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
    if arguments.listen is not None:
        raise UsageError(
            "--listen and --seeds exclude each other, as each run would need hosts of its own; "
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


def _watcher(arguments: Namespace) -> Watcher:
    display = watcher_for(quiet=arguments.quiet or arguments.json)
    if arguments.table is None:
        return display
    return Watchers(display, MetricsTable(shared.seconds_of("--table", arguments.table)))


def rendezvous_of(arguments: Namespace) -> Rendezvous | None:
    """Return where hosts join, if there are hosts."""
    if arguments.listen is None:
        if arguments.key is not None or arguments.hosts > 1:
            raise UsageError("--key and --hosts are for hosts, which join at --listen ADDRESS")
        return None
    within_s = shared.seconds_of("--hosts-within", arguments.hosts_within)
    key = Path(arguments.key) if arguments.key is not None else None
    return Rendezvous(arguments.listen, key, arguments.hosts, within_s)


def limits_of(arguments: Namespace, of_graph: Limits) -> Limits:
    """Return the limits of a graph, except where the arguments give others."""
    time = getattr(arguments, "time", None)
    time_s = None if time is None else shared.seconds_of("--time", time)
    return of_graph.overridden_by(
        steps=arguments.steps, train_iters=arguments.train_iters, time_s=time_s
    )


def _print_result(arguments: Namespace, result: RunResult) -> int:
    """Print the result, and return the exit status."""
    if arguments.json:
        print(json.dumps(result.as_dict()), flush=True)
    elif result.run_dir and not arguments.quiet:  # without a folder, the error was all
        print(result_text(result))
    return EXIT_STATUSES.get(result.status, 0)


def _print_error(error: Exception, with_traceback: bool = True) -> None:
    """Print the traceback of the first cause, if it is not an error of flowrl's own, and then the error in one line."""
    shortage = address_space_shortage(error)
    if shortage:
        print(f"flowrl: {error}; {shortage}", file=sys.stderr)
        return
    cause = error.__cause__ if isinstance(error, NodeError) else error
    if with_traceback and cause is not None and not isinstance(cause, FlowError):
        while cause.__cause__ is not None:  # the errors that it was turned into are in error.txt
            cause = cause.__cause__
        print("".join(traceback.format_exception(cause)), file=sys.stderr, end="")
    print(f"flowrl: {error}", file=sys.stderr)
